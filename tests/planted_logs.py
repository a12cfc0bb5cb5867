"""Memory logs with a planted bug each, on which a check of a fault must raise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fault_kit import finished
from headrace.schemas.record import TP, Out
from headrace.streams.log import Position
from headrace.streams.memory import MemoryLog
from headrace.streams.memory_delivery import MemoryDelivery
from headrace.streams.memory_group import MemoryGroup
from headrace.streams.memory_source import MemorySource


class ReceiptSource(MemorySource):
    """Commits what it hands out, as ``enable.auto.commit`` does."""

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[object]:
        """Hand out, and commit at receipt."""
        blocks = await super().poll(max_records, timeout_s)
        for block in blocks:
            self.group.committed[block.tp] = Position(block.records[-1].offset + 1)
        return blocks


class ReceiptLog(MemoryLog):
    """Planted bug of B4, B19, B22 and B99: the committed position is the fetch position."""

    def source(self, group: str, topics: set[str], on: object) -> MemorySource:
        """Make the planted one."""
        return ReceiptSource(self, self._group(group), topics, on)  # type: ignore[arg-type]  # as the log's

    def commit(self, group: MemoryGroup, positions: Mapping[TP, Position]) -> None:
        """Never go back behind what was committed at receipt."""
        ahead = {
            tp: at
            for tp, at in positions.items()
            if at.offset >= group.committed.get(tp, Position(0)).offset
        }
        super().commit(group, ahead)


class HighestDelivery(MemoryDelivery):
    """Infers the position from the highest finished offset."""

    async def settle(self, upto: Mapping[TP, Position]) -> Mapping[TP, object]:
        """Jump the gaps."""
        jumped = {}
        for tp, at in upto.items():
            done = finished(at, self._log.existing(tp).end)
            jumped[tp] = Position(max([at.offset, *(d + 1 for d in done)]), "", at.epoch)
        return await super().settle(jumped)


class HighestLog(MemoryLog):
    """Planted bug of B13 and B14: a commit jumps the gap that an unfinished record leaves."""

    def delivery(self, source: object, mode: object, cover: object = None) -> MemoryDelivery:
        """Make the planted one."""
        del mode
        return HighestDelivery(self, source, cover)  # type: ignore[arg-type]  # as the log's


class BareLog(MemoryLog):
    """Planted bug of P-1: commits travel without the finished offsets above them."""

    def commit(self, group: MemoryGroup, positions: Mapping[TP, Position]) -> None:
        """Leave the metadata out."""
        super().commit(
            group, {tp: Position(at.offset, "", at.epoch) for tp, at in positions.items()}
        )


class MutedLog(MemoryLog):
    """Planted bug of B18: answers of failed records never leave, and their offsets are finished all the same."""

    def append(self, outs: Sequence[Out]) -> None:
        """Drop error answers and dead letters."""
        kept = [out for out in outs if "reason" not in dict(out.headers)]
        super().append([out for out in kept if "dead-letter-source" not in dict(out.headers)])


class EagerDelivery(MemoryDelivery):
    """Commits before the answers are acknowledged."""

    async def settle(self, upto: Mapping[TP, Position]) -> Mapping[TP, object]:
        """Commit first."""
        self._log.commit(self._source.group, upto)
        return await super().settle(upto)


class EagerLog(MemoryLog):
    """Planted bug of R9: positions overtake the answers that they stand for."""

    def delivery(self, source: object, mode: object, cover: object = None) -> MemoryDelivery:
        """Make the planted one."""
        del mode
        return EagerDelivery(self, source, cover)  # type: ignore[arg-type]  # as the log's
