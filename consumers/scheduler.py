"""One model version at work: asks its batcher for a batch whenever an instance is free, and runs it.

`Scheduler.dispatch` is called after every change (records offered, an instance freed, the timer fired, a
drain begun): it assigns what it can and sets the one timer to the batcher's `wake_at`. It never waits.

What failed and may be tried again (`headrace.consumers.recovery`) counts as executing until its last try, so that
a drain and a revocation wait for it as for what runs, and goes before what the batcher has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from headrace.consumers.alone import Alone, split
from headrace.consumers.batcher import Batcher, Refusal
from headrace.consumers.ceiling import Ceiling
from headrace.consumers.emitting import Emitting
from headrace.consumers.execution import Execution, Ticket, execute
from headrace.consumers.instances import Instances
from headrace.consumers.line import LineBatcher
from headrace.consumers.overdue import Overdue
from headrace.consumers.recovery import FaultBounds, Faults, Recovery
from headrace.consumers.retry import Held, Retries
from headrace.consumers.sequence_batcher import SequenceBatcher
from headrace.consumers.settings import Clock
from headrace.schemas.batch import Batch, Entry
from headrace.schemas.errors import (
    BackendError,
    DeadlineExceeded,
    ExecutionTimeout,
    InferError,
    Reason,
)
from headrace.schemas.record import TP

STAGE_BATCHES = 4
"""Full batches that must wait before an instance at work gets its next one."""

STAGE_BELOW_NS = 5_000_000
"""Executions longer than this gain nothing by it: their requests rather stay where they can expire and be cancelled."""


class Outcomes(Protocol):
    """Who answers: the worker of the model."""

    def executed(self, scheduler: Scheduler, batch: Batch, execution: Execution) -> None:
        """A batch ran; its instance already has its next one."""

    def refused(self, scheduler: Scheduler, refusals: Sequence[Refusal]) -> None:
        """Entries left the queue without running."""

    def broken(self, scheduler: Scheduler, refusals: Sequence[Refusal]) -> None:
        """Entries were tried for the last time: their instance died with them, or they ran for too long (B42)."""

    def failed(self, scheduler: Scheduler, exc: BaseException) -> None:
        """The scheduler itself failed, by a bug: what it holds may never be answered, so somebody must know."""


class Scheduler:
    """Batcher, instances and timer of one model version.

    Attributes:
        version: Version number.
        batcher: The only queue.
        draining: Nothing is held back for a better batch any more.
        executing: Entries in batches at work, and those that are tried again later.
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
        emitting: Emitting | None = None,
        stage_rows: int = 0,
        max_state_bytes: int = 0,
        max_rows: int = 0,
        bounds: FaultBounds | None = None,
        faults: Faults | None = None,
        alone: Alone | None = None,
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
            emitting: Of a model that gives 0..n responses; None for others.
            stage_rows: Rows of a full batch, for a dynamic batcher without priorities, or sequences with declared
                states: behind a deep queue its instances get their next batch before they have ended the one they are
                at. 0 never does that.
            max_state_bytes: Largest state of a sequence, where its size varies; 0 is any.
            max_rows: The model's ``max_batch_size``.
            bounds: Of retries, of executions, and of the memory of memory errors.
            faults: Who counts them.
            alone: Holds this back while a suspect of the process runs (P-14).
            clock: Time.
        """
        self.version = version
        self.batcher = batcher
        self.draining = False
        self.executing = 0
        self._instances = instances
        self._outcomes = outcomes
        self._alone = alone or Alone(0.0)
        self._alone.join(self)
        bounds = bounds or FaultBounds()
        ceiling = Ceiling(max_rows, bounds.ceiling_hold_ns)
        self._retries = Retries(bounds.retry)
        self._recovery = Recovery(self._retries, ceiling, faults, repeatable=repeatable)
        self._timeout_ns = bounds.execution_timeout_ns
        self._overdue = (
            Overdue(self._timeout_ns, clock.now_ns, self._give_up) if self._timeout_ns else None
        )
        self._run = partial(
            run,
            repeatable=repeatable,
            decoupled=emitting is not None,
            now_ns=clock.now_ns,
            max_state_bytes=max_state_bytes,
            ceiling=ceiling,
        )
        self._emitting = emitting
        self._now_ns = clock.now_ns
        self._stage_rows = stage_rows
        self._stage_above = STAGE_BATCHES * stage_rows
        self._last_run_ns = STAGE_BELOW_NS
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0

    @property
    def busy(self) -> int:
        """Number of instances at work."""
        return self._instances.busy

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
        if self._recovery.ceiling.rows and self._recovery.rise(now):
            self.batcher.limit(self._recovery.ceiling.rows)
        for free in tuple(self._instances.free):
            if self._alone.is_closed:
                break
            # All are asked: a sequence is bound to one instance, which has work where the others have none (SB-11).
            if self._retries and (again := self._retries.take(now)) is not None:
                self._submit(free, again)
            else:
                self._give(free, now)
        if self._alone.is_closed:
            self._alone.look()
        elif self._stage_above and self._last_run_ns < STAGE_BELOW_NS:
            # The queue holds several full batches, so none gets better by waiting until an instance is free; and a
            # short run would be followed by a wait for us, who may be decoding.
            while (number := self._instances.next_staging()) is not None:
                if not self._has_more(number) or not self._give(number, now):
                    break
                if self._alone.is_closed:
                    break
        self._set_timer()

    def _has_more(self, number: int) -> bool:
        """Whether an instance at work would get a full batch next, too."""
        if isinstance(self.batcher, LineBatcher):
            return self.batcher.ready(number) >= self._stage_rows
        return len(self.batcher) >= self._stage_above

    def dispatch_soon(self) -> None:
        """Dispatch once the caller is through: slots became free otherwise than by a batch's end."""
        self._wake(self._now_ns())

    def _give(self, number: int, now: int) -> bool:
        batch = self.batcher.take(number, now, flush=self.draining)
        if batch is None:
            return False
        self.executing += len(batch)
        self._submit(number, batch)
        return True

    def _submit(self, number: int, batch: Batch) -> None:
        row = self._alone.row(batch)
        if row is None:
            self._start(number, batch)
            return
        suspect, rest = split(batch, row, keeps_rows=not self._recovery.repeatable)
        self.executing += len(suspect) + (len(rest) if rest else 0) - len(batch)
        if rest is not None:
            self._start(number, rest)
        self._alone.close(suspect, partial(self._start, number, suspect))

    def _start(self, number: int, batch: Batch) -> None:
        ticket = None if self._overdue is None else self._overdue.begin(number)
        work = partial(self._run, batch=batch, ticket=ticket)
        if self._emitting is not None:
            work = partial(work, heard=self._emitting.begin(batch, ticket))
        self._instances.submit(number, work, partial(self._done, batch, ticket))

    def drain(self) -> None:
        """Hold nothing back from now on."""
        self.draining = True
        self.dispatch()

    def drop(self, tp: TP) -> Sequence[Entry]:
        """Remove the queued entries of a partition without answering."""
        dropped = self.batcher.drop(tp)
        if self._retries and (held := self._retries.drop(tp)):
            dropped = [*dropped, *self._let_go(held)]
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
        """Answer and remove the queued entries with these correlation ids; tell a decoupled model of those it runs."""
        if self._emitting is not None:
            self._emitting.cancel(ids)
        refusals = self.batcher.cancel(ids)
        if refusals:
            self._outcomes.refused(self, refusals)
            self.dispatch()

    def fail(self, exc: BaseException) -> None:
        """Tell whoever answers that nothing of this can go on."""
        self._outcomes.failed(self, exc)

    def close(self) -> None:
        """Stop the timers."""
        if self._overdue is not None:
            self._overdue.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _done(
        self,
        batch: Batch,
        ticket: Ticket | None,
        number: int,
        outcome: Execution | BaseException,
    ) -> None:
        try:
            if ticket is not None and self._overdue is not None:
                self._overdue.end(ticket)
            if self._emitting is not None:
                self._emitting.end(batch)
            if self._alone.is_closed:
                self._alone.ended(batch)
            if isinstance(outcome, Execution):
                self._ran(batch, outcome)
            else:
                if ticket is not None:
                    ticket.void()
                self._lost(batch, number, outcome)
        except Exception as exc:  # noqa: BLE001  # a callback of the loop: nobody else would hear of it (FAULTS B42)
            self._outcomes.failed(self, exc)

    def _ran(self, batch: Batch, outcome: Execution) -> None:
        now = self._now_ns()
        self._last_run_ns = outcome.ended_ns - outcome.started_ns
        ended: Batch | None = batch
        held = 0
        if outcome.failed or outcome.ceiling or self._retries:
            if self._recovery.learn(outcome, now):
                self.batcher.limit(self._recovery.ceiling.rows)
            ended, outcome, held = self._recovery.sort(batch, outcome, now)
        self.executing += held - len(batch)
        if ended is not None:
            self.batcher.done(ended, now)
        # The next batch first: the model runs while we encode this one's answers.
        self.dispatch()
        if ended is not None:
            self._outcomes.executed(self, ended, outcome)

    def _lost(self, batch: Batch, number: int, exc: BaseException) -> None:
        """Go on after an instance that is gone, or was given up, with its batch."""
        now = self._now_ns()
        ended, error, held = self._recovery.lost(batch, exc, now)
        self.executing += held - len(batch)
        refusals: Sequence[Refusal] = ()
        if ended is not None and error is not None:
            if isinstance(self.batcher, SequenceBatcher) and not self._recovery.repeatable:
                # What the instance remembered of its sequences is gone with it.
                refusals = self.batcher.lose(number, batch, partial(_sequence_lost, error), now)
            else:
                self.batcher.done(ended, now)
                refusals = [Refusal(entry, error) for entry in ended.entries if entry is not None]
        self.dispatch()
        if ended is not None:
            self._outcomes.broken(self, refusals[: len(ended)])
        if behind := refusals[0 if ended is None else len(ended) :]:
            self._outcomes.refused(self, behind)

    def _give_up(self, number: int) -> None:
        """Abandon an execution that runs for too long."""
        limit_ms = self._timeout_ns // 1_000_000
        error = ExecutionTimeout(
            f"the execution did not return within {limit_ms} ms (execution_timeout_ms) and was given up"
        )
        self._instances.abandon(number, error)

    def _let_go(self, held: Sequence[Held]) -> list[Entry]:
        """Take note that held requests are not tried again."""
        entries: list[Entry] = []
        for _, batch, _ in held:
            self.executing -= len(batch)
            self.batcher.done(batch, self._now_ns())
            entries += [entry for entry in batch.entries if entry is not None]
        return entries

    def _set_timer(self) -> None:
        self._wake(self.batcher.wake_at())
        if self._retries:
            self._wake(self._retries.wake_at(self._now_ns()))

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
            if self._retries:
                self._expire_held()
            self.dispatch()
        except Exception as exc:  # noqa: BLE001  # as in `_done`
            self._outcomes.failed(self, exc)

    def _expire_held(self) -> None:
        """Answer what is held and whose deadline has passed with the error of its last try."""
        held = self._retries.expire(self._now_ns())
        for each in held:
            entries = self._let_go([each])
            error = each.error or _NEVER_RAN
            self._outcomes.broken(self, [Refusal(entry, error) for entry in entries])


_NEVER_RAN = DeadlineExceeded(
    "the request's deadline passed while no instance could execute", reason=Reason.DEADLINE_PASSED
)


def _sequence_lost(error: InferError, entry: Entry) -> InferError:
    return BackendError(
        f"sequence {entry.sequence_id} was lost with the memory that its instance kept of it: {error.detail}",
        reason=Reason.SEQUENCE_LOST,
    )
