"""The key tables of a model's partitions in this worker, and what is counted of them (DELIVERY P-17)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace.consumers.key_table import KeyBounds, KeyTable
from headrace.consumers.replays import kept_answer
from headrace.schemas.answers import Answer
from headrace.schemas.batch import Entry
from headrace.schemas.idempotency import is_kept
from headrace.schemas.record import TP
from headrace.schemas.remembered import Remembered
from headrace.schemas.sequence import Flag


@dataclass(slots=True)
class KeyCounts:
    """What happened to requests with a key.

    Attributes:
        replayed: Repeats that got the answer of the first request with their key.
        forgotten: Answers that were forgotten before their window was over, or never kept, for want of room.
    """

    replayed: int = 0
    forgotten: int = 0


class KeyTables:
    """One table per partition that is ours.

    Attributes:
        counts: For metrics.
        flying: Requests with a key that lead, or wait to be answered as repeats, in all partitions: while there are
            none, answers need no look.
    """

    def __init__(
        self, bounds: KeyBounds, wall_ms: Callable[[], int], counts: KeyCounts | None = None
    ) -> None:
        """Start without partitions.

        Args:
            bounds: How much is remembered.
            wall_ms: Now, ms since the epoch.
            counts: Where to count.
        """
        self.counts = counts or KeyCounts()
        self.flying = 0
        self._bounds = bounds
        self._wall_ms = wall_ms
        self._tables: dict[TP, KeyTable] = {}

    def __len__(self) -> int:
        """Return the number of answers that are remembered."""
        return sum(map(len, self._tables.values()))

    def __iter__(self) -> Iterator[tuple[TP, KeyTable]]:
        """Iterate over partitions and their tables."""
        yield from self._tables.items()

    def now_ms(self) -> int:
        """Return the wall clock's milliseconds."""
        return self._wall_ms()

    def open(self, tp: TP, epoch: int) -> KeyTable:
        """Begin anew with a partition."""
        self.close(tp)
        table = self._tables[tp] = KeyTable(epoch, self._bounds)
        return table

    def resume(self, tp: TP, epoch: int) -> None:
        """Go on with a partition that came back; what was in flight is read again."""
        table = self._tables[tp]
        self.flying -= len(table.leaders) + table.waiting
        table.leaders.clear()
        table.waiting = 0
        table.epoch = epoch

    def close(self, tp: TP) -> None:
        """Forget a partition."""
        table = self._tables.pop(tp, None)
        if table is not None:
            self.flying -= len(table.leaders) + table.waiting

    def get(self, tp: TP) -> KeyTable | None:
        """Return a partition's table, None where it is not open."""
        return self._tables.get(tp)

    def of(self, entry: Entry) -> KeyTable | None:
        """Return the table of an entry's partition; None where that was taken over anew since, or is gone."""
        table = self._tables.get(entry.tp)
        return table if table is not None and table.epoch == entry.epoch else None

    def lead(self, table: KeyTable, scope: bytes, entry: Entry) -> None:
        """Let an entry be the first with its key."""
        table.leaders[scope, entry.idempotency_key] = entry
        self.flying += 1

    def wait(self, table: KeyTable, count: int) -> None:
        """Let so many repeats more wait for their turn, or fewer."""
        table.waiting += count
        self.flying += count

    def land(self, table: KeyTable, scope: bytes, entry: Entry) -> bool:
        """Let an entry lead no more; False if it did not."""
        which = scope, entry.idempotency_key
        if table.leaders.get(which) is not entry:
            return False
        del table.leaders[which]
        self.flying -= 1
        return True

    def restored(self, table: KeyTable, scope: bytes, key: bytes, answer: Remembered) -> None:
        """Remember what an earlier owner has answered."""
        self._keep(table, scope, key, answer)

    def remember(
        self, table: KeyTable, scope: bytes, entry: Entry, answers: list[Answer]
    ) -> Remembered | None:
        """Remember the answers to an entry; None where they are not to be kept, or there is no room.

        Args:
            table: Of its partition.
            scope: Of the entry.
            entry: It led.
            answers: All of them, as they go out.
        """
        if not all(is_kept(headers) for _, _, headers in answers):
            return None
        found = Remembered(
            entry.record.offset,
            Flag.LIVE,
            entry.record.timestamp,
            self._wall_ms(),
            entry.digest,
            tuple([kept_answer(value, headers) for _, value, headers in answers]),
        )
        return found if self._keep(table, scope, entry.idempotency_key, found) else None

    def _keep(self, table: KeyTable, scope: bytes, key: bytes, answer: Remembered) -> bool:
        before = table.forgotten
        is_kept_now = table.keep(scope, key, answer, self._wall_ms())
        self.counts.forgotten += table.forgotten - before + (not is_kept_now)
        return is_kept_now
