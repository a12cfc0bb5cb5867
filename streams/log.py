"""The log port: what Headrace needs of Kafka, and nothing more.

Three implementations pass one contract suite: in memory (`headrace.streams.memory`), Apache Kafka and the
embedded broker, both by aiokafka (`headrace.streams.kafka`). Everything moves in blocks: a poll's records of
one partition in, a settle's records for one target out.

Epochs are this process's own counter, one per assignment of a partition, and never the group's generation
(DELIVERY P-7). Errors of the transport are `headrace.schemas.errors.LogError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, Self

from headrace.schemas.record import TP, Out, Record

if TYPE_CHECKING:
    from headrace.streams.cover import Cover


class Feature(StrEnum):
    """What a log can do beyond produce, consume and commit; the contract suite selects by it."""

    TRANSACTIONS = "transactions"
    LOG_APPEND_TIME = "log_append_time"
    COMPACTION = "compaction"
    DELETE_TOPICS = "delete_topics"
    COMMIT_METADATA = "commit_metadata"


class Mode(StrEnum):
    """The delivery guarantee (DESIGN §6)."""

    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"


class Outcome(StrEnum):
    """What became of one partition's settle.

    `SETTLED`: it is done as the guarantee says. `FENCED`: the partition is not ours any more: drop it. After the
    others, which only exactly_once has, what was answered since the last commit counts for nothing, and the partition
    is taken over again from what is committed: `ABORTED` at once, `PRODUCER_FENCED` after a pause, for another producer
    has our transactional id, or the broker has forgotten it, though the partition is assigned to us (DELIVERY P-6).
    """

    SETTLED = "settled"
    ABORTED = "aborted"
    FENCED = "fenced"
    PRODUCER_FENCED = "producer_fenced"


@dataclass(frozen=True, slots=True)
class Position:
    """A partition's progress as it is committed.

    Attributes:
        offset: The lowest unfinished offset: the next one to read.
        metadata: Finished offsets above it (DELIVERY P-1), as `headrace.consumers.ledger` writes them.
        epoch: The epoch under which the work was admitted; another one commits nothing (P-8).
    """

    offset: int
    metadata: str = ""
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a partition to read: ``start`` inclusive, ``end`` exclusive or None for ever.

    Both may be `EARLIEST` or `LATEST`: the first offset that is there, and the end, at the time of opening (the
    last stable offset for a reader of what is committed).
    """

    start: int
    end: int | None = None


EARLIEST = -2
LATEST = -1


