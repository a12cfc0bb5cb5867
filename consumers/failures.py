"""What a model's worker does with failures of its parts, and waits that a stop ends."""

from __future__ import annotations

import asyncio

from headrace.schemas.errors import LogError


def first_failure(group: BaseExceptionGroup[LogError]) -> LogError:
    """Return the first leaf, preferring one that no later try can mend."""
    leaves = [
        first_failure(e) if isinstance(e, BaseExceptionGroup) else e for e in group.exceptions
    ]
    return next((leaf for leaf in leaves if not leaf.retriable), leaves[0])


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
