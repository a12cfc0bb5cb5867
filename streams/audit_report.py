"""What an audit found: exact counts per partition, and a bounded list of examples with their coordinates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum

from headrace.streams.log import Mode


class Kind(StrEnum):
    """What an example is an example of."""

    MISSING = "missing"
    UNKNOWN = "unknown"
    DUPLICATED = "duplicated"
    """With another value."""
    REPEATED = "repeated"
    """With an equal one, or a dead letter's."""
    UNCOMPARED = "uncompared"
    """With one that may be equal or not."""
    ORPHANED = "orphaned"


class Verdict(StrEnum):
    """What an audit comes to."""

    CLEAN = "clean"
    FINDINGS = "findings"
    UNSURE = "unsure"


@dataclass(slots=True)
class Counts:
    """Exact counts of one partition of a model's requests, or the sum of several.

    Each request of the range is exactly one of ``answered``, ``pending``, ``missing``, ``missing_replies`` and
    ``unknown``. The three ``duplicated_`` counts are of surplus records: two copies of an answer are one.

    Attributes:
        requests: In the range.
        answered: Their answer is complete, whether once or more often.
        pending: Unanswered and not finished by the group's committed position: no loss yet.
        missing: Finished and unanswered. Of a model of 0..n responses also those that lack a response or the last one.
        missing_replies: The same of calls whose caller was a gateway: in exactly_once a crash may cost a reply, which
            the caller sees as a 504 (DELIVERY P-13).
        unknown: Finished and unanswered, but the answer may have been deleted, or lies where the audit does not read.
        duplicated_equal: Repeats of an answer with an equal value (DELIVERY P-16).
        duplicated_different: Repeats with another value, and answers behind the last one.
        duplicated_unknown: Repeats that were not compared: too many, deleted meanwhile, or kept in a store as other
            bytes.
        orphaned: Answers and dead letters that name a request which does not exist.
        retried: Answers whose attempt is above 1.
        dead_letters: Requests with a dead letter.
        dead_letters_repeated: Surplus dead letters.
    """

    requests: int = 0
    answered: int = 0
    pending: int = 0
    missing: int = 0
    missing_replies: int = 0
    unknown: int = 0
    duplicated_equal: int = 0
    duplicated_different: int = 0
    duplicated_unknown: int = 0
    orphaned: int = 0
    retried: int = 0
    dead_letters: int = 0
    dead_letters_repeated: int = 0

    @property
    def duplicated(self) -> int:
        """Surplus answers of any kind."""
        return self.duplicated_equal + self.duplicated_different + self.duplicated_unknown

    def add(self, other: Counts) -> None:
        """Add another partition's."""
        for one in fields(other):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass(frozen=True, slots=True)
class Example:
    """One finding.

    Attributes:
        kind: What it is.
        source: ``topic/partition/offset`` of the request, as the answer spells it; ``""`` where it names none.
        answers: ``topic/partition/offset`` of the answers that it is about.
        detail: What is wrong, one sentence without a full stop.
    """

    kind: Kind
    source: str
    answers: tuple[str, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """One partition of a model's requests.

    Attributes:
        partition: Its number.
        start: First offset of the range.
        end: Offset behind its last one.
        counts: What was found.
    """

    partition: int
    start: int
    end: int
    counts: Counts


@dataclass(frozen=True, slots=True)
class ModelReport:
    """One model: its partitions in order, and at most so many examples of each kind as were asked for."""

    model: str
    partitions: Sequence[PartitionReport]
    examples: Sequence[Example] = ()

    @property
    def total(self) -> Counts:
        """Sum over the partitions."""
        total = Counts()
        for partition in self.partitions:
            total.add(partition.counts)
        return total


@dataclass(frozen=True, slots=True)
class AuditReport:
    """All models that were audited.

    Attributes:
        models: In the order of their names.
        committed: Whether the read-committed view was audited, and not everything that was ever written.
        foreign: Records in reply topics that are nobody's answers, or those of models that were not audited.
    """

    models: Sequence[ModelReport]
    committed: bool = True
    foreign: int = 0
    notes: Sequence[str] = field(default=())

    @property
    def total(self) -> Counts:
        """Sum over all models."""
        total = Counts()
        for model in self.models:
            total.add(model.total)
        return total

    def verdict(self, delivery: Mode) -> Verdict:
        """Say whether what was found keeps a promise (DESIGN §6).

        At least once allows equal duplicates, of dead letters too; exactly once allows a missing reply to a gateway.
        """
        total = self.total
        if delivery is Mode.EXACTLY_ONCE:
            broken = (
                total.missing + total.orphaned + total.duplicated + total.dead_letters_repeated
            )
            unsure = total.unknown
        else:
            broken = total.missing + total.missing_replies + total.orphaned
            broken += total.duplicated_different
            unsure = total.unknown + total.duplicated_unknown
        if broken:
            return Verdict.FINDINGS
        return Verdict.UNSURE if unsure else Verdict.CLEAN

    def to_json(self) -> Mapping[str, object]:
        """Return it as JSON objects."""
        return {
            "view": "read_committed" if self.committed else "read_uncommitted",
            "foreign": self.foreign,
            "notes": list(self.notes),
            "total": asdict(self.total),
            "models": [
                {
                    "model": model.model,
                    "total": asdict(model.total),
                    "partitions": [
                        {"partition": p.partition, "start": p.start, "end": p.end}
                        | asdict(p.counts)
                        for p in model.partitions
                    ],
                    "examples": [asdict(example) for example in model.examples],
                }
                for model in self.models
            ],
        }
