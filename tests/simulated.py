"""A whole fleet of workers on the memory log and virtual time, under a seeded storm of traffic and faults."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from contextvars import ContextVar
from dataclasses import replace

from headrace.backends.backend import Instance
from headrace.consumers.ledger import OffsetLedger
from headrace.consumers.pool import Done, Work
from headrace.consumers.service import Worker
from headrace.consumers.settings import Clock, WorkerSettings
from headrace.repository.repository import Repository
from headrace.schemas.record import TP, Headers, Out
from headrace.streams.claims import Claims
from headrace.streams.log import Position
from headrace.streams.memory import MemoryLog
from headrace.streams.memory_group import MemoryGroup
from headrace.streams.memory_source import MemorySource
from headrace.streams.memory_transactions import Fault, MemoryTransaction, Step
from headrace.streams.topology import Topology

TOPOLOGY = Topology(prefix="h", partitions=3)
SETTINGS = WorkerSettings("", max_queued_records=40, max_partition_span=30)


class SimulatedPool:
    """Instances whose work takes seeded virtual time and no thread.

    Attributes:
        rng: Where the times come from; a storm sets it.
        delays_s: The times, seconds, each as likely as another.
    """

    rng: random.Random
    delays_s: tuple[float, ...] = (0.0005, 0.002, 0.02, 0.3)

    def __init__(self, instances: Sequence[Instance], name: str) -> None:
        del name
        self._instances = instances
        self.free = list(range(len(instances)))

    def start(self, supervision: object = None) -> None:
        """Nothing to start."""
        del supervision

    @property
    def busy(self) -> int:
        """Number of instances at work."""
        return len(self._instances) - len(self.free)

    def next_staging(self) -> int | None:
        """Nothing ahead."""
        return None

    def healthy(self) -> bool:
        """Always."""
        return True

    def submit(self, number: int, work: Work, done: Done) -> None:
        """Run at once, answer later."""
        self.free.remove(number)
        outcome = work(self._instances[number])

        def finish() -> None:
            self.free.append(number)
            done(number, outcome)

        asyncio.get_running_loop().call_later(self.rng.choice(self.delays_s), finish)

    async def close(self, timeout_s: float) -> bool:
        """Nothing to end."""
        del timeout_s
        return True


def wall_ms() -> int:
    """Virtual time since the epoch, milliseconds."""
    return int(asyncio.get_running_loop().time() * 1000)


class CheckedLog(MemoryLog):
    """A memory log that checks at every commit that only what was answered is committed (B14, B22).

    Of transactions it knows the committed view. Answers to gateways come behind their commit, once at most (P-13).

    Attributes:
        answers: Source of a request → its answers: where they are, their headers and values. In the order of the
            first answers.
        commits: How many there were.
        faults: How many faults were injected.
        replies: Topic of answers that follow a commit; ``""`` where none do.
        calls: Sources of requests whose answer goes there.
    """

    def __init__(self, *, commit_interval_ms: int = 0, replies: str = "") -> None:
        super().__init__(
            clock_ms=wall_ms, revoke_grace_s=1.0, commit_interval_ms=commit_interval_ms
        )
        self.answers: dict[str, list[tuple[TP, Headers, bytes]]] = defaultdict(list)
        self.commits = 0
        self.faults = 0
        self.replies = replies
        self.calls: set[str] = set()

    def append(self, outs: Sequence[Out]) -> None:
        """Note answers by the source that they name."""
        super().append(outs)
        self._note(outs, is_committed=False)

    def complete(self, transaction: MemoryTransaction, *, committed: bool) -> None:
        """Note the answers of a committed transaction, and check its positions."""
        super().complete(transaction, committed=committed)
        if committed:
            self._note(transaction.outs, is_committed=True)
            for tp, position in transaction.positions.items():
                self._check(tp, position)
            self.commits += 1

    def _note(self, outs: Sequence[Out], *, is_committed: bool) -> None:
        for out in outs:
            source = dict(out.headers).get("source")
            if source is None or out.value is None:
                continue
            if out.topic == self.replies:
                assert not is_committed, "a reply to a gateway waits for its commit (P-13)"
                assert self._is_committed(source.decode()), (
                    f"replied: {source!r} has a reply before its commit"
                )
            place = TP(out.topic, out.partition)
            self.answers[source.decode()].append((place, out.headers, out.value))

    def _is_committed(self, source: str) -> bool:
        topic, partition, offset = source.split("/")
        found = [
            position
            for group in self._groups.values()
            if (position := group.committed.get(TP(topic, int(partition)))) is not None
        ]
        return any(is_finished(position, int(offset)) for position in found)

    def commit(self, group: MemoryGroup, positions: Mapping[TP, Position]) -> None:
        """Check, then store."""
        for tp, position in positions.items():
            assert group.committed.get(tp, Position(0)).offset <= position.offset, "backwards"
            self._check(tp, position)
        self.commits += 1
        super().commit(group, positions)

    def _check(self, tp: TP, position: Position) -> None:
        ledger = OffsetLedger(epoch=0)
        assert not ledger.restore(position), "our own metadata is always readable"
        store = self.existing(tp)
        for record in store.read(store.start, store.end, store.end):
            if record.offset < position.offset or ledger.is_finished(record.offset):
                key = f"{tp.topic}/{tp.partition}/{record.offset}"
                assert key in self.answers or key in self.calls, (
                    f"{key} is committed and has no answer"
                )


def is_finished(position: Position, offset: int) -> bool:
    """Say whether a committed position has an offset finished."""
    ledger = OffsetLedger(epoch=0)
    ledger.restore(position)
    return offset < position.offset or ledger.is_finished(offset)


WORKER: ContextVar[str] = ContextVar("worker")
"""The name of the worker as part of which something runs."""


class Fleet:
    """Workers of one group; each may crash, be evicted, or leave in peace."""

    def __init__(
        self,
        log: CheckedLog,
        repository: Repository,
        rng: random.Random,
        *,
        topology: Topology = TOPOLOGY,
        settings: WorkerSettings = SETTINGS,
        pool: type[SimulatedPool] = SimulatedPool,
        claims: Claims | None = None,
    ) -> None:
        (self.model,) = repository.models
        self.topology = topology
        self._log = log
        self._repository = repository
        self._rng = rng
        self._settings = settings
        self._pool = pool
        self._claims = claims
        self._numbers = itertools.count(1)
        self.running: dict[str, tuple[Worker, asyncio.Event, asyncio.Task[None]]] = {}
        self._crashed: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start one more worker."""
        name = f"w{next(self._numbers)}"
        loop = asyncio.get_running_loop()
        clock = Clock(lambda: int(loop.time() * 1e9), wall_ms)
        self._pool.rng = self._rng
        worker = Worker(
            self._log,
            self._repository,
            self.topology,
            replace(self._settings, worker_id=name),
            clock=clock,
            pool=self.pool_of(name),
            claims=self._claims,
        )
        stop = asyncio.Event()

        async def serve() -> None:
            async with worker:
                await worker.run(stop)

        WORKER.set(name)
        self.running[name] = (worker, stop, asyncio.create_task(serve()))
        await asyncio.sleep(0.01)

    def pool_of(self, name: str) -> Callable[[Sequence[Instance], str], SimulatedPool]:
        """Return what makes a worker's pools."""
        del name
        return self._pool

    def _any(self) -> str:
        return self._rng.choice(sorted(self.running))

    async def leave(self) -> None:
        """Stop one worker gracefully."""
        _, stop, task = self.running.pop(self._any())
        stop.set()
        await task

    async def crash(self, name: str = "") -> None:
        """Kill one worker, or this one: nothing of it runs any more, nothing is said."""
        self.kill(name or self._any())

    def kill(self, name: str) -> None:
        """Do so at once."""
        if (source := self.source(name)) is not None:
            self._log.crash(source)
        _, _, task = self.running.pop(name)
        task.cancel()
        self._crashed.append(task)

    def evict(self, *, learns_after_s: float = 0.0) -> str:
        """Let one worker's session expire; until it learns so it goes on as a zombie. Returns its name."""
        name = self._any()
        if (source := self.source(name)) is not None:
            self._log.evict(source, learns_after_s=learns_after_s)
        return name

    def source(self, name: str) -> MemorySource | None:
        """Return a worker's group member, None between two memberships."""
        source = self.running[name][0].models[self.model].source
        assert source is None or isinstance(source, MemorySource)
        return source

    def check(self) -> None:
        """Raise what ended a worker that should still run."""
        for _, _, task in self.running.values():
            if task.done():
                task.result()

    async def stop(self) -> None:
        """Stop all gracefully and wait."""
        for _, stop, _ in self.running.values():
            stop.set()
        for _, _, task in self.running.values():
            await task
        await asyncio.gather(*self._crashed, return_exceptions=True)


