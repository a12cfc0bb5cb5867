"""What the workers of a fleet say of themselves, read once from the status topic: for commands that look and go."""

from __future__ import annotations

import asyncio

from headrace.deploy.failure import CommandFailed
from headrace.streams.client_async import LISTEN_S
from headrace.streams.fleet import Fleet
from headrace.streams.log import Log
from headrace.streams.watch import StatusWatch, wall_ms

HEARTBEAT_S = 3.0
"""Three heartbeats of a worker, seconds."""


async def read_fleet(
    log: Log, topic: str, model: str = "", *, wait_s: float = HEARTBEAT_S
) -> Fleet:
    """Return what the status topic says now.

    Args:
        log: Entered already.
        topic: The status topic.
        model: That is asked about; ``""`` are all.
        wait_s: Seconds that the known model without a live worker is waited for: where clocks differ, a word looks old
            until the next one comes.

    Raises:
        CommandFailed: The topic does not exist or cannot be read in time, or there is no such model.
    """
    if await log.partitions(topic) is None:
        raise CommandFailed(f"topic {topic} does not exist: no worker has been here")
    watch = StatusWatch(log, topic, wall_ms)
    reading = asyncio.create_task(watch.run())
    fleet = watch.fleet
    try:
        async with asyncio.timeout(LISTEN_S):
            await watch.caught_up.wait()
        if model in fleet.models():
            await watch.until(lambda: bool(fleet.workers(model, wall_ms())), wait_s)
    except TimeoutError as exc:
        raise CommandFailed(f"topic {topic} could not be read within {LISTEN_S:g} s") from exc
    finally:
        reading.cancel()
        await asyncio.wait([reading])
    if model and model not in fleet.models():
        known = ", ".join(fleet.models()) or "none"
        raise CommandFailed(f"there is no model '{model}', known models: {known}")
    return fleet
