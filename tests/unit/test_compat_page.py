"""The page of the compatibility suite: what it says of which outcome, and that no rule is forgotten."""

from pathlib import Path

import compat_page
from compat_rules import REASONS, RULES, cited

PAGE = Path(__file__).parents[2] / "docs" / "COMPATIBILITY.md"


def line(page, rule):
    (found,) = [line for line in page.splitlines() if line.startswith(f"| {rule} |")]
    return found


def test_every_rule_has_a_case_or_a_reason():
    assert cited() - RULES.keys() == set()
    assert RULES.keys() - cited() == REASONS.keys()


def test_a_cell_counts_outcomes_with_their_reasons():
    found = [("passes", ""), ("differs", "no GPU"), ("passes", ""), ("newer", "")]
    assert compat_page.cell(found) == "differs 1: no GPU; newer 1; passes 2"
    assert compat_page.cell([]) == "not run"


def test_a_server_that_did_not_run_keeps_its_column():
    both = {server: {"PB-01": [("passes", "")]} for server in ("triton", "headrace")}
    before = compat_page.render(both, "", "2.51")
    after = compat_page.render({"headrace": {"PB-01": [("fails", "")]}}, before)
    assert line(before, "PB-01").endswith("| passes 1 | passes 1 |")
    assert line(after, "PB-01").endswith("| passes 1 | fails 1 |")
    assert "against Triton 2.51 itself" in after


def test_the_page_is_of_these_rules():
    page = PAGE.read_text(encoding="utf-8")
    for rule in RULES:
        assert line(page, rule)
