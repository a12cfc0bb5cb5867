"""Workers that die of certain requests, on virtual time, and a supervisor that starts them again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from headrace.backends.backend import Instance
from headrace.consumers.pool import Done, Work
from headrace.schemas.batch import Batch, Entry
from simulated import Fleet, SimulatedPool

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
        return partial(self._deadly_pool, is_deadly=self._is_deadly, die=partial(self._die, name))

    def _die(self, name: str, executing: Sequence[str]) -> None:
        if name not in self.running:
            return  # it is dead already
        self.deaths += 1
        self._log.faults += 1
        if len(executing) == 1:
            self.alone[executing[0]] += 1
        task = asyncio.create_task(self._again(name))
        self._restarting.add(task)
        task.add_done_callback(self._restarting.discard)

    async def _again(self, name: str) -> None:
        if name in self.running:
            await self.crash(name)
        await asyncio.sleep(RESTART_S)
        await self.start()

    async def stop(self) -> None:
        """Stop all gracefully and wait, also for who is being started."""
        if self._restarting:
            await asyncio.wait(self._restarting)
        await super().stop()
