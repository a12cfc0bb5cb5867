"""Which figures break the promise of which delivery mode."""

import dataclasses

import pytest
from chaos.verdict import Figures
from headrace.streams.log import Mode

CLEAN = Figures("a", Mode.EXACTLY_ONCE, 1, 10, calls={"answered": 3, "504": 1, "503": 1, "cut": 1})


@pytest.mark.parametrize(
    ("found", "both"),
    [
        ({"lost": 1}, True),
        ({"lost_replies": 1}, False),
        ({"duplicated": 1}, False),
        ({"duplicated": 1, "different": 1}, True),
        ({"orphaned": 1}, True),
        ({"dead": 1}, True),
        ({"wrong": 1}, True),
        ({"disordered": 1}, True),
        ({"calls": {"hung": 1}}, True),
        ({"calls": {"wrong": 1}}, True),
        ({"failure": "it hangs"}, True),
    ],
    ids=str,
)
def test_P1_P13_P16_what_breaks_the_promise_of_which_mode(found, both):
    """A repeat is at least once's right, a missing reply that of exactly once."""
    figures = dataclasses.replace(CLEAN, **found)
    broken = [bool(dataclasses.replace(figures, mode=mode).broken()) for mode in Mode]
    alone = [False, True] if "duplicated" in found else [True, False]
    assert broken == ([True, True] if both else alone)
    assert not CLEAN.broken()
