"""Instances of one model version, each with a thread of its own: the one crossing from loop to model.

A thread takes one piece of work at a time and posts the outcome back to the loop. A thread that dies takes
its instance out of service and says so (FAULTS B42); it never leaves work hanging.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from headrace.backends.backend import Instance
from headrace.consumers.execution import Execution

Work: TypeAlias = Callable[[Instance], Execution]
Done: TypeAlias = Callable[[int, Execution | BaseException], None]


class Pool:
    """Free and busy instances; used from the loop's thread only.

    Attributes:
        instances: As loaded, index = instance number.
        free: Numbers of the instances that wait for work, the longest-waiting first.
    """

    def __init__(self, instances: Sequence[Instance], name: str) -> None:
        """Keep the instances; `start` makes the threads. ``name`` shows in thread names."""
        self.instances = instances
        self.free: deque[int] = deque()
        self._name = name
        self._queues: list[queue.SimpleQueue[tuple[Work, Done] | None]] = []
        self._threads: list[threading.Thread] = []
        # Pieces of work that each instance has, the one at work included.
        self._load = [0] * len(instances)
        self._dead: set[int] = set()

    def start(self) -> None:
        """Start one thread per instance; called once, inside the running loop."""
        loop = asyncio.get_running_loop()
        for number, instance in enumerate(self.instances):
            work: queue.SimpleQueue[tuple[Work, Done] | None] = queue.SimpleQueue()
            thread = threading.Thread(
                target=self._serve,
                args=(loop, number, instance, work),
                name=f"{self._name}-{number}",
                daemon=True,  # a hung model must not keep the process from ending
            )
            self._queues.append(work)
            self._threads.append(thread)
            thread.start()
        self.free.extend(range(len(self.instances)))

    @property
    def busy(self) -> int:
        """Number of instances at work."""
        return sum(load > 0 for load in self._load)

    def next_staging(self) -> int | None:
        """Return the number of an instance that is at work and has nothing else, None if there is none."""
        for number, load in enumerate(self._load):
            if load == 1 and number not in self._dead:
                return number
        return None

    def healthy(self) -> bool:
        """Whether every instance has its thread and can execute."""
        return not self._dead and all(instance.healthy() for instance in self.instances)

    def submit(self, number: int, work: Work, done: Done) -> None:
        """Give work to an instance; ``done`` is called in the loop with its outcome.

        An instance with no other work is free again before ``done`` runs.
        """
        if self._load[number] == 0:
            self.free.remove(number)
        self._load[number] += 1
        self._queues[number].put((work, done))

    async def close(self, timeout_s: float) -> bool:
        """End the threads after their current work; returns False if one is still busy after the time."""
        for work in self._queues:
            work.put(None)
        deadline = asyncio.get_running_loop().time() + timeout_s
        for thread in self._threads:
            left = max(0.0, deadline - asyncio.get_running_loop().time())
            await asyncio.to_thread(thread.join, left)
        return not any(thread.is_alive() for thread in self._threads)

    def _serve(
        self,
        loop: asyncio.AbstractEventLoop,
        number: int,
        instance: Instance,
        work: queue.SimpleQueue[tuple[Work, Done] | None],
    ) -> None:
        while (item := work.get()) is not None:
            run, done = item
            outcome: Execution | BaseException
            try:
                outcome = run(instance)
            except BaseException as exc:  # noqa: BLE001  # the thread dies of it, and the loop must know
                outcome = exc
            try:
                loop.call_soon_threadsafe(self._finished, number, outcome, done)
            except RuntimeError:
                return  # the loop is closed: the process is ending, nobody waits for this
            if isinstance(outcome, BaseException):
                return

    def _finished(self, number: int, outcome: Execution | BaseException, done: Done) -> None:
        self._load[number] -= 1
        if not isinstance(outcome, BaseException):
            if self._load[number] == 0:
                self.free.append(number)
            done(number, outcome)
            return
        self._dead.add(number)
        done(number, outcome)
        # Nobody serves the queue of a dead thread: what was given ahead dies with it.
        while self._load[number] > 0:
            self._load[number] -= 1
            item = self._queues[number].get()
            if item is not None:
                item[1](number, outcome)
