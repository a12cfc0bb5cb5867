"""One model version at work: asks its batcher for a batch whenever an instance is free, and runs it.

`Scheduler.dispatch` is called after every change (records offered, an instance freed, the timer fired, a
drain begun): it assigns what it can and sets the one timer to the batcher's `wake_at`. It never waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol

from headrace.consumers.batcher import Batcher, Refusal
from headrace.consumers.execution import Execution, execute
from headrace.consumers.pool import Done, Work
from headrace.consumers.sequence_batcher import SequenceBatcher
from headrace.consumers.settings import Clock
from headrace.schemas.batch import Batch, Entry
from headrace.schemas.errors import Reason
from headrace.schemas.record import TP

STAGE_BATCHES = 4
"""Full batches that must wait before an instance at work gets its next one."""

STAGE_BELOW_NS = 5_000_000
"""Executions longer than this gain nothing by it: their requests rather stay where they can expire and be cancelled."""


class Instances(Protocol):
    """What the scheduler needs of a pool: `headrace.consumers.pool.Pool`, or a test's own."""

    @property
    def busy(self) -> int:
        """Number of instances at work."""

    @property
    def free(self) -> Collection[int]:
        """Numbers of the free instances, the longest free first."""

    def next_staging(self) -> int | None:
        """Number of an instance that is at work and has nothing else to do after that."""

    def submit(self, number: int, work: Work, done: Done) -> None:
        """Run work on an instance, now or after what it is at, and call ``done`` in the loop."""


class Outcomes(Protocol):
    """Who answers: the worker of the model."""

    def executed(self, scheduler: Scheduler, batch: Batch, execution: Execution) -> None:
        """A batch ran; its instance already has its next one."""

    def refused(self, scheduler: Scheduler, refusals: Sequence[Refusal]) -> None:
        """Entries left the queue without running."""

    def broken(self, scheduler: Scheduler, batch: Batch, exc: BaseException) -> None:
        """An instance's thread died with a batch (FAULTS B42)."""

    def failed(self, scheduler: Scheduler, exc: BaseException) -> None:
        """The scheduler itself failed, by a bug: what it holds may never be answered, so somebody must know."""


