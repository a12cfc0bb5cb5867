"""The remembered ceiling of rows: it falls with a memory error and rises by itself (FAULTS B80)."""

from __future__ import annotations

from headrace.consumers.ceiling import Ceiling
from hypothesis import given
from hypothesis import strategies as st

HOLD_NS = 1_000


def test_B80_a_ceiling_falls_holds_and_rises_step_by_step() -> None:
    """32 → 8, then 16 after the hold, then none."""
    ceiling = Ceiling(32, HOLD_NS)
    assert ceiling.rows == 0
    assert ceiling.lower(8, 0)
    assert (ceiling.rise(HOLD_NS - 1), ceiling.rows) == (False, 8)
    assert (ceiling.rise(HOLD_NS), ceiling.rows) == (True, 16)
    assert not ceiling.rise(HOLD_NS + 1)
    assert (ceiling.rise(2 * HOLD_NS), ceiling.rows) == (True, 0)
    assert not ceiling.rise(10 * HOLD_NS)


def test_B80_another_memory_error_at_the_ceiling_starts_the_hold_anew() -> None:
    """It does not rise from the old time on, and a larger number does not lift it."""
    ceiling = Ceiling(32, HOLD_NS)
    ceiling.lower(4, 0)
    assert not ceiling.lower(8, 600)
    assert ceiling.rows == 4
    assert not ceiling.rise(HOLD_NS)
    assert ceiling.rise(HOLD_NS + 600)


def test_a_model_of_one_row_has_none() -> None:
    """There is nothing below one row."""
    for rows in (0, 1):
        ceiling = Ceiling(rows, HOLD_NS)
        assert not ceiling.lower(1, 0)
        assert ceiling.rows == 0


@given(
    st.integers(1, 300),
    st.lists(st.tuples(st.integers(0, 3 * HOLD_NS), st.integers(0, 300)), max_size=30),
)
def test_B80_a_ceiling_is_always_within_the_model_and_is_forgotten_in_the_end(
    max_rows: int, steps: list[tuple[int, int]]
) -> None:
    """Whatever happens: 0, or at least 1 and below the maximum; without memory errors it ends."""
    ceiling, now = Ceiling(max_rows, HOLD_NS), 0
    for wait, rows in steps:
        now += wait
        before = ceiling.rows
        if rows:
            ceiling.lower(rows, now)
            assert before == 0 or ceiling.rows <= before
            assert not ceiling.rise(now)
        else:
            ceiling.rise(now)
        assert 0 <= ceiling.rows < max(2, max_rows)
    for _ in range(10):
        now += HOLD_NS
        ceiling.rise(now)
    assert ceiling.rows == 0
