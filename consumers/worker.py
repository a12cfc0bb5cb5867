"""The worker of one model: a record's journey from its topic through the dynamic batcher to its answer.

```
requests topic ─1 poll─► block ─2 decode─► entries ─3 offer─► Batcher ─4 take─► Batch ─► Instance.execute
                intake.py                             scheduler.py                pool.py, execution.py
                                                                                            │
results, replies ◄─6 put, settle ─ settle*.py ◄─ answers ─5 encode ─ answering.py ◄──────────┘
```
One thread crossing, one queue (the batcher). Everything moves in blocks. Every accepted record gets exactly one
answer, then its offset is finished, then it may be committed (DESIGN §1, §5). This module ties the parts together
and gives them their life: join, drain, leave, and a new start when the log failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence

from headrace.consumers import failures
from headrace.consumers.admission import Decoder
from headrace.consumers.admitting import Admitting
from headrace.consumers.answering import Answering
from headrace.consumers.assignment import Assignment
from headrace.consumers.claimed_requests import schemas_of
from headrace.consumers.intake import Intake
from headrace.consumers.model_sequences import ModelSequences
from headrace.consumers.partition import Partition
from headrace.consumers.placement import Placement
from headrace.consumers.progress import Watch
from headrace.consumers.refused_replies import RefusedReplies
from headrace.consumers.remembered_answers import RememberedAnswers
from headrace.consumers.settings import Clock, WorkerSettings
from headrace.consumers.settle import Settler
from headrace.consumers.settle_choice import make_settler
from headrace.consumers.settle_transactions import Transactions
from headrace.consumers.suspects import Attempting, Suspects
from headrace.consumers.trouble import Trouble
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP
from headrace.streams.log import Log, Mode, Outcome, Source

logger = logging.getLogger(__name__)

HAND_BACK_S = 1.0
"""Time for the last settle and commit of a stop whose budget is used up, seconds."""

FIRST_RESTART_S = 0.5
"""First pause before a failed consumer is started again, doubled up to ``restart_backoff_s``."""


class ModelWorker:
    """Serves one model from its requests topic, in its own consumer group.

    Attributes:
        model_name: Which.
        mode: The guarantee of its answers.
        mapped: Format of its topic's own records; ``""`` where they are V2 requests.
        answering: Versions, and how their outcomes become answers.
        assignment: The partitions that are ours.
        partition_count: Partitions of its requests topic.
        draining: No new record is admitted.
        exit_by: When a drain must have ended, by the loop's clock, whatever budget it has.
        source: The group member, None between two memberships.
        trouble: Why it does not serve now, if it does not.
        sequences: Live sequences and their state; None where the model has none.
        remembered: Answers to stateless requests with an idempotency key; None where none are remembered.
    """

    def __init__(
        self,
        model_name: str,
        *,
        log: Log,
        group: str,
        topic: str,
        partition_count: int,
        decoder: Decoder,
        answering: Answering,
        placement: Placement,
        settings: WorkerSettings,
        clock: Clock,
        sequences: ModelSequences | None = None,
        remembered: RememberedAnswers | None = None,
        mode: Mode = Mode.AT_LEAST_ONCE,
        transactions: Transactions | None = None,
        rebalanced: Callable[[float], None] = lambda _: None,
        attempting: Attempting | None = None,
        from_end: bool = False,
        mapped: str = "",
    ) -> None:
        """Keep the parts; `run` brings them to life.

        Args:
            model_name: Which model.
            log: Where records come from and go to.
            group: Consumer group, one per model.
            topic: Requests topic.
            partition_count: Its partitions.
            decoder: Reads the model's records.
            answering: Its versions and encoders.
            placement: Where answers go.
            settings: Bounds.
            clock: Time.
            sequences: Of a sequence model.
            remembered: Of a stateless model whose answers are remembered.
            mode: The guarantee of its answers; the log has what it needs.
            transactions: Who counts those of exactly_once.
            rebalanced: Told the seconds that each rebalance kept it from reading.
            attempting: For attempts that outlive their process (P-14); None where the log keeps none.
            from_end: The topic is read from its end the first time.
            mapped: Format of the topic's own records; ``""`` where they are V2 requests.
        """
        self.model_name = model_name
        self.mode = mode
        self.mapped = mapped
        self.answering = answering
        self.draining = False
        self.exit_by = float("inf")
        self.trouble = Trouble("not joined yet")
        self.partition_count = partition_count
        self.sequences = sequences
        self.remembered = remembered
        answering.keyed = remembered if sequences is None else sequences.keyed
        if sequences is not None:
            answering.in_one_line()
        self._log = log
        self._group = group
        self._topic = topic
        self._decoder = decoder
        self._placement = placement
        self._settings = settings
        self._clock = clock
        self._transactions = transactions
        self._rebalanced = rebalanced
        self._attempting = attempting
        self._from_end = from_end
        self._tasks: asyncio.TaskGroup | None = None
        self.source: Source | None = None
        self._intake: Intake | None = None
        self._settler: Settler | None = None
        self._watch: Watch | None = None
        self._epoch = 0
        self.assignment = self._new_assignment()

    @property
    def partitions(self) -> dict[TP, Partition]:
        """The partitions that are ours."""
        return self.assignment.partitions

    @property
    def stateful(self) -> ModelSequences | RememberedAnswers | None:
        """What is taken over with a partition beside its position."""
        return self.sequences or self.remembered

    def ready(self) -> bool:
        """Whether it has joined, has taken over what is assigned and gets on, and every instance can execute."""
        is_whole = self.assignment.complete() and self.answering.healthy()
        return is_whole and not self.draining and not self.troubled()

    def troubled(self) -> str:
        """Return why it does not serve all that is assigned, ``""`` if it does."""
        stands = "" if self._watch is None else self._watch.trouble()
        schemas = schemas_of(self._decoder)
        waits = "" if schemas is None else schemas.trouble
        return self.trouble.text or stands or waits or self.answering.trouble()

    def crashes(self) -> Mapping[TP, int]:
        """Return how many owners in a row each partition of ours has cost without progress (P-14)."""
        marks = {tp: part.ledger.mark for tp, part in self.partitions.items()}
        return {tp: 0 if mark is None else mark.known.crashes for tp, mark in marks.items()}

    def stuck(self) -> Mapping[TP, bool]:
        """Return the partitions that are ours, and whether they have records and hand out none."""
        found = frozenset[TP]() if self._watch is None else self._watch.stuck
        return {tp: tp in found for tp in self.partitions}

    def cancel(self, ids: set[bytes]) -> None:
        """Answer queued requests with these correlation ids CANCELLED, and remember the others' ids."""
        if self._intake is not None:
            self._intake.cancel(ids)
        for version in self.answering.versions.values():
            version.scheduler.cancel(ids)

    def take_over_again(self) -> None:
        """Read every position anew: the requests topic was made again, and its offsets mean other records."""
        for part in tuple(self.partitions.values()):
            self.assignment.again(part)

    def counted(self, there: Mapping[str, int]) -> None:
        """Take partition counts as they are now, by topic; join again where answers are addressed to what is gone."""
        self.partition_count = there.get(self._topic, self.partition_count)
        self.trouble.look(self.partitions.values())
        if self.source is not None:
            self.source.counted(there)
        if self.answering.counted(there):
            self._start(failures.failing(failures.fewer_partitions()))

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop``, then drain within ``exit_timeout_s``; join again whenever the log fails.

        Also after a failure that looks final (not authorised, say): an operator may mend it, and until then
        readiness says why it does not serve.
        """
        pause_s = FIRST_RESTART_S
        while not stop.is_set():
            started = self._clock.now_ns()
            try:
                await self._serve(stop)
            except* LogError as group:
                self.trouble.failed(failures.first_failure(group))
                logger.warning("model '%s': %s; joining again", self.model_name, self.trouble.text)
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # Before Python 3.13, a task group with a failed child raises its failure instead of a cancellation.
                raise asyncio.CancelledError
            if stop.is_set():
                return
            if self._clock.now_ns() - started > 60_000_000_000:
                pause_s = FIRST_RESTART_S  # it served for a while: this is a new failure
            await failures.stopped_within(stop, pause_s)
            pause_s = min(2 * pause_s, self._settings.restart_backoff_s)

    async def _serve(self, stop: asyncio.Event) -> None:
        """One membership of the group, from joining to leaving."""
        self.assignment = self._new_assignment()
        self._placement.forget()
        source = self._log.source(self._group, {self._topic}, self.assignment)
        keeper, stateful = self.sequences, self.stateful
        store = None if stateful is None else stateful.new_store()
        delivery = self._log.delivery(source, self.mode, store)
        settler = make_settler(
            self.mode,
            delivery,
            self._settings,
            on_lost=self._settle_failed,
            on_settled=self._settled,
            is_pointless=self._is_pointless,
            delivers=lambda part: self.partitions.get(part.tp) is part,
            refused=RefusedReplies(self._placement),
            store=store,
            writes_ahead=keeper is not None and keeper.options.record_answers,
            transactions=self._transactions,
        )
        suspects = self._attempting and Suspects(
            self._attempting, self.partitions, self._settings, settler, self.answering.at_rest
        )
        intake = Intake(
            self.partitions,
            suspects=suspects,
            decoder=self._decoder,
            admission=Admitting(self),
            placement=self._placement,
            settings=self._settings,
            clock=self._clock,
            sequences=keeper is not None,
            shares=keeper is not None and keeper.sequences.keeps_state,
            counts_settling=self.mode is Mode.AT_LEAST_ONCE,
        )
        self.source, self._intake, self._settler = source, intake, settler
        self._watch = watch = Watch(self.partitions, source, self._settings.stall_timeout_s)
        self.assignment.attach(source, delivery, settler)
        self.answering.attach(self.partitions, settler, self._room_made, self._scheduler_failed)
        if stateful is not None:
            stateful.attach(self.partitions, settler, source)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                async with source:
                    self.trouble.joined()
                    running = [
                        tasks.create_task(settler.run()),
                        tasks.create_task(intake.run(source)),
                        tasks.create_task(watch.run()),
                    ]
                    if keeper is not None:
                        running.append(tasks.create_task(keeper.reap()))
                    await self._until(stop, running)
                    await self._drain()
                    for task in running:
                        task.cancel()
        finally:
            self._tasks = None
            self._hand_back()

    async def _until(self, stop: asyncio.Event, running: Sequence[asyncio.Task[None]]) -> None:
        """Wait for the stop; a running part that fails ends this through the task group."""
        waiter = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait([waiter, *running], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()

    async def _drain(self) -> None:
        """Stop admitting, finish what is queued, settle and commit, within the exit budget (FAULTS B68)."""
        assert self._intake is not None
        assert self._settler is not None
        assert self.source is not None
        self.draining = True
        self._intake.stop(self.source)
        clock = asyncio.get_running_loop().time
        deadline = min(self.exit_by, clock() + self._settings.exit_timeout_s)
        for part in self.partitions.values():
            part.in_flight -= part.let_go()  # never queued: read again by whoever comes next
        for version in self.answering.versions.values():
            version.scheduler.drain()
        while self._progresses() and clock() < deadline:
            await self._settler.progress(min(0.1, deadline - clock()))
            self._settler.hurry()
        # Hands every partition back: flushes the commits; what is unanswered now stays uncommitted.
        await self.assignment.revoked(set(self.partitions), clock() + HAND_BACK_S)

    def _progresses(self) -> bool:
        """Whether something in flight will still end: not so what waits for a slot whose sequence ends later."""
        parts = self.partitions.values()
        return any(part.in_flight > 0 for part in parts) and (
            not self.answering.at_rest() or any(part.answered or part.settling for part in parts)
        )

    def _hand_back(self) -> None:
        """After a membership: forget the queue, whose records will be read again."""
        for tp in list(self.partitions):
            self._drop(tp)
            if self.stateful is not None:
                self.stateful.close(tp)
        if self.stateful is not None:
            self.stateful.forget_suspended()
        self.partitions.clear()
        self.answering.unacknowledged.settled(self.partitions)
        self.source = self._intake = self._settler = self._watch = None
        self.trouble.left()

    def _new_assignment(self) -> Assignment:
        return Assignment(
            settings=self._settings,
            start=self._start,
            drop=self._drop,
            next_epoch=self._next_epoch,
            mode=self.mode,
            stateful=self.stateful,
            suspend=None if self.sequences is None else self.answering.suspend,
            rebalanced=self._rebalanced,
            marks=None if self._attempting is None else self._attempting.marks,
            from_end=self._from_end,
        )

    def _next_epoch(self) -> int:
        """Count takeovers over all memberships, so that no old result fits a new one."""
        self._epoch += 1
        return self._epoch

    def _start(self, coroutine: Coroutine[None, None, None]) -> None:
        failures.start_in(self._tasks, coroutine)

    def _drop(self, tp: TP) -> int:
        return self.answering.drop(tp)

    # What the settler tells.

    def _settled(self, count: int) -> None:
        self.answering.unacknowledged.settled(self.partitions)
        if count:
            self.trouble.settled(self.partitions.values())
            self._room_made()

    def _room_made(self) -> None:
        if self._intake is not None and self.source is not None:
            self._intake.room_made(self.source)

    def _scheduler_failed(self, exc: BaseException) -> None:
        """End with the bug: requests that hang behind a queue nobody serves must not look served (FAULTS B42)."""
        self.trouble.text = f"its scheduler failed: {exc!r}"
        self._start(failures.failing(exc))

    async def _is_pointless(self) -> bool:
        """Whether answers wait for a topic or partition that is gone: joining again addresses them anew."""
        try:
            gone = await self._placement.vanished()
            there = await self._log.topics()
        except LogError:
            return False  # the log itself is away: the topics may still be there
        if gone:
            logger.warning("reply topics are gone: %s", ", ".join(sorted(gone)))
        if fewer := self.answering.counted(there):
            logger.warning("model '%s': %s", self.model_name, failures.fewer_partitions().detail)
        return bool(gone) or fewer

    def _settle_failed(self, part: Partition, outcome: Outcome) -> None:
        logger.warning(
            "%s/%d: settle was %s, its records since the last commit are run again",
            part.tp.topic,
            part.tp.partition,
            outcome,
        )
        self.assignment.again(part, outcome)
