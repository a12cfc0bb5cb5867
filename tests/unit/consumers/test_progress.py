"""What stands still before its end is found, fetched again, and given up; what may stand still is not (B7, B8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Set

import pytest
from headrace.consumers.ledger import OffsetLedger
from headrace.consumers.partition import Partition
from headrace.consumers.progress import FETCHES, LOOKS, PartitionStuck, Watch
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.streams.log import TopicSpec
from headrace.streams.memory import MemoryLog
from headrace.streams.memory_source import MemorySource
from virtual_loop import run_virtual

A, B = TP("t", 0), TP("t", 1)
TIMEOUT_S = 20.0
LOOK_S = TIMEOUT_S / LOOKS
LATEST_S = TIMEOUT_S + 2 * LOOK_S + 0.1


class FaultySource(MemorySource):
    """Leaves partitions out, for a while or whatever it is told; may know no ends, and no group."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]  # as the log's
        self.deaf: set[TP] = set()
        self.seeks: list[tuple[TP, int]] = []
        self.is_blind = False
        self.away_at: float | None = None
        self.asked = 0

    def leave_out(self, tp: TP, *, for_good: bool = False) -> None:
        """Hand out nothing of it until it is resumed, or ever."""
        super().pause({tp})
        if for_good:
            self.deaf.add(tp)

    def resume(self, tps: Set[TP]) -> None:
        """Resume the others."""
        super().resume(tps - self.deaf)

    def seek(self, tp: TP, offset: int) -> None:
        """Write it down."""
        self.seeks.append((tp, offset))
        super().seek(tp, offset)

    async def end_offsets(self, tps: Set[TP]) -> Mapping[TP, int]:
        """Fail while blind."""
        self.asked += 1
        if self.is_blind:
            raise LogError("no broker answers", retriable=True)
        return await super().end_offsets(tps)

    def left_at(self) -> float | None:
        """Since when it is made to be away."""
        return self.away_at


class FaultyLog(MemoryLog):
    """Its sources can be made to fail."""

    def source(self, group, topics, on) -> FaultySource:
        """Make one."""
        return FaultySource(self, self._group(group), topics, on)


class Scene:
    """A member that reads two partitions, and a watch over it."""

    def __init__(self) -> None:
        self.log = FaultyLog()
        self.parts: dict[TP, Partition] = {}
        self.source = self.log.source("g", {"t"}, self)
        self.watch = Watch(self.parts, self.source, TIMEOUT_S)
        self.running: asyncio.Task[None]

    def assigned(self, tps: Set[TP], epoch: int) -> None:
        """Read from the beginning."""
        for tp in tps:
            part = Partition(tp, epoch, epoch, OffsetLedger())
            part.ledger.begin(0)
            part.active, part.paused = True, False
            self.parts[tp] = part
        self.source.resume(tps)

    async def revoked(self, tps: Set[TP], deadline: float) -> None:
        """Give up."""
        del deadline
        for tp in tps:
            del self.parts[tp]

    async def read(self) -> None:
        """Poll for ever, as intake does."""
        while True:
            for block in await self.source.poll(10, 0.1):
                self.parts[block.tp].ledger.admit(block.records)

    def append(self, tp: TP, count: int = 1) -> None:
        """Let records arrive."""
        self.log.append([Out(*tp, None, b"")] * count)


def play(act: Callable[[Scene], Awaitable[None]]) -> Scene:
    """Watch and read around an act."""

    async def run() -> Scene:
        scene = Scene()
        await scene.log.ensure([TopicSpec("t", 2)])
        async with scene.source:
            scene.running = asyncio.create_task(scene.watch.run())
            reading = asyncio.create_task(scene.read())
            try:
                await act(scene)
                if scene.running.done():
                    scene.running.result()
            finally:
                scene.running.cancel()
                reading.cancel()
        return scene

    return run_virtual(run())


def test_B8_a_partition_that_is_left_out_is_found_and_fetched_again():
    """Within the time-out and half of it, though the other one gets on; then it gets on, too."""

    async def act(scene: Scene) -> None:
        scene.source.leave_out(B)
        for _ in range(round(LATEST_S) + 1):
            scene.append(A)
            scene.append(B)
            await asyncio.sleep(1)
            if scene.watch.stuck:
                break
        assert scene.watch.stuck == {B}
        assert "t/1 has had records for more than 20 s" in scene.watch.trouble()
        assert scene.source.seeks == [(B, 0)]
        await asyncio.sleep(2 * LOOK_S)
        assert (scene.watch.stuck, scene.watch.trouble()) == (set(), "")
        assert scene.source.position(B) == scene.parts[B].ledger.next_offset > TIMEOUT_S

    play(act)


