"""One suspect at a time, and nothing that executes beside it (DELIVERY P-14)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from headrace.consumers.alone import Alone, split
from headrace.schemas.batch import Batch, Entry
from headrace.schemas.record import TP
from headrace.schemas.sequence import Flag, SequenceState
from headrace.streams.memory_partition import MemoryRecord
from virtual_loop import run_virtual

T0 = TP("t", 0)
BOUND_S = 10.0
BEFORE = SequenceState(-1, Flag.LIVE, 0, 1, 0)


class Model:
    """A scheduler with so many instances at work."""

    def __init__(self, busy: int = 0) -> None:
        self.busy = busy
        self.dispatched = 0

    def dispatch_soon(self) -> None:
        """Count."""
        self.dispatched += 1


def batch_of(*offsets: int | None, states: bool = False) -> Batch:
    """Return a batch of requests at these offsets; None is padding."""
    entries: list[Entry | None] = []
    for offset in offsets:
        entry = None if offset is None else Entry()
        if entry is not None and offset is not None:
            entry.tp, entry.epoch, entry.rows = T0, 1, 1
            entry.record = MemoryRecord("t", 0, offset, 0, None, b"", [])
        entries.append(entry)
    return Batch(None, entries, [BEFORE] * len(entries) if states else ())  # type: ignore[arg-type]  # nobody runs it


def offsets_of(batch: Batch | None) -> list[int | None]:
    """Return the offsets of a batch's rows."""
    entries = [] if batch is None else batch.entries
    return [None if entry is None else entry.record.offset for entry in entries]


def test_P14_a_suspect_is_taken_out_of_its_batch() -> None:
    """The others run together; a batch of its own is left as it is."""
    suspect, rest = split(batch_of(1, 2, 3), 1, keeps_rows=False)
    assert (offsets_of(suspect), offsets_of(rest)) == ([2], [1, 3])
    suspect, rest = split(batch_of(None, 2, None), 1, keeps_rows=False)
    assert (offsets_of(suspect), rest) == ([2], None)


def test_P14_rows_of_a_model_with_memory_stay_where_they_are() -> None:
    """A row is a sequence's own place there."""
    suspect, rest = split(batch_of(1, None, 3, states=True), 2, keeps_rows=True)
    assert offsets_of(suspect) == [None, None, 3]
    assert offsets_of(rest) == [1, None, None]
    assert len(suspect.states) == 3


Scene = Callable[[Alone, list[str]], Coroutine[None, None, None]]


def play(scene: Scene) -> list[str]:
    """Play a scene on virtual time; returns what happened, in order."""
    seen: list[str] = []

    async def run() -> None:
        await scene(Alone(BOUND_S), seen)

    run_virtual(run())
    return seen


def announcing(seen: list[str], seconds: float = 0.0) -> Callable[[], Coroutine[None, None, None]]:
    """Return an announcement that takes so long."""

    async def announce() -> None:
        await asyncio.sleep(seconds)
        seen.append("announced")

    return announce


def test_P14_it_is_announced_when_nothing_executes_and_then_it_runs() -> None:
    """Others begin again when it has ended."""

    async def scene(alone: Alone, seen: list[str]) -> None:
        mine, other = Model(busy=1), Model(busy=1)
        alone.join(mine)
        alone.join(other)
        suspect = batch_of(7)
        async with alone.turn(T0, 1, 7, announcing(seen, 1.0)):
            assert alone.row(batch_of(5, 6)) is None
            assert alone.row(batch_of(5, 7)) == 1
            alone.close(suspect, lambda: seen.append("runs"))
            assert alone.is_closed
            mine.busy = 0
            alone.look()
            await asyncio.sleep(2)
            assert seen == []
            other.busy = 0
            alone.look()
            await asyncio.sleep(0.5)
            assert seen == []
            await asyncio.sleep(1)
            assert seen == ["announced", "runs"]
            alone.ended(batch_of(5))
            assert alone.is_closed, "another one's end"
            alone.ended(suspect)
            assert not alone.is_closed
            assert (mine.dispatched, other.dispatched) == (1, 1)

    play(scene)


