"""A process that stops in the middle of a transaction: `Doomed` starts it, `main` is what runs in it.

It joins a group, takes its partition over and settles record 0: an answer that is written at once, then a snapshot that
it waits with until it is told. It says what it does on its standard output, a word per line.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.schemas.record import TP, Out
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import Mode, Outcome, Position
from log_kit import PATIENCE_S, Snapshots, Worker

LARGE = (
    b"x" * 600_000
)  # fills a round of its own: it is acknowledged before the snapshot is asked for


def say(word: str) -> None:
    """Tell the parent."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


class Stopping(Snapshots):
    """A cover that stops the whole process within its first snapshot."""

    def __init__(self, target: str) -> None:
        super().__init__()
        self._target = target
        self._has_stopped = False

    def snapshots(self, owner: TP, position: Position) -> Iterator[Sequence[Out]]:
        """Say so, and wait for a word; only the first time."""
        del owner, position
        if not self._has_stopped:
            self._has_stopped = True
            say("open")
            sys.stdin.readline()
        yield [Out(self._target, 0, b"k", b"snapshot")]


async def main(
    properties: Mapping[str, str], group: str, topic: str, target: str, timeout_ms: int
) -> None:
    """Settle record 0, again after a takeover where that is due, and say what became of it."""
    owner, worker, cover = TP(topic, 0), Worker(), Stopping(target)
    async with (
        KafkaLog(properties, transaction_timeout_ms=timeout_ms) as log,
        log.source(group, {topic}, worker) as source,
    ):
        delivery = log.delivery(source, Mode.EXACTLY_ONCE, cover)
        outcome = Outcome.ABORTED
        while outcome in (Outcome.ABORTED, Outcome.PRODUCER_FENCED):
            await delivery.take_over(dict(worker.epochs))
            delivery.put(owner, [Out(target, 0, None, LARGE)])
            outcome = (await delivery.settle({owner: Position(1, "", worker.epochs[owner])}))[
                owner
            ]
            say(outcome)


class Doomed:
    """That process, seen from outside."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def heard(self) -> str:
        """Return its next word."""
        async with asyncio.timeout(PATIENCE_S):
            return (await self.process.stdout.readline()).decode().strip()

    def go_on(self) -> None:
        """Let it go on from where it stopped."""
        self.process.stdin.write(b"\n")


@asynccontextmanager
async def doomed(
    properties: Mapping[str, str], group: str, topic: str, target: str, *, timeout_ms: int
) -> AsyncIterator[Doomed]:
    """Start it; it is killed at the end."""
    arguments = [json.dumps(dict(properties)), group, topic, target, str(timeout_ms)]
    # A script's own folder is not looked into where PYTHONSAFEPATH is set.
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        yield Doomed(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


if __name__ == "__main__":
    given, *names, timeout = sys.argv[1:]
    asyncio.run(main(json.loads(given), *names, int(timeout)))
