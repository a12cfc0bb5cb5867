"""Scenes that play both in one process and with real ones, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from fault_kit import Key, Stage, check_answers, finished, until, write_model
from headrace.streams.log import Position

SLOW = 100.0
"""The request that waits for its gate."""


class Mortal(Protocol):
    """A worker that can be killed."""

    async def kill(self) -> None:
        """Kill it."""


Start = Callable[[Path], AbstractAsyncContextManager[Mortal]]


class Restart(NamedTuple):
    """What a scene with a killed worker saw."""

    committed: Mapping[int, Position]
    keys: Sequence[Key]
    executions: int


async def slow_head(
    stage: Stage, folder: Path, patience_s: float = 60.0, start: Start | None = None
) -> Restart:
    """Block offset 0, answer 1 to 4, kill, start again.

    Args:
        stage: Where.
        folder: For models and gate.
        patience_s: How long to wait for what a planted bug prevents.
        start: Starts the worker that is killed; one in this process unless given.
    """
    gate = folder / "gate"
    repository = write_model(
        folder / "models", instances=2, block_if=f"INPUT0={SLOW}", block_until_file=gate
    )
    async with (start or stage.worker)(repository) as first:
        keys = await stage.send([SLOW, 1, 2, 3, 4], partition=0)
        await stage.until_answered(keys[1:])
        committed = await stage.until_committed(
            lambda at: finished(at.get(0), 5) >= {1, 2, 3, 4}, patience_s, must=False
        )
        await first.kill()
    gate.touch()
    async with stage.worker(repository) as second:
        await stage.until_answered(keys, patience_s, must=False)
        await until(lambda: second.in_flight() == 0, "the end of the second worker's work")
        return Restart(committed, keys, len(second.executions))


def check_slow_head(stage: Stage, seen: Restart) -> None:
    """Offset 0 was never passed, it is answered after the restart, and only it ran again (P-1)."""
    assert seen.committed[0].offset == 0, f"committed beyond the unfinished 0: {seen.committed}"
    beyond = finished(seen.committed[0], 5)
    assert beyond == {1, 2, 3, 4}, f"the commit says that {beyond} are finished"
    check_answers(stage, seen.keys, once=True)
    assert seen.executions == 1, f"{seen.executions} executions after the restart"


def check_end_in_the_middle(stage: Stage, committed: Mapping[int, Position]) -> None:
    """Nothing of what was in flight was committed, and all of it is answered by the next worker."""
    assert committed[0] == Position(3, "", committed[0].epoch), (
        f"committed with 3 in flight: {committed}"
    )
    check_answers(stage, stage.sent, once=True)
