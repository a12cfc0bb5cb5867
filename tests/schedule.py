"""Which tests run when, and on which of the processes that run them side by side.

What takes minutes begins first, so that no process is left alone with it at the end; the many files of a second or two
fill up what is left. Seeds compute on one process while the other one waits for brokers.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

TESTS = Path(__file__).parent
PLACES = {"chaos": 0, "simulation": 1, "compat": 2, "golden": 4, "unit": 4}
"""Folder → how late its files begin; all others in between, at 3."""
TOGETHER = tuple(f"{TESTS.name}/{folder}/" for folder in ("chaos", "compat"))
"""Folders whose files share brokers or servers, and so one process each."""


class Schedule(LoadFileScheduling):
    """One process per file, and per folder where its files share what is started for them."""

    def _split_scope(self, nodeid: str) -> str:
        scope: str = super()._split_scope(nodeid)
        return next((folder for folder in TOGETHER if scope.startswith(folder)), scope)


def place(item: pytest.Item) -> int:
    """Return how late the folder of a test begins."""
    return PLACES.get(item.path.relative_to(TESTS).parts[0], 3)