class Block:
    """One poll's records of one partition, in offset order, never empty."""

    __slots__ = ("epoch", "records", "tp")

    def __init__(self, tp: TP, epoch: int, records: Sequence[Record]) -> None:
        """Keep the parts as they are."""
        self.tp = tp
        self.epoch = epoch
        self.records = records

    def __repr__(self) -> str:
        """Show where and how many."""
        return f"Block({self.tp.topic}/{self.tp.partition}, epoch={self.epoch}, {len(self.records)} records)"


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as it should be.

    Attributes:
        name: Topic name.
        partitions: Partition count.
        settings: Topic settings by Kafka's names, such as ``cleanup.policy``.
        replication: Replication factor; -1 is the broker's default.
    """

    name: str
    partitions: int
    settings: Mapping[str, str] = field(default_factory=dict)
    replication: int = -1


class Rebalance(Protocol):
    """Told by a source what the group assigns. `assigned` and `lost` only note and start tasks (P-5)."""

    def assigned(self, tps: Set[TP], epoch: int) -> None:
        """Partitions are ours from now on, paused until `Source.resume`; all of one call share ``epoch``."""

    async def revoked(self, tps: Set[TP], deadline: float) -> None:
        """Partitions go; may wait for settles until ``deadline`` (the loop's clock, seconds)."""

    def lost(self, tps: Set[TP]) -> None:
        """Partitions are already somebody else's: drop, publish nothing (P-7)."""


class Source(Protocol):
    """A consumer-group member on some topics. Entered as an async context manager; leaving leaves the group.

    It reads what is committed: nothing of an aborted transaction, and nothing behind an open one.
    """

    async def __aenter__(self) -> Self:
        """Join the group."""

    async def __aexit__(self, *exc: object) -> None:
        """Commit what its delivery has settled, nothing else, and leave the group; `Rebalance` is not told."""

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[Block]:
        """Return what is there, at most ``max_records`` over all partitions; waits up to ``timeout_s``."""

    def counted(self, there: Mapping[str, int]) -> None:
        """Take partition counts as somebody has just seen them, by topic: the group gets to share out new ones soon."""

    def pause(self, tps: Set[TP]) -> None:
        """Stop handing out records of these partitions; polling goes on for the others."""

    def resume(self, tps: Set[TP]) -> None:
        """Hand out records again."""

    def seek(self, tp: TP, offset: int) -> None:
        """Set the next offset to hand out; only for a partition that is assigned."""

    def position(self, tp: TP) -> int:
        """Return the next offset to hand out, -1 where none is known: all records below it were handed out.

        A poll takes it past what holds no record, such as transaction markers and the holes of compaction.
        """

    def assignment(self) -> Mapping[TP, int]:
        """Partition → epoch, as assigned now."""

    def left_at(self) -> float | None:
        """Since when the group has not told what is ours, by the loop's clock; None behind `Rebalance.assigned`."""

    async def committed(self, tps: Set[TP]) -> Mapping[TP, Position | None]:
        """Committed offset *and metadata* of each partition (P-1), None where nothing was committed."""

    async def end_offsets(self, tps: Set[TP]) -> Mapping[TP, int]:
        """Last stable offset: the one after the last record that is there now, or of the first open transaction."""

    async def beginning_offsets(self, tps: Set[TP]) -> Mapping[TP, int]:
        """First offset that is still there."""

    def kept(self) -> Set[TP]:
        """Return those of the assigned partitions that nobody else can have owned since they were last revoked from us.

        The same member had them in the generation before (DELIVERY P-7): what it knew of them still holds.
        """

    async def confirm(self, positions: Mapping[TP, Position]) -> Set[TP]:
        """Commit these positions, as they were read, once more; returns the partitions that are still ours.

        The last step of a takeover (DELIVERY P-5): the coordinator accepts it from nobody but the current owner, so
        whatever was read before it was read under our ownership. Each position carries the epoch of the takeover,
        not the one that it was read with; where nothing was committed it is the first offset that is to be read.

        Raises:
            LogError: The coordinator cannot be reached.
        """

    async def still_assigned(self, epochs: Mapping[TP, int]) -> Set[TP]:
        """Ask the group which of these partitions are ours under their epochs; commits nothing (DELIVERY P-5, P-8).

        Raises:
            LogError: The coordinator cannot be reached.
        """


class Reader(Protocol):
    """Reads spans of partitions without a group: replies, status, cancels, replay. An async context manager."""

    async def __aenter__(self) -> Self:
        """Open; from here on `LATEST` is the end as of now."""

    async def __aexit__(self, *exc: object) -> None:
        """Close."""

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[Block]:
        """Return what is there (epoch 0); empty once all spans are read or after ``timeout_s``."""

    def positions(self) -> Mapping[TP, int]:
        """Next offset to read, per partition."""

    def done(self) -> bool:
        """Whether every span with an end has been read to it (holes counted)."""


class Delivery(Protocol):
    """Publishes answers and commits, under one guarantee; hides which (DESIGN §17). Owned by one source."""

    async def take_over(self, owners: Mapping[TP, int]) -> Set[TP]:
        """Begin to deliver for these partitions: the first step of a takeover, before positions are read (P-5).

        In exactly_once this ends what an owner before us has left open: when it returns, what that owner committed
        is to be seen, and it will commit nothing more. At least once it does nothing.

        Args:
            owners: Partition → epoch, of those that are taken over, for the first time or again.

        Returns:
            Those that are still ours as far as we know; the others are left out.

        Raises:
            LogError: Some could not be taken over; calling again tries those again.
        """

    def put(
        self,
        owner: TP,
        outs: Sequence[Out],
        *,
        after_ack: bool = False,
        after_commit: bool = False,
    ) -> None:
        """Buffer records that follow from ``owner``'s records.

        Args:
            owner: The partition.
            outs: In order.
            after_ack: Only once the others are acknowledged; in exactly_once behind them in the same transaction.
            after_commit: Replies to gateways: in exactly_once outside of the transaction and behind it, in the order of
                the settles, which do not wait for them; those that cannot be published then are dropped, and their
                callers' calls time out (DELIVERY P-13). At least once they go with the others.
        """

    def redirect(self, topics: Set[str], change: Callable[[Out], None]) -> None:
        """Change every buffered record for one of these topics, which refuse it: the next settle publishes it so."""

    async def settle(self, upto: Mapping[TP, Position]) -> Mapping[TP, Outcome]:
        """Publish what is buffered for these owners, await acknowledgement, then commit the positions.

        At least once, `Outcome.SETTLED` is: everything is acknowledged; the commit follows within the log's
        ``commit_interval_ms``, at the latest when the partition is revoked or the source left (`flush`).

        In exactly_once each owner's records, as buffered by this call, its snapshots and its position are one
        transaction, and `Outcome.SETTLED` is: committed. Owners go side by side. An owner that is not
        taken over, or not since it was `Outcome.ABORTED` or released, is aborted: its records are dropped.

        May be called again before it returns; records and commits of one owner keep the order of the calls. Cancelled
        in exactly_once, transactions that have begun go on to their end.

        Raises:
            LogError: At least once: publishing failed, or an earlier settle's commit did. Nothing of this call is
                committed; its records stay buffered and the next settle of their owners publishes them again.
                In exactly_once: a record is too large, which is seen before anything is sent: then the same holds.
                Or something failed that will fail again, as a publication that is not authorised does: then every
                owner is to be taken over again.
        """

    async def flush(self) -> None:
        """Commit now everything that was settled; the source calls it when partitions are revoked and on leaving.

        In exactly_once: wait for the settles that have begun, and the replies behind them.

        Raises:
            LogError: A snapshot or the commit failed; what was settled is kept for the next flush.
        """

    async def release(self, owner: TP, *, abort: bool) -> None:
        """Forget a partition; ``abort`` drops what is buffered, what was settled is committed if it is still ours.

        In exactly_once what is buffered is dropped in any case, for it belongs to no position, and settles that have
        begun are waited for.
        """


class Publisher(Protocol):
    """Produces records that follow from nobody's offsets: requests, status, cancels. An async context manager."""

    async def __aenter__(self) -> Self:
        """Connect."""

    async def __aexit__(self, *exc: object) -> None:
        """Flush and close."""

    async def publish(self, outs: Sequence[Out]) -> None:
        """Produce and await the acknowledgement of all; `LogError` if any fails."""


class Log(Protocol):
    """A log. Entered as an async context manager; everything it hands out must be closed before it."""

    features: frozenset[Feature]
    max_record_bytes: (
        int  # key, value and headers of a record; a larger one is refused before it is sent
    )

    async def __aenter__(self) -> Self:
        """Connect; `LogError` with one sentence if the brokers cannot be reached."""

    async def __aexit__(self, *exc: object) -> None:
        """Close."""

    def source(self, group: str, topics: Set[str], on: Rebalance) -> Source:
        """Make a group member."""

    def reader(self, spans: Mapping[TP, Span], *, committed: bool = False) -> Reader:
        """Make a reader without a group; ``committed`` hides aborted and open transactions."""

    def delivery(self, source: Source, mode: Mode, cover: Cover | None = None) -> Delivery:
        """Make the delivery of a source; what ``cover`` says is published before each commit.

        Args:
            source: Of this log.
            mode: The guarantee.
            cover: What else is to be durable.

        Raises:
            LogError: As `require`.
        """

    def require(self, mode: Mode) -> None:
        """Make sure that deliveries of this guarantee can be made.

        Raises:
            LogError: It is exactly_once, and the brokers cannot do it (DELIVERY P-9); no later try can mend it.
        """

    def publisher(self) -> Publisher:
        """Make a publisher."""

    async def ensure(self, topics: Sequence[TopicSpec]) -> Sequence[str]:
        """Create those that are missing and return a warning sentence per existing topic that differs.

        Raises:
            LogError: Creation is refused; the sentence says which topics with which settings to make by hand.
        """

    async def partitions(self, topic: str) -> int | None:
        """Return the partition count of a topic, None where it does not exist."""

    async def topics(self) -> Mapping[str, int]:
        """Return every topic's name and partition count."""
