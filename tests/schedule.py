"""Which tests run when, and on which of the processes that run them side by side.

What takes minutes begins first, so that no process is left alone with it at the end; the many files of a second or two
fill up what is left. Seeds compute on one process while the other one waits for brokers.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

TESTS = Path(__file__).parent
PLACES = {"chaos": 0, "simulation": 1, "golden": 3, "unit": 3}
"""Folder → how late its files begin; all others in between, at 2."""
TOGETHER = f"{TESTS.name}/chaos/"
"""Folder whose files share one cluster of brokers, and so one process."""


class Schedule(LoadFileScheduling):
    """One process per file, and per folder where its files share what is started for them."""

    def _split_scope(self, nodeid: str) -> str:
        scope: str = super()._split_scope(nodeid)
        return TOGETHER if scope.startswith(TOGETHER) else scope


def place(item: pytest.Item) -> int:
    """Return how late the folder of a test begins."""
    return PLACES.get(item.path.relative_to(TESTS).parts[0], 2)
