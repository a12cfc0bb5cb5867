"""What an assignment asks of those who keep state by partition."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Protocol

from headrace.consumers.partition import Partition
from headrace.schemas.record import TP
from headrace.streams.log import Position


class Stateful(Protocol):
    """State that belongs to partitions: `headrace.consumers.model_sequences.ModelSequences`."""

    async def restore(self, parts: Sequence[Partition]) -> None:
        """Read and open the state of partitions that are being taken over; `LogError` if that fails now."""

    def confirmed(self, part: Partition, position: Position) -> None:
        """Take note that a partition's position was accepted by the coordinator."""

    def suspend(self, tp: TP) -> None:
        """Keep what is known of a partition that was revoked with everything answered and committed (P-7)."""

    async def resume(self, parts: Sequence[Partition]) -> Set[TP]:
        """Go on with those that were suspended and still hold; returns which. `LogError` if that is not known now."""

    def forget_suspended(self, *, but: Set[TP] = frozenset()) -> None:
        """Forget suspended partitions: somebody else has them."""

    def close(self, tp: TP) -> None:
        """Forget a partition that is not ours any more; nothing of it is queued."""
