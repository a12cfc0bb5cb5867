"""Instances of one model version, each with a thread of its own: the one crossing from loop to model.

A thread takes one piece of work at a time and posts the outcome back to the loop. An instance that dies, hangs or
says that it is not healthy is out of service, and says so (FAULTS B42), until it is replaced by a new one
(`Supervision`); its work is never left hanging.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from headrace.backends.backend import Instance
from headrace.consumers.execution import Execution
from headrace.consumers.recovery import NotBegun
from headrace.consumers.runner import Done, Runner, Work
from headrace.consumers.supervision import (
    LOOK_S,
    MAX_RENEWALS,
    InstancesExhausted,
    Supervision,
)

__all__ = ["Done", "Pool", "Work"]

logger = logging.getLogger(__name__)


class _Place:
    """What the loop knows of an instance number.

    Attributes:
        runner: Who serves it; None while nobody does.
        waiting: Work that was given and has not ended, in order.
        ended: Pieces of work that have ended on this runner.
        trouble: Why nobody serves it, ``""`` if somebody does.
        failures: Times that it went away, or could not be made, since something last succeeded.
        starved: Single requests in a row that ran out of memory.
        closes: The old instance may be closed: no thread is in it.
        is_gone: It could not be replaced, or not for a long time.
        is_blocked: It is not even tried, until a thread that hangs comes back.
        is_leaving: It is replaced as soon as it has ended what it was given.
    """

    __slots__ = (
        "closes",
        "ended",
        "failures",
        "is_blocked",
        "is_gone",
        "is_leaving",
        "runner",
        "starved",
        "trouble",
        "waiting",
    )

    def __init__(self, runner: Runner) -> None:
        self.runner: Runner | None = runner
        self.waiting: deque[Done] = deque()
        self.ended = 0
        self.trouble = ""
        self.failures = 0
        self.starved = 0
        self.closes = True
        self.is_gone = False
        self.is_blocked = False
        self.is_leaving = False


class Pool:
    """Free and busy instances; used from the loop's thread only.

    Attributes:
        free: Numbers of the instances that wait for work, the longest-waiting first.
    """

    def __init__(self, instances: Sequence[Instance], name: str) -> None:
        """Keep the instances, index = instance number; `start` makes the threads, in whose names ``name`` shows."""
        self.free: deque[int] = deque()
        self._name = name
        self._places = [
            _Place(Runner(number, instance)) for number, instance in enumerate(instances)
        ]
        self._supervision: Supervision | None = None
        self._abandoned: set[Runner] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._is_closing = False

    def start(self, supervision: Supervision | None = None) -> None:
        """Start one thread per instance; called once, inside the running loop.

        Args:
            supervision: How an instance that goes away is replaced; None leaves it out of service.
        """
        self._supervision = supervision
        for place in self._places:
            assert place.runner is not None
            self._launch(place.runner, self._serve)
        self.free.extend(range(len(self._places)))
        if supervision is not None:
            self._later(LOOK_S, self._look)

    @property
    def busy(self) -> int:
        """Number of instances at work."""
        return sum(bool(place.waiting) for place in self._places)

    def next_staging(self) -> int | None:
        """Return the number of an instance that is at work and has nothing else, None if there is none."""
        for number, place in enumerate(self._places):
            if len(place.waiting) == 1 and not place.is_leaving:
                return number
        return None

    def healthy(self) -> bool:
        """Whether every instance has its thread and can execute."""
        return all(
            place.runner is not None and place.runner.is_healthy() for place in self._places
        )

    def trouble(self) -> str:
        """Return why some instance cannot execute, ``""`` if all can."""
        for number, place in enumerate(self._places):
            if place.runner is None:
                return (
                    f"instance {number} of '{self._name}' cannot execute: {self._why_gone(place)}"
                )
            if not place.runner.is_healthy():
                return f"instance {number} of '{self._name}' reports that it is not healthy"
        return ""

    def submit(self, number: int, work: Work, done: Done) -> None:
        """Give work to an instance; ``done`` is called in the loop with its outcome.

        An instance with no other work is free again before ``done`` runs. Where the instance goes away, the outcome
        is what ended it, or `NotBegun` for work that was not begun.
        """
        place = self._places[number]
        assert place.runner is not None, "nobody serves this number"
        if not place.waiting:
            self.free.remove(number)
        place.waiting.append(done)
        place.runner.put(work, done)

    def abandon(self, number: int, error: BaseException) -> None:
        """Give up what an instance is at: its thread is left behind, and whatever that still brings is dropped.

        The work is ``done`` with the error; what was given ahead, with `NotBegun`.
        """
        place = self._places[number]
        runner = place.runner
        if runner is None or not place.waiting:
            return
        runner.abandon()
        self._abandoned.add(runner)
        self._count_abandoned(1)
        self._leave(number, error, f"an execution was given up ({error})", closes=False)

    async def close(self, timeout_s: float) -> bool:
        """End the threads after their current work; returns False if one is still busy after the time."""
        self._is_closing = True
        for timer in self._timers:
            timer.cancel()
        runners = [place.runner for place in self._places if place.runner is not None]
        for runner in runners:
            runner.end()
        deadline = asyncio.get_running_loop().time() + timeout_s
        threads = [runner.thread for runner in runners if runner.thread is not None]
        for thread in threads:
            left = max(0.0, deadline - asyncio.get_running_loop().time())
            await asyncio.to_thread(thread.join, left)
        left_behind = [runner.thread for runner in self._abandoned if runner.thread is not None]
        return not any(thread.is_alive() for thread in (*threads, *left_behind))

    def _launch(
        self, runner: Runner, target: Callable[[asyncio.AbstractEventLoop, Runner], None]
    ) -> None:
        work = partial(target, asyncio.get_running_loop(), runner)
        runner.launch(work, f"{self._name}-{runner.number}")

    def _serve(self, loop: asyncio.AbstractEventLoop, runner: Runner) -> None:
        """Work for the loop; in the instance's thread."""
        runner.serve(loop, self._returned, self._came_back)

    def _revive(self, loop: asyncio.AbstractEventLoop, runner: Runner) -> None:
        """Make the instance first; in its thread."""
        assert self._supervision is not None
        make = partial(self._supervision.renew, runner.number, self._places[runner.number].closes)
        if runner.revive(make, loop, self._renewed):
            self._serve(loop, runner)

    def _returned(self, runner: Runner, outcome: Execution | BaseException, done: Done) -> None:
        if not runner.is_abandoned:
            self._finished(runner.number, outcome, done)

    def _finished(self, number: int, outcome: Execution | BaseException, done: Done) -> None:
        place = self._places[number]
        if isinstance(outcome, BaseException):
            self._leave(number, outcome, f"it died of {outcome!r}")
            return
        place.ended += 1
        place.waiting.popleft()
        place.starved = place.starved + 1 if outcome.starved else 0
        if not outcome.failed:
            place.failures = 0
        why = "" if self._supervision is None else self._why_not(place, self._supervision)
        place.is_leaving = bool(why)
        if not place.waiting and not why:
            self.free.append(number)
        done(number, outcome)
        if why and not place.waiting:
            self._leave(number, NotBegun(), why)

    def _why_not(self, place: _Place, supervision: Supervision) -> str:
        """Return why an instance should be replaced though it returned, ``""`` if it should not."""
        if place.starved >= supervision.max_starved:
            return f"{place.starved} single requests in a row ran out of memory"
        assert place.runner is not None
        return "" if place.runner.is_healthy() else "it reports that it is not healthy"

    def _leave(self, number: int, exc: BaseException, why: str, *, closes: bool = True) -> None:
        """Take an instance out of service, answer what it was given, and replace it."""
        place = self._places[number]
        runner = place.runner
        assert runner is not None
        begun = runner.begun - place.ended
        runner.end()  # one that returned waits for work
        waiting, place.waiting = place.waiting, deque()
        place.runner, place.ended, place.is_leaving = None, 0, False
        place.trouble, place.closes = why, closes
        place.failures += 1
        place.starved = 0
        if number in self.free:
            self.free.remove(number)
        logger.error("instance %d of '%s' cannot execute: %s", number, self._name, why)
        for place_in_line, done in enumerate(waiting):
            done(number, exc if place_in_line < begun else NotBegun())
        self._replace(number)

    def _replace(self, number: int) -> None:
        """Make a new instance after a pause, unless too many threads hang already."""
        supervision, place = self._supervision, self._places[number]
        if supervision is None or self._is_closing:
            return
        if len(self._abandoned) > supervision.max_abandoned:
            place.is_gone = place.is_blocked = True
            self._check_rest()
            return
        pause_s = 0.0
        if place.failures > 1:
            doubled = supervision.backoff_s * 2.0 ** min(place.failures - 2, 40)
            pause_s = min(doubled, supervision.backoff_max_s)
        self._later(pause_s, self._renew, number)

    def _renew(self, number: int) -> None:
        self._launch(Runner(number, None), self._revive)

    def _renewed(self, runner: Runner, failed: BaseException | None) -> None:
        number = runner.number
        place = self._places[number]
        if self._is_closing:
            runner.end()
            return
        if failed is None and not runner.is_healthy():
            runner.end()
            failed = RuntimeError("the new instance reports that it is not healthy")
        if failed is not None:
            self._not_renewed(place, failed)
            self._replace(number)
            return
        logger.warning("instance %d of '%s' is replaced by a new one", number, self._name)
        place.runner, place.trouble, place.is_gone = runner, "", False
        self.free.append(number)
        assert self._supervision is not None
        self._supervision.restarted()
        self._supervision.changed()

    def _not_renewed(self, place: _Place, failed: BaseException) -> None:
        place.failures += 1
        place.trouble = f"it cannot be made anew, trying again: {failed}"
        logger.error("an instance of '%s': %s", self._name, place.trouble)
        place.is_gone = place.failures > MAX_RENEWALS
        self._check_rest()

    def _came_back(self, runner: Runner) -> None:
        """Take note that an abandoned thread has ended: there is room for another one."""
        self._abandoned.discard(runner)
        self._count_abandoned(-1)
        for number, place in enumerate(self._places):
            if place.is_blocked:
                place.is_gone = place.is_blocked = False
                self._replace(number)

    def _look(self) -> None:
        """Replace idle instances that are not healthy any more; say again what nobody may have heard."""
        for number in tuple(self.free):
            runner = self._places[number].runner
            if runner is not None and not runner.is_healthy():
                self._leave(number, NotBegun(), "it reports that it is not healthy")
        self._check_rest()
        self._later(LOOK_S, self._look)

    def _check_rest(self) -> None:
        """Say so if nothing can execute any more."""
        assert self._supervision is not None
        gone = [place for place in self._places if place.is_gone]
        if gone and (self._supervision.bound or len(gone) == len(self._places)):
            self._supervision.exhausted(
                InstancesExhausted(
                    f"nothing of '{self._name}' can execute any more: {self._why_gone(gone[0])}"
                )
            )

    def _why_gone(self, place: _Place) -> str:
        if not place.is_blocked or self._supervision is None:
            return place.trouble
        return (
            f"{place.trouble}; it is not replaced, for {len(self._abandoned)} given-up executions hang, expected at "
            f"most {self._supervision.max_abandoned} (max_abandoned_executions)"
        )

    def _count_abandoned(self, more: int) -> None:
        if self._supervision is not None:
            self._supervision.abandoned(more)

    def _later(self, delay_s: float, call: Callable[..., None], *arguments: object) -> None:
        def run() -> None:
            self._timers.discard(timer)
            call(*arguments)

        timer = asyncio.get_running_loop().call_later(delay_s, run)
        self._timers.add(timer)
