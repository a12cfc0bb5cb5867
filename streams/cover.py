"""The port to what must be durable before a position is committed; deliveries of every log call it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from headrace.schemas.record import TP, Out
from headrace.streams.log import Position


class Cover(Protocol):
    """What must be durable before a position may be committed: snapshots of state (DELIVERY P-3).

    All calls but those of `snapshots`' result come in the loop, and none waits. Owners whose state is forgotten are
    passed over.

    In exactly_once `settled` and `snapshots` come at once when a cut is settled, and `saved`, for every chunk, and
    `committed` only behind its commit; so chunks are taken before the ones ahead of them are saved.
    """

    def settled(self, owner: TP, position: Position) -> None:
        """From now on snapshots may say what follows from the answers up to this position.

        They are acknowledged, or in exactly_once the snapshots are in the same transaction.
        """

    def snapshots(self, owner: TP, position: Position) -> Iterator[Sequence[Out]] | None:
        """Return the records that must be acknowledged before the position is committed, in chunks of bounded size.

        What they hold is fixed by this call, however late the chunks are taken. None where what the position stands
        for is forgotten: then it is never committed, and its records are read again.
        """

    def saved(self, owner: TP, outs: Sequence[Out]) -> None:
        """A chunk is acknowledged."""

    def committed(self, owner: TP, position: Position) -> None:
        """The position is committed."""

    def aborted(self, owner: TP) -> None:
        """Forget an owner's state: nothing since the last `committed` is known to be committed (DELIVERY P-10).

        Only in exactly_once. The owner is taken over again, or is not ours any more.
        """
