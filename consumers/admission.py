"""What intake asks of its neighbours: who reads a model's records, and who takes what was read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from headrace.consumers.batcher import Refusal
from headrace.consumers.partition import Partition
from headrace.schemas.batch import Entry
from headrace.schemas.record import TP, Record
from headrace.schemas.requests import Decoded


class Decoder(Protocol):
    """Turns records into entries: `headrace.schemas.requests.RequestDecoder`, or a mapping of own topics."""

    def decode(self, tp: TP, epoch: int, records: Sequence[Record]) -> Decoded:
        """Decode one partition's records; never raises for what they hold."""


class Admission(Protocol):
    """Who takes what intake has read: the worker of the model."""

    def offer(self, version: int, entries: Sequence[Entry]) -> Sequence[Refusal]:
        """Queue entries for a version; returns those that its queue has no room for."""

    def refuse(self, refusals: Iterable[Refusal], *, dead_letters: Sequence[Entry] = ()) -> None:
        """Answer entries with their errors; ``dead_letters`` are copied to the dead-letter topic too."""

    def fail(self, part: Partition, decoded: Decoded) -> None:
        """Answer records that became no request, or are not run any more, with their errors."""

    def screen(self, part: Partition, version: int, entries: Sequence[Entry]) -> list[Entry]:
        """Take requests some of which have an idempotency key; returns those that are to be queued (P-17)."""

    def screen_steps(self, part: Partition, keyed: Sequence[Entry]) -> None:
        """Know repeats among requests of a sequence model with a key, in order, before they are routed (P-17)."""

    def route(self, part: Partition, entries: Sequence[Entry]) -> None:
        """Take a block's records of a sequence model, in order: each is queued, answered, or finished already."""

    def went_back(self, part: Partition, offset: int) -> None:
        """Take a partition over again that hands out an offset below those it had handed out."""

    def passed_over(self, entries: Sequence[Entry]) -> None:
        """Finish records that nobody is to answer: null values of a mapped topic."""

    def skipped(self, part: Partition) -> None:
        """Take note that records of a partition were finished before and are not run again (P-1)."""
