"""Workers that die of certain requests, on virtual time, and a supervisor that starts them again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from headrace.backends.backend import Instance
from headrace.consumers.pool import Done, Work
from headrace.schemas.batch import Batch, Entry
from headrace.schemas.record import TP, Record
from headrace.schemas.requests import Decoded, RequestDecoder
from simulated import WORKER, Fleet, SimulatedPool

RESTART_S = 0.5
"""After so long the supervisor starts another worker in place of a dead one, seconds of virtual time."""


class DeadlyPool(SimulatedPool):
    """Instances on which certain requests end the whole worker, some time after they have begun."""

    def __init__(
        self,
        instances: Sequence[Instance],
        name: str,
        *,
        is_deadly: Callable[[Entry], bool],
        die: Callable[[Sequence[str]], None],
    ) -> None:
        super().__init__(instances, name)
        self._is_deadly = is_deadly
        self._die = die
        self._executing: list[Batch] = []

    def submit(self, number: int, work: Work, done: Done) -> None:
        """Run, or die: others on other instances end, or die with it. Now, or after what the instance is at."""
        if number not in self.free:
            asyncio.get_running_loop().call_later(0.001, self.submit, number, work, done)
            return
        batch: Batch = work.keywords["batch"]  # type: ignore[attr-defined]  # a partial of `execute`
        self._executing.append(batch)
        entries = [entry for entry in batch.entries if entry is not None]
        if not any(map(self._is_deadly, entries)):

            def ended(number: int, outcome: object) -> None:
                self._executing.remove(batch)
                done(number, outcome)  # type: ignore[arg-type]  # passed on as it came

            super().submit(number, work, ended)
            return
        self.free.remove(number)
        delay_s = self.rng.choice(self.delays_s)
        asyncio.get_running_loop().call_later(delay_s, self._dies)

    def _dies(self) -> None:
        everybody = [entry for batch in self._executing for entry in batch.entries if entry]
        self._die([f"{e.tp.topic}/{e.tp.partition}/{e.record.offset}" for e in everybody])


class Died(BaseException):
    """What runs of a worker that has just died: nothing more."""


class DeadlyReading:
    """Makes the decoder end the worker that reads a certain value, as a fault of a parser's does.

    Attributes:
        alone: Record → how many have died of it while they read nothing else.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, value: bytes) -> None:
        self.alone: Counter[str] = Counter()
        self.fleets: list[Fleet] = []
        self._value = value
        self._decode = RequestDecoder.decode
        monkeypatch.setattr(RequestDecoder, "decode", self._planted())

    def _planted(self) -> Callable[..., Decoded]:
        def decode(
            decoder: RequestDecoder, tp: TP, epoch: int, records: Sequence[Record]
        ) -> Decoded:
            if all(record.value != self._value for record in records):
                return self._decode(decoder, tp, epoch, records)
            if len(records) == 1:
                self.alone[f"{tp.topic}/{tp.partition}/{records[0].offset}"] += 1
            (fleet,) = self.fleets
            assert isinstance(fleet, DeadlyFleet)
            fleet.die(WORKER.get(), ())
            raise Died

        return decode


class DeadlyFleet(Fleet):
    """A fleet whose workers die of certain requests, and are started again.

    Attributes:
        deaths: How many workers have died of a request.
        alone: Record → how many have died while nothing else executed there.
    """

    def __init__(
        self,
        *args: object,
        is_deadly: Callable[[Entry], bool],
        deadly_pool: type[DeadlyPool] = DeadlyPool,
        **how: object,
    ) -> None:
        super().__init__(*args, pool=deadly_pool, **how)  # type: ignore[arg-type]  # a fleet's
        self._deadly_pool = deadly_pool
        self.deaths = 0
        self.alone: Counter[str] = Counter()
        self._is_deadly = is_deadly
        self._restarting: set[asyncio.Task[None]] = set()

    def pool_of(self, name: str) -> Callable[[Sequence[Instance], str], DeadlyPool]:
        """Make pools that end this worker."""
        return partial(self._deadly_pool, is_deadly=self._is_deadly, die=partial(self.die, name))

    def die(self, name: str, executing: Sequence[str]) -> None:
        """End a worker that executes these records, and start another one later."""
        if name not in self.running:
            return  # it is dead already
        self.kill(name)
        self.deaths += 1
        self._log.faults += 1
        if len(executing) == 1:
            self.alone[executing[0]] += 1
        task = asyncio.create_task(self._again())
        self._restarting.add(task)
        task.add_done_callback(self._restarting.discard)

    async def _again(self) -> None:
        await asyncio.sleep(RESTART_S)
        await self.start()

    async def stop(self) -> None:
        """Stop all gracefully and wait, also for who is being started."""
        if self._restarting:
            await asyncio.wait(self._restarting)
        await super().stop()