def test_P14_others_wait_for_a_bound_and_are_waited_for_no_longer() -> None:
    """An execution that hangs must not stop every model, whoever it is."""

    async def scene(alone: Alone, seen: list[str]) -> None:
        alone.join(hangs := Model(busy=1))
        async with alone.turn(T0, 1, 7, announcing(seen)):
            alone.close(batch_of(7), lambda: seen.append("runs"))
            await asyncio.sleep(BOUND_S - 1)
            assert seen == []
            await asyncio.sleep(2)
            assert seen == ["announced", "runs"]
            assert alone.is_closed
            await asyncio.sleep(BOUND_S)
            assert not alone.is_closed
            assert hangs.dispatched == 1

    play(scene)


def test_P14_one_record_of_a_process_is_suspected_at_a_time() -> None:
    """The next one waits for its turn; and who is not ours any more is waited for all the same."""

    async def scene(alone: Alone, seen: list[str]) -> None:
        alone.join(Model())
        suspect = batch_of(7)

        async def next_one() -> None:
            async with alone.turn(T0, 1, 8, announcing(seen)):
                seen.append("next")
                assert alone.row(batch_of(7, 8)) == 1
                assert not alone.has_begun

        async with alone.turn(T0, 1, 7, announcing(seen)):
            task = asyncio.create_task(next_one())
            alone.close(suspect, lambda: seen.append("runs"))
            await asyncio.sleep(1)
            assert alone.has_begun
        await task
        assert seen == ["announced", "runs", "next"]
        assert alone.is_closed
        alone.ended(suspect)
        assert not alone.is_closed
        assert alone.row(batch_of(7, 8)) is None

    play(scene)


def test_P14_a_suspect_is_read_when_nothing_executes_and_nobody_else_reads() -> None:
    """Others read and begin again behind that."""

    async def scene(alone: Alone, seen: list[str]) -> None:
        alone.join(model := Model(busy=1))

        async def other(name: str, seconds: float) -> None:
            async with alone.others():
                seen.append(name)
                await asyncio.sleep(seconds)

        first = asyncio.create_task(other("first", 3))
        await asyncio.sleep(1)

        async def suspect() -> None:
            async with alone.turn(T0, 1, 7, announcing(seen)), alone.reading():
                seen.append("read")
                await asyncio.sleep(1)

        reading = asyncio.create_task(suspect())
        await asyncio.sleep(0)
        second = asyncio.create_task(other("second", 0))
        model.busy = 0
        alone.look()
        await asyncio.sleep(1)
        assert seen == ["first"], "one reads in a thread"
        await asyncio.gather(first, reading, second)
        assert seen == ["first", "announced", "read", "second"]
        assert not alone.is_closed
        assert model.dispatched == 1

    play(scene)


def test_P14_the_end_of_a_former_suspect_lets_nobody_read_beside_the_next_one() -> None:
    """It still executes though its partition has gone: it is waited for as any other."""

    async def scene(alone: Alone, seen: list[str]) -> None:
        alone.join(model := Model())
        former = batch_of(7)
        async with alone.turn(T0, 1, 7, announcing(seen)):
            alone.close(former, lambda: seen.append("runs"))
            await asyncio.sleep(1)
            model.busy = 1

        async def next_one() -> None:
            async with alone.turn(T0, 1, 8, announcing(seen)), alone.reading():
                assert alone.is_closed
                seen.append("read")

        task = asyncio.create_task(next_one())
        await asyncio.sleep(1)
        assert seen == ["announced", "runs"]
        model.busy = 0
        alone.ended(former)
        alone.look()
        async with asyncio.timeout(1):
            await task
        assert seen == ["announced", "runs", "announced", "read"]
        assert not alone.is_closed

    play(scene)


def test_P14_a_reading_that_is_given_up_holds_nobody_back() -> None:
    """Its partition has gone while it waited."""

    async def scene(alone: Alone, seen: list[str]) -> None:
        alone.join(model := Model(busy=1))
        for wait_s in (1, BOUND_S + 1):  # while others execute; while it is announced

            async def suspect() -> None:
                async with alone.turn(T0, 1, 7, announcing(seen, 5)), alone.reading():
                    seen.append("read")

            task = asyncio.create_task(suspect())
            await asyncio.sleep(wait_s)
            assert alone.is_closed
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert not alone.is_closed
        await asyncio.sleep(3 * BOUND_S)
        assert seen == []
        assert not alone.is_closed
        assert model.dispatched == 2

    play(scene)
