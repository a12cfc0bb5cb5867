"""What a model's worker does with failures of its parts, and waits that a stop ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from headrace.schemas.errors import LogError


def first_failure(group: BaseExceptionGroup[LogError]) -> LogError:
    """Return the first leaf, preferring one that no later try can mend."""
    leaves = [
        first_failure(e) if isinstance(e, BaseExceptionGroup) else e for e in group.exceptions
    ]
    return next((leaf for leaf in leaves if not leaf.retriable), leaves[0])


def fewer_partitions() -> LogError:
    """Return why answers cannot be addressed as they were."""
    return LogError(
        "the topic of results or dead letters has fewer partitions than before", retriable=True
    )


def start_in(tasks: asyncio.TaskGroup | None, coroutine: Coroutine[None, None, None]) -> None:
    """Start a task of a membership; where that has ended, or is about to, there is nothing to do any more."""
    if tasks is not None:
        try:
            tasks.create_task(coroutine)
        except RuntimeError:  # the group is shutting down, which it tells by nothing else
            coroutine.close()
    else:
        coroutine.close()


async def failing(exc: BaseException) -> None:
    """Raise, as a task of the group that shall end with it."""
    raise exc


async def stopped_within(stop: asyncio.Event, timeout_s: float) -> None:
    """Wait for the stop, at most ``timeout_s``."""
    try:
        async with asyncio.timeout(timeout_s):
            await stop.wait()
    except TimeoutError:
        return