class Scheduler:
    """Batcher, instances and timer of one model version.

    Attributes:
        version: Version number.
        batcher: The only queue.
        draining: Nothing is held back for a better batch any more.
        executing: Entries in batches at work.
    """

    def __init__(
        self,
        version: int,
        batcher: Batcher,
        instances: Instances,
        outcomes: Outcomes,
        *,
        run: Callable[..., Execution] = execute,
        repeatable: bool = True,
        decoupled: bool = False,
        stage_rows: int = 0,
        max_state_bytes: int = 0,
        clock: Clock,
    ) -> None:
        """Tie the parts together; nothing runs before entries are offered.

        Args:
            version: Version number.
            batcher: The only queue.
            instances: Where batches run.
            outcomes: Who answers.
            run: Executes a batch on an instance.
            repeatable: A failed batch may be split and run again.
            decoupled: The model gives 0..n responses.
            stage_rows: Rows of a full batch, for a dynamic batcher without priorities: behind a deep queue its
                instances get their next batch before they have ended the one they are at. 0 never does that.
            max_state_bytes: Largest state of a sequence, where its size varies; 0 is any.
            clock: Time.
        """
        self.version = version
        self.batcher = batcher
        self.draining = False
        self.executing = 0
        self._instances = instances
        self._outcomes = outcomes
        self._run = partial(
            run,
            repeatable=repeatable,
            decoupled=decoupled,
            now_ns=clock.now_ns,
            max_state_bytes=max_state_bytes,
        )
        self._now_ns = clock.now_ns
        self._stage_above = STAGE_BATCHES * stage_rows
        self._last_run_ns = STAGE_BELOW_NS
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0

    @property
    def idle(self) -> bool:
        """Whether nothing is queued and nothing runs."""
        return self.executing == 0 and len(self.batcher) == 0

    def offer(self, entries: Sequence[Entry]) -> Sequence[Refusal]:
        """Queue entries and start what can start; returns those that the queue has no room for."""
        refusals = self.batcher.offer(entries, self._now_ns())
        self.dispatch()
        while full := [
            r.entry
            for r in refusals
            # A step of a sequence that was refused has ended it.
            if r.error.reason is Reason.QUEUE_FULL and r.entry.sequence is None
        ]:
            # A block comes all at once: what found the queue full may fit after the batches that just left it.
            again = {id(entry) for entry in full}
            others = [r for r in refusals if id(r.entry) not in again]
            refusals = [*others, *self.batcher.offer(full, self._now_ns())]
            if len(refusals) == len(others) + len(full):
                break
            self.dispatch()
        return refusals

    def dispatch(self) -> None:
        """Give each free instance its next batch, and set the timer."""
        now = self._now_ns()
        for free in tuple(self._instances.free):
            # All are asked: a sequence is bound to one instance, which has work where the others have none (SB-11).
            self._give(free, now)
        if self._stage_above and self._last_run_ns < STAGE_BELOW_NS:
            # The queue holds several full batches, so none gets better by waiting until an instance is free; and a
            # short run would be followed by a wait for us, who may be decoding.
            while (
                len(self.batcher) >= self._stage_above
                and (number := self._instances.next_staging()) is not None
            ):
                if not self._give(number, now):
                    break
        self._set_timer()

    def dispatch_soon(self) -> None:
        """Dispatch once the caller is through: slots became free otherwise than by a batch's end."""
        self._wake(self._now_ns())

    def _give(self, number: int, now: int) -> bool:
        batch = self.batcher.take(number, now, flush=self.draining)
        if batch is None:
            return False
        self.executing += len(batch)
        self._instances.submit(number, partial(self._run, batch=batch), partial(self._done, batch))
        return True

    def drain(self) -> None:
        """Hold nothing back from now on."""
        self.draining = True
        self.dispatch()

    def drop(self, tp: TP) -> Sequence[Entry]:
        """Remove the queued entries of a partition without answering."""
        dropped = self.batcher.drop(tp)
        self.dispatch_soon()
        return dropped

    def suspend(self, tp: TP) -> Sequence[Entry]:
        """Remove the queued entries of a partition of a sequence model, and keep what is known of its sequences."""
        assert isinstance(self.batcher, SequenceBatcher)
        while refusals := self.batcher.expire(self._now_ns()):
            self._outcomes.refused(self, refusals)
        dropped = self.batcher.suspend(tp)
        self.dispatch_soon()
        return dropped

    def cancel(self, ids: set[bytes]) -> None:
        """Answer and remove the queued entries with these correlation ids."""
        refusals = self.batcher.cancel(ids)
        if refusals:
            self._outcomes.refused(self, refusals)
            self.dispatch()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _done(self, batch: Batch, number: int, outcome: Execution | BaseException) -> None:  # noqa: ARG002  # the pool's callback shape
        try:
            self.executing -= len(batch)
            self.batcher.done(batch, self._now_ns())
            if isinstance(outcome, Execution):
                self._last_run_ns = outcome.ended_ns - outcome.started_ns
            # The next batch first: the model runs while we encode this one's answers.
            self.dispatch()
            if isinstance(outcome, Execution):
                self._outcomes.executed(self, batch, outcome)
            else:
                self._outcomes.broken(self, batch, outcome)
        except Exception as exc:  # noqa: BLE001  # a callback of the loop: nobody else would hear of it (FAULTS B42)
            self._outcomes.failed(self, exc)

    def _set_timer(self) -> None:
        self._wake(self.batcher.wake_at())

    def _wake(self, wake_ns: int | None) -> None:
        if self._timer is not None:
            if wake_ns is not None and wake_ns >= self._timer_ns:
                return  # it fires early enough and looks again
            self._timer.cancel()
            self._timer = None
        if wake_ns is None:
            return
        delay_s = max(0, wake_ns - self._now_ns()) / 1e9
        self._timer_ns = wake_ns
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            refusals = self.batcher.expire(self._now_ns())
            if refusals:
                self._outcomes.refused(self, refusals)
            self.dispatch()
        except Exception as exc:  # noqa: BLE001  # as in `_done`
            self._outcomes.failed(self, exc)
