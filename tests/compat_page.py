"""Writes the table of what the compatibility suite found: one line a rule, one column a server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest
from compat_rules import REASONS, RULES

NOT_RUN = "not run"

HEAD = """# Compatibility with Triton

`make compat` writes this page: it runs `tests/compat`, whose cases are driven by Triton's own `tritonclient` (or, where
that cannot send what a case needs, by bytes on the wire), against `headrace serve` and, where `HEADRACE_PEERS` names
the scripts that start it, against Triton {version} itself. Both must meet the same expectations. A column whose server
could not be started keeps what it said before.

A cell counts a rule's cases: *passes*, *differs* (Headrace knowingly answers otherwise, and why), *newer* (the rule
holds from a later Triton on), *fails*.

| rule | in short | Triton | Headrace |
|---|---|---|---|
"""

REST = """
## Rules without a case

| rule | in short | why |
|---|---|---|
"""

Outcome = tuple[str, str]
"""``passes``, ``differs``, ``newer`` or ``fails``, and the reason where there is one."""


class Recorder:
    """Collects the outcomes of a session; a plugin of pytest.

    Attributes:
        outcomes: Server → rule → outcomes of its cases.
        version: Triton's, where it ran.
    """

    def __init__(self, page: Path) -> None:
        """Keep where to write."""
        self._page = page
        self.outcomes: dict[str, dict[str, list[Outcome]]] = defaultdict(lambda: defaultdict(list))
        self.version = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what became of one case."""
        found = [value for key, value in report.user_properties if key == "compat"]
        if not found or (report.when != "call" and report.passed):
            return
        server, version, rules = found[0]
        if server == "triton":
            self.version = ".".join(map(str, version))
        for rule in rules:
            self.outcomes[server][rule].append(outcome(report))

    def pytest_sessionfinish(self) -> None:
        """Write the page."""
        before = self._page.read_text(encoding="utf-8") if self._page.exists() else ""
        self._page.parent.mkdir(parents=True, exist_ok=True)
        self._page.write_text(render(self.outcomes, before, self.version), encoding="utf-8")


def outcome(report: pytest.TestReport) -> Outcome:
    """Return what a report says of its case."""
    if hasattr(report, "wasxfail"):
        return (
            ("differs", report.wasxfail.removeprefix("[NOTRUN] "))
            if report.skipped
            else ("fails", "")
        )
    if report.skipped:
        return ("newer", "")
    return ("passes" if report.passed else "fails", "")


def render(
    outcomes: Mapping[str, Mapping[str, list[Outcome]]], before: str, version: str = ""
) -> str:
    """Return the page.

    Args:
        outcomes: Server → rule → outcomes of its cases.
        before: The page as it was: what a server that did not run keeps.
        version: Triton's, ``""`` where it did not run.
    """
    kept = _cells(before)
    if not version:
        _, _, rest = before.partition("against Triton ")
        version = rest.split(" ", 1)[0]
    lines = []
    for rule, text in RULES.items():
        if rule in REASONS:
            continue
        cells = []
        for column, server in enumerate(("triton", "headrace")):
            if server in outcomes:
                cells.append(cell(outcomes[server].get(rule, [])))
            else:
                cells.append(kept.get(rule, (NOT_RUN, NOT_RUN))[column])
        lines.append(f"| {rule} | {text} | {' | '.join(cells)} |\n")
    head = HEAD.replace("{version}", version)
    reasons = [f"| {rule} | {RULES[rule]} | {why} |\n" for rule, why in REASONS.items()]
    return "".join([head, *lines, REST, *reasons])


def cell(found: list[Outcome]) -> str:
    """Return a cell's text: how many cases, by outcome, with the reasons."""
    words = []
    for word in ("fails", "differs", "newer", "passes"):
        number = sum(one == word for one, _ in found)
        if number:
            reasons = sorted({why for one, why in found if one == word and why})
            words.append(f"{word} {number}" + (f": {'; '.join(reasons)}" if reasons else ""))
    return "; ".join(words) or NOT_RUN


def _cells(page: str) -> dict[str, tuple[str, str]]:
    """Return the cells of a page that was written before."""
    found = {}
    for line in page.partition(REST)[0].splitlines():
        parts = [part.strip() for part in line.strip("|").split(" | ")]
        if len(parts) == 4 and parts[0] in RULES:
            found[parts[0]] = (parts[2], parts[3])
    return found
