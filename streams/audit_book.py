"""The books of an audit: each record of requests, answers and dead letters is entered under the request it names.

An answer counts wherever it lies: in the model's results, in the replies to gateways, or in a topic that a request
named. The results topic of a model holds nothing but answers, so whatever names no request that exists is an orphan
there. Other topics are shared, and what is no answer of an audited model is passed over. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from headrace.schemas.headers import find_header
from headrace.schemas.record import (
    REPLY_PARTITION,
    REPLY_TOPIC,
    SOURCE,
    SPRING_REPLY_PARTITION,
    SPRING_REPLY_TOPIC,
    TP,
    Record,
)
from headrace.streams.audit_compare import Comparison
from headrace.streams.audit_identity import (
    MAX_DIGITS,
    Identity,
    dead_letter_of,
    identity_of,
    source_prefix,
)
from headrace.streams.audit_offsets import Budget
from headrace.streams.audit_report import Example, Kind, ModelReport, PartitionReport
from headrace.streams.audit_tally import PartitionTally, Seen

REPLY_TOPICS = frozenset((REPLY_TOPIC, SPRING_REPLY_TOPIC))
MAX_NAMED_TOPICS = 10_000
"""Different reply topics that are remembered; in others answers are not looked for."""

MAX_NAME_BYTES = 249
"""Of a topic's name (Kafka's limit)."""

MAX_SHOWN_BYTES = 300
"""Of a name that somebody else chose, in an example."""


class ModelBook:
    """One model.

    Attributes:
        model: Its name.
        requests: Its requests topic.
        results: Its results topic.
        tallies: By partition of its requests.
        skips_nulls: Requests whose value is null have no answer.
    """

    def __init__(
        self,
        model: str,
        requests: str,
        results: str,
        max_examples: int,
        *,
        skips_nulls: bool = False,
    ) -> None:
        """Start without partitions."""
        self.skips_nulls = skips_nulls
        self.model = model
        self.requests = requests
        self.results = results
        self.tallies: dict[int, PartitionTally] = {}
        self._max_examples = max_examples
        self._examples: dict[Kind, list[Example]] = defaultdict(list)

    def show(
        self, kind: Kind, source: str, records: Iterable[Record] = (), detail: str = ""
    ) -> None:
        """Keep an example, unless there are enough of its kind."""
        kept = self._examples[kind]
        if len(kept) < self._max_examples:
            places = tuple(f"{r.topic}/{r.partition}/{r.offset}" for r in records)
            kept.append(Example(kind, source, places, detail))

    def nearest(self, partition: int) -> PartitionTally:
        """Return the tally of a partition, or of the one that its number stands for (FAULTS R8)."""
        return (
            self.tallies.get(partition)
            or self.tallies[sorted(self.tallies)[partition % len(self.tallies)]]
        )

    def report(self) -> ModelReport:
        """Return what was found."""
        return ModelReport(
            self.model,
            [
                PartitionReport(number, tally.start, tally.end, tally.counts)
                for number, tally in sorted(self.tallies.items())
            ],
            [example for kind in Kind for example in self._examples[kind]],
        )


class AuditBook:
    """All models of one audit.

    Attributes:
        models: By name.
        named: Reply topics that requests named, as they spelled them.
        is_crowded: There were more of them than are kept.
        foreign: Records of shared topics that are no answers of audited models.
    """

    def __init__(self, models: Iterable[ModelBook], partitions: Mapping[str, int]) -> None:
        """Keep the models; `begin` makes their partitions.

        Args:
            models: To audit.
            partitions: Partition count of every topic that exists.
        """
        self.models = {book.model: book for book in models}
        self.named: set[bytes] = set()
        self.is_crowded = False
        self.foreign = 0
        self._partitions = partitions
        self._by_source: dict[bytes, tuple[ModelBook, PartitionTally]] = {}
        self._by_requests = {book.requests: book for book in self.models.values()}
        self._by_results = {book.results: book for book in self.models.values()}

    def begin(self, spans: Mapping[TP, tuple[int, int]], budget: Budget) -> None:
        """Make the partitions of the requests topics, each with the range that is audited of it."""
        for tp, (start, end) in spans.items():
            book = self._by_requests[tp.topic]
            tally = book.tallies[tp.partition] = PartitionTally(tp, start, end, budget)
            self._by_source[source_prefix(*tp)] = (book, tally)

    def tallies(self) -> list[PartitionTally]:
        """Return all partitions."""
        return [tally for _, tally in self._by_source.values()]

    def add_requests(self, tp: TP, records: Sequence[Record]) -> None:
        """Enter requests, and the reply topics that they name."""
        book, tally = self._by_source[source_prefix(*tp)]
        if book.skips_nulls:
            records = [record for record in records if record.value is not None]
        if not records:
            return
        tally.add_requests(records)
        for record in records:
            for name, raw in record.headers:
                if name in REPLY_TOPICS and raw and raw not in self.named:
                    self._name(raw)

    def _name(self, topic: bytes) -> None:
        if len(topic) > MAX_NAME_BYTES:
            return  # no topic's name: answered in the results
        if len(self.named) < MAX_NAMED_TOPICS:
            self.named.add(topic)
        else:
            self.is_crowded = True

    def add_answers(self, tp: TP, records: Sequence[Record]) -> None:
        """Enter answers from any topic."""
        find = self._by_source.get
        for record in records:
            identity = identity_of(record.headers)
            found = None if identity is None else find(identity.partition)
            if identity is None or found is None:
                self._stray(tp, record, identity)
            else:
                self._enter(*found, identity, record)

    def _enter(
        self, book: ModelBook, tally: PartitionTally, identity: Identity, record: Record
    ) -> None:
        seen = tally.answer(identity)
        if seen is Seen.ORPHAN:
            book.show(Kind.ORPHANED, _source(record), (record,), "there is no such request")
        elif seen is Seen.CONFLICT:
            detail = "it comes behind the last answer of its request"
            book.show(Kind.DUPLICATED, _source(record), (record,), detail)

    def _stray(self, tp: TP, record: Record, identity: Identity | None) -> None:
        """Enter an answer of no partition that is audited: an orphan if that partition does not exist."""
        owner = self._by_results.get(tp.topic)
        if identity is None:
            detail = f"header '{SOURCE}' names no request that can be read"
        elif self._exists(identity.partition):
            owner = None  # of another model, or of a partition that is not audited
        else:
            detail = "there is no such partition"
        if owner is None or not owner.tallies:
            self.foreign += 1
            return
        owner.nearest(record.partition).counts.orphaned += 1
        owner.show(Kind.ORPHANED, _source(record), (record,), detail)

    def _exists(self, partition: bytes) -> bool:
        topic, _, number = partition.decode(errors="replace").rpartition("/")
        # Longer ones Python refuses to read.
        is_number = number.isdecimal() and len(number) <= MAX_DIGITS
        return is_number and int(number) < self._partitions.get(topic, 0)

    def add_dead_letters(self, records: Iterable[Record]) -> None:
        """Enter dead letters; those of other models, and marks of redrives, are passed over."""
        for record in records:
            place = dead_letter_of(record.headers)
            found = None if place is None else self._by_source.get(place[0])
            if place is None or found is None:
                continue
            book, tally = found
            seen = tally.dead_letter(place[1])
            source = _text(place[0]) + f"/{place[1]}"
            if seen is Seen.ORPHAN:
                book.show(Kind.ORPHANED, source, (record,), "a dead letter of no such request")
            elif seen is Seen.REPEAT:
                book.show(Kind.REPEATED, source, (record,), "another dead letter of the request")

    def compare(self, comparison: Comparison, _tp: TP, records: Sequence[Record]) -> None:
        """Compare repeated answers with those that they repeat."""
        for record in records:
            identity = identity_of(record.headers)
            found = None if identity is None else self._by_source.get(identity.partition)
            if identity is None or found is None:
                continue
            book, tally = found
            compared = comparison.take(tally, identity, record)
            if compared is not None:
                book.show(
                    compared.kind,
                    _source(record),
                    (compared.first, record),
                    compared.difference or "equal",
                )

    def book_of(self, tp: TP) -> tuple[ModelBook, PartitionTally]:
        """Return the model and the partition of a requests topic."""
        return self._by_source[source_prefix(*tp)]


def reply_address(record: Record) -> tuple[str, int] | None:
    """Return the reply topic and partition that a request names, None without a topic, -1 without a partition."""
    topic, partition = "", -1
    for name, raw in record.headers:
        if name in REPLY_TOPICS and raw:
            topic = _text(raw)
        elif name == REPLY_PARTITION and raw and raw.isdigit() and len(raw) < 10:
            partition = int(raw)
        elif name == SPRING_REPLY_PARTITION and raw and len(raw) == 4:
            partition = int.from_bytes(raw, "big")
    return (topic, partition) if topic else None


def _source(record: Record) -> str:
    return _text(find_header(record.headers, SOURCE) or b"")


def _text(raw: bytes) -> str:
    return raw[:MAX_SHOWN_BYTES].decode(errors="backslashreplace")