FAULTS = (
    "rebalance",
    "evict",
    "crash",
    "leave",
    "produce",
    "produced",
    "commit",
    "committed",
    "hold",
)


TRANSACTION_FAULTS = (
    *FAULTS,
    "start",
    "position",
    "abort",
    "transact",
    "transacted",
    "expire",
    "steal",
    "forget",
    "zombie",
)
"""Those of exactly_once."""


async def strike(name: str, log: CheckedLog, fleet: Fleet) -> None:
    """Inject a fault of `TRANSACTION_FAULTS`."""
    log.faults += 1
    match name:
        case "rebalance":
            await log.rebalance(fleet.topology.group(fleet.model), rotate=True)
        case "evict":
            fleet.evict()
        case "crash":
            await fleet.crash()
            await fleet.start()
        case "leave":
            await fleet.leave()
            await fleet.start()
        case "produce":
            log.fail_produce(2)
        case "produced":
            log.fail_produce(1, written=True)
        case "commit":
            log.fail_commit(2)
        case "committed":
            log.fail_commit(1, written=True)
        case "hold":
            log.hold_produce()
            await asyncio.sleep(0.2)
            log.free_produce()
        case _:
            _strike_transactions(name, log, fleet)


def _strike_transactions(name: str, log: CheckedLog, fleet: Fleet) -> None:
    match name:
        case "start" | "position" | "abort":
            log.failing[Step(name)] = Fault(2, done=log.faults % 2 == 0)
            if name == "abort":
                log.failing[Step.POSITION] = Fault(2)
        case "transact" | "transacted":
            log.failing[Step.COMMIT] = Fault(2, done=name == "transacted")
        case "expire":
            for transaction in log.transactions.open():
                log.transactions.time_out(transaction)
        case "steal" | "forget":
            group = fleet.topology.group(fleet.model)
            requests = fleet.topology.requests(fleet.model)
            for partition in range(fleet.topology.partitions):
                transaction = f"{group}:{requests}:{partition}"
                if name == "steal":
                    log.transactions.start(transaction)
                else:
                    log.transactions.forget(transaction)
        case "zombie":
            fleet.evict(learns_after_s=0.5)


async def all_answered(
    log: CheckedLog, fleet: Fleet, sent: Set[str], *, within_s: float = 120.0
) -> None:
    """Wait until every record has an answer and everything is committed."""
    requests = fleet.topology.requests(fleet.model)
    group = fleet.topology.group(fleet.model)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while loop.time() < deadline:
        fleet.check()
        committed = log.committed(group)
        tps = [TP(requests, number) for number in range(fleet.topology.partitions)]
        ends = {tp: log.existing(tp).end for tp in tps}
        if sent - log.calls <= log.answers.keys() and all(
            end == 0 or (tp in committed and committed[tp].offset == end)
            for tp, end in ends.items()
        ):
            return
        await asyncio.sleep(0.1)
    missing = [source for source in sent - log.calls if source not in log.answers]
    raise AssertionError(f"unanswered: {missing}; committed {log.committed(group)}")
