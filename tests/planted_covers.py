"""Memory logs that commit or publish snapshots at the wrong moment, on which a check of the contract must raise."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.schemas.record import TP
from headrace.streams.committer import Committer
from headrace.streams.cover import Cover
from headrace.streams.log import Position
from headrace.streams.memory import MemoryLog
from headrace.streams.memory_delivery import MemoryDelivery
from headrace.streams.memory_source import MemorySource


class HastyCommitter(Committer):
    """Commits, then publishes the snapshots."""

    async def _save(self, cover: Cover, due: dict[TP, Position]) -> None:
        """Commit first."""
        await self._member.commit(due)
        await super()._save(cover, due)


class HastyDelivery(MemoryDelivery):
    """Has that committer."""

    def __init__(self, log: MemoryLog, source: MemorySource, cover: Cover | None = None) -> None:
        super().__init__(log, source, cover)
        self._committer = HastyCommitter(source, log.produce, cover, interval_s=0)


class HastyLog(MemoryLog):
    """Planted bug of D3: a position overtakes the snapshots that it stands for."""

    def delivery(self, source: object, mode: object, cover: object = None) -> MemoryDelivery:
        """Make the planted one."""
        del mode
        return HastyDelivery(self, source, cover)  # type: ignore[arg-type]  # as the log's


class RashDelivery(MemoryDelivery):
    """Publishes snapshots together with the answers that they follow from."""

    def __init__(self, log: MemoryLog, source: MemorySource, cover: Cover | None = None) -> None:
        super().__init__(log, source, cover)
        self._cover = cover

    async def settle(self, upto: Mapping[TP, Position]) -> Mapping[TP, object]:
        """Publish them first."""
        for owner, position in upto.items():
            for outs in self._cover.snapshots(owner, position):  # type: ignore[union-attr]  # it has one
                await self._log.produce(outs)
        return await super().settle(upto)


class RashLog(MemoryLog):
    """Planted bug of M1: a snapshot does not wait for the acknowledgement of the answers that it covers."""

    def delivery(self, source: object, mode: object, cover: object = None) -> MemoryDelivery:
        """Make the planted one."""
        del mode
        return RashDelivery(self, source, cover)  # type: ignore[arg-type]  # as the log's