def test_B8_what_fetching_again_does_not_mend_ends_the_process():
    """With the partition's name, after so many times."""

    async def act(scene: Scene) -> None:
        scene.append(B, 5)
        await asyncio.sleep(1)
        scene.source.leave_out(B, for_good=True)
        scene.append(B)
        await asyncio.sleep((FETCHES + 1) * TIMEOUT_S - 1)
        assert not scene.running.done()
        assert scene.source.seeks == [(B, 5)] * FETCHES
        await asyncio.sleep(2 * LOOK_S + 1)
        assert scene.running.done()

    with pytest.raises(
        PartitionStuck, match=r"t/1 has had records .* would be 5, though it was f"
    ):
        play(act)


@pytest.mark.parametrize("why", ["idle", "paused", "not taken over"])
def test_B8_what_may_stand_still_is_not_stuck(why):
    """However long, and whatever comes for it."""

    async def act(scene: Scene) -> None:
        if why == "paused":
            scene.source.leave_out(B)
            scene.parts[B].paused = True
        elif why == "not taken over":
            scene.source.leave_out(B)
            scene.parts[B].active = False
        for _ in range(20):
            if why != "idle":
                scene.append(B)
            await asyncio.sleep(TIMEOUT_S / 2)
            assert (scene.watch.stuck, scene.watch.trouble()) == (set(), "")
        assert scene.source.seeks == []

    play(act)


def test_B8_nothing_is_judged_while_a_block_is_decoded():
    """Nobody polls meanwhile; from then on it counts."""

    async def act(scene: Scene) -> None:
        scene.source.leave_out(B)
        scene.append(B)
        scene.parts[A].decoding = 1
        await asyncio.sleep(10 * TIMEOUT_S)
        assert scene.watch.stuck == set()
        scene.parts[A].decoding = 0
        await asyncio.sleep(LATEST_S)
        assert scene.source.seeks == [(B, 0)]

    play(act)


def test_B8_what_stands_in_line_hides_no_other_partition_that_is_stuck():
    """Its partition is paused and may wait for hours, for a registry say; the others are polled."""

    async def act(scene: Scene) -> None:
        scene.source.leave_out(B)
        scene.append(B)
        scene.parts[A].decoding, scene.parts[A].paused = 1, True
        await asyncio.sleep(LATEST_S)
        assert scene.source.seeks == [(B, 0)]

    play(act)


def test_B8_records_that_come_late_do_not_count_from_before():
    """A partition may be idle for long, and its first record be looked at a moment after it came."""

    async def act(scene: Scene) -> None:
        await asyncio.sleep(10 * TIMEOUT_S + LOOK_S - 0.05)
        scene.append(B)
        await asyncio.sleep(0.06)
        assert scene.watch.stuck == set()

    play(act)


def test_the_log_is_not_asked_for_what_moves():
    """Only who stands still needs an end."""

    async def act(scene: Scene) -> None:
        for _ in range(100):
            scene.append(A)
            scene.append(B)
            await asyncio.sleep(1)
        assert scene.source.asked == 0

    play(act)


def test_B7_a_log_that_does_not_answer_takes_readiness_and_ends_nothing():
    """It is nobody's fault here, and over when an end is told."""

    async def act(scene: Scene) -> None:
        scene.source.is_blind = True
        await asyncio.sleep(LATEST_S)
        assert "where partitions end" in scene.watch.trouble()
        await asyncio.sleep(10 * TIMEOUT_S)
        assert scene.watch.stuck == set()
        scene.source.is_blind = False
        await asyncio.sleep(LOOK_S)
        assert scene.watch.trouble() == ""

    play(act)


def test_B7_a_group_that_does_not_answer_takes_readiness():
    """A member that nothing is assigned to has nothing that could stand still."""

    async def act(scene: Scene) -> None:
        scene.source.away_at = asyncio.get_running_loop().time()
        await asyncio.sleep(TIMEOUT_S)
        assert scene.watch.trouble() == ""
        await asyncio.sleep(0.1)
        assert "which partitions are ours" in scene.watch.trouble()
        scene.source.away_at = None
        assert scene.watch.trouble() == ""

    play(act)
