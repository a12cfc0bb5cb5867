"""The queue under both schedulers: priority levels, queue policies, deadlines, cancels. Pure.

Rules of this module:

1. Entries wait in *lines*. Each priority level has two: the main one in arrival order, and the late one for
   entries whose timeout passed under the policy DELAY (SEMANTICS QT-05). The order of the whole queue is level
   by level, main line before late line.
2. An entry leaves exactly once: by `EntryQueue.pop`, as a refusal, or by `EntryQueue.drop`.
3. Nothing scans the queue in the usual case: lines are dicts, so an entry is removed where it stands; timeouts
   and deadlines wait in one heap whose stale items are skipped, and thrown away before they outnumber the rest.
4. Levels exist only while they hold something, so 2^64 - 1 of them cost nothing.
5. A time has passed when the clock is *beyond* it: at the very instant the entry is still served. That is
   Triton's comparison, and lets a queue timeout equal to the batch delay batch rather than reject (DB-31).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence, Set
from heapq import heapify, heappop, heappush
from itertools import chain, islice

from headrace.consumers.batcher import Refusal
from headrace.schemas.batch import Batch, Entry
from headrace.schemas.errors import Cancelled, DeadlineExceeded, InferError, QueueFull, Reason
from headrace.schemas.model_config import DynamicBatching, QueuePolicy, TimeoutAction
from headrace.schemas.record import TP

_SLACK = 256
"""Removed places or stale heap items that are tolerated before tidying up, so that small queues never do it."""


class _Line:
    """Entries in order: a dict, so that any of them can be removed at once."""

    __slots__ = ("_removed", "entries")

    def __init__(self) -> None:
        self.entries: dict[Entry, None] = {}
        self._removed = 0

    def __len__(self) -> int:
        return len(self.entries)

    def remove(self, entry: Entry) -> None:
        del self.entries[entry]
        self._tidy(1)

    def pop(self, count: int) -> list[Entry]:
        entries = self.entries
        if count >= len(entries):
            taken = list(entries)
            entries.clear()
            self._removed = 0
            return taken
        taken = list(islice(entries, count))
        for entry in taken:
            del entries[entry]
        self._tidy(count)
        return taken

    def _tidy(self, removed: int) -> None:
        # A dict keeps the places of what was removed, and iterating walks over them: rebuild in time.
        self._removed += removed
        if self._removed > _SLACK and self._removed > len(self.entries):
            self.entries = dict.fromkeys(self.entries)
            self._removed = 0


class _Level:
    """One priority level with its policy."""

    __slots__ = ("delays", "late", "main", "max_size", "number", "override", "timeout_ns")

    def __init__(self, number: int, policy: QueuePolicy) -> None:
        self.number = number
        self.max_size = policy.max_queue_size
        self.timeout_ns = policy.default_timeout_us * 1000
        self.override = policy.allow_timeout_override
        self.delays = policy.timeout_action is TimeoutAction.DELAY
        self.main = _Line()
        self.late = _Line()

    def __len__(self) -> int:
        return len(self.main.entries) + len(self.late.entries)

    def timeout(self, entry: Entry) -> int:
        """Return the time after which the entry has waited too long, 0 for never (QT-03)."""
        timeout_ns = self.timeout_ns
        if timeout_ns <= 0:
            return 0
        if self.override and 0 < entry.timeout_us * 1000 < timeout_ns:
            timeout_ns = entry.timeout_us * 1000
        return entry.admitted_ns + timeout_ns


class EntryQueue:
    """What waits for one model version, and who must leave it. Schedulers add `take` to it.

    Implements `headrace.consumers.batcher.Batcher` but for `take`. Bounded by who offers: intake stops reading at
    `WorkerSettings.max_queued_records`.

    Attributes:
        breaks: Grows whenever the queue's order changes in another way than by an entry at its very end.
    """

    def __init__(self, config: DynamicBatching | None = None) -> None:
        """Start empty.

        Args:
            config: Priority levels and queue policies; None has neither (default scheduler).
        """
        self.breaks = 0
        self._config = config
        self._priority_levels = config.priority_levels if config is not None else 0
        if config is not None and self._priority_levels > 0:
            number = config.default_priority_level
            self._default = _Level(number, config.policy(number))
        else:
            self._default = _Level(0, config.default_queue_policy if config else QueuePolicy())
        self._is_plain = (
            self._priority_levels == 0
            and self._default.timeout_ns <= 0
            and self._default.max_size <= 0
        )
        self._levels = {self._default.number: self._default}
        self._order = [self._default.number]
        self._size = 0
        self._multiple = 0  # queued entries with more than one row
        self._by_id: dict[bytes, dict[Entry, None]] = {}
        self._timers: dict[Entry, int] = {}
        self._heap: list[tuple[int, int, Entry]] = []
        self._ticket = 0
        self._refused: list[Refusal] = []
        self._refused_at = 0

    def __len__(self) -> int:
        """Return the number of queued entries, executing ones not counted."""
        return self._size

    def __repr__(self) -> str:
        """Show the counts."""
        return f"{type(self).__name__}({self._size} queued, {len(self._refused)} to refuse)"

    def offer(self, entries: Sequence[Entry], now_ns: int) -> Sequence[Refusal]:
        """Queue entries in order and set their ``admitted_ns``.

        Returns:
            Those that are not queued: their level is full (QT-01, counted in requests of the level, DB-11), or
            their deadline has passed already (FAULTS B102).
        """
        self.sweep(now_ns)
        refused: list[Refusal] = []
        if self._is_plain:
            line = self._default.main.entries
            before = len(line)
            for entry in entries:
                entry.admitted_ns = now_ns
                if entry.rows != 1 or entry.correlation_id or entry.expires_ns:
                    error = self._note(entry, self._default, now_ns)
                    if error is not None:
                        refused.append(Refusal(entry, error))
                        continue
                line[entry] = None
            self._size += len(line) - before
            return refused
        for entry in entries:
            entry.admitted_ns = now_ns
            level = self._level(entry)
            error = self._note(entry, level, now_ns)
            if error is not None:
                refused.append(Refusal(entry, error))
                continue
            if not level:
                self._open(level)
            level.main.entries[entry] = None
            self._size += 1
            if level.late or level.number != self._order[-1]:
                self.breaks += 1
        return refused

    def done(self, batch: Batch, now_ns: int) -> None:
        """Do nothing: which batches execute does not matter to a queue without sequences."""

    def resize(self, instances: Set[int]) -> None:
        """Do nothing: any free instance may serve any entry (DB-32)."""

    def limit(self, rows: int) -> None:
        """Do nothing: by itself a queue puts no requests together."""

    def expire(self, now_ns: int) -> Sequence[Refusal]:
        """Remove and return the entries whose queue timeout (QT-04) or own deadline has passed."""
        self.sweep(now_ns)
        refused, self._refused = self._refused, []
        return refused

    def sweep(self, now_ns: int) -> None:
        """Take out what has expired by now; the next `expire` returns it. With DELAY, move it behind (QT-05)."""
        heap = self._heap
        while heap and heap[0][0] < now_ns:
            when, ticket, entry = heappop(heap)
            if self._timers.get(entry) != ticket:
                continue
            level = self._level(entry)
            passed = entry.expires_ns and entry.expires_ns <= when
            if level.delays and not passed:
                self._delay(entry, level)
                continue
            error = _deadline_passed(entry) if passed else _timeout_expired(entry)
            self._remove(entry)
            if not self._refused:
                self._refused_at = now_ns
            self._refused.append(Refusal(entry, error))

    def cancel(self, ids: Set[bytes]) -> Sequence[Refusal]:
        """Remove and return the queued entries with these correlation ids (QT-07), by id and then arrival."""
        found = [
            entry for key in sorted(ids & self._by_id.keys()) for entry in tuple(self._by_id[key])
        ]
        for entry in found:
            self._remove(entry)
        return [
            Refusal(
                entry, Cancelled(request_prefix(entry) + "Request cancelled while it was queued")
            )
            for entry in found
        ]

    def drop(self, tp: TP) -> Sequence[Entry]:
        """Remove the queued entries of a partition without answering: it is revoked or lost."""
        found = [entry for entry in self.in_order() if entry.tp == tp]
        for entry in found:
            self._remove(entry)
        found += [refusal.entry for refusal in self._refused if refusal.entry.tp == tp]
        self._refused = [refusal for refusal in self._refused if refusal.entry.tp != tp]
        return found

    def wake_at(self) -> int | None:
        """Return the soonest time at which an entry expires; a past one while refusals wait for `expire`."""
        if self._refused:
            return self._refused_at
        heap = self._heap
        while heap and self._timers.get(heap[0][2]) != heap[0][1]:
            heappop(heap)
        return heap[0][0] + 1 if heap else None

    def queues(self) -> Sequence[tuple[int, int, int]]:
        """Return level, queued entries and ``max_queue_size`` of each priority level in use."""
        return [
            (number, len(self._levels[number]), self._levels[number].max_size)
            for number in self._order
        ]

    def in_order(self) -> Iterator[Entry]:
        """Iterate over the queue in the order in which it is served; not while it changes."""
        if len(self._order) == 1 and not self._default.late:
            return iter(self._default.main.entries)
        return chain.from_iterable(line.entries for line in self._lines())

    def head_of_singles(self) -> Entry | None:
        """Return the head if the queue is one line of single-row entries, oldest first; None if it is not."""
        if self._multiple or len(self._order) != 1 or self._default.late:
            return None
        return next(iter(self._default.main.entries), None)

    def pop(self, count: int) -> list[Entry]:
        """Remove and return the first entries in the queue's order."""
        if len(self._order) == 1 and not self._default.late:
            taken = self._default.main.pop(count)
        else:
            taken = []
            emptied: list[int] = []
            for number in self._order:
                level = self._levels[number]
                taken += level.main.pop(count - len(taken))
                taken += level.late.pop(count - len(taken))
                if not level:
                    emptied.append(number)
                if len(taken) == count:
                    break
            for number in emptied:
                self._close(number)
        self._size -= len(taken)
        self.breaks += 1
        if self._by_id or self._timers or self._multiple:
            for entry in taken:
                self._forget(entry)
        return taken

    def _lines(self) -> Iterator[_Line]:
        for number in self._order:
            level = self._levels[number]
            yield level.main
            yield level.late

    def _level(self, entry: Entry) -> _Level:
        """Return the entry's level: the default one for 0 and for what does not exist (QT-06)."""
        number = entry.priority
        if not 0 < number <= self._priority_levels or number == self._default.number:
            return self._default
        level = self._levels.get(number)
        if level is None:
            assert self._config is not None  # there are levels
            level = _Level(number, self._config.policy(number))
        return level

    def _open(self, level: _Level) -> None:
        if level.number not in self._levels:
            self._levels[level.number] = level
            insort(self._order, level.number)

    def _close(self, number: int) -> None:
        if number != self._default.number:
            del self._levels[number]
            del self._order[bisect_left(self._order, number)]

    def _note(self, entry: Entry, level: _Level, now_ns: int) -> InferError | None:
        """Keep what is rarely there (deadline, timeout, id, several rows); return why the entry may not wait."""
        expires_ns = entry.expires_ns
        if expires_ns and expires_ns < now_ns:
            return _deadline_passed(entry)
        if 0 < level.max_size <= len(level):
            return QueueFull(request_prefix(entry) + "Exceeds maximum queue size")
        if entry.rows != 1:
            self._multiple += 1
        if entry.correlation_id:
            self._by_id.setdefault(entry.correlation_id, {})[entry] = None
        timeout_at = level.timeout(entry)
        when_ns = (
            min(timeout_at, expires_ns) if timeout_at and expires_ns else timeout_at or expires_ns
        )
        if when_ns:
            self._schedule(entry, when_ns)
        return None

    def _schedule(self, entry: Entry, when_ns: int) -> None:
        self._ticket += 1
        self._timers[entry] = self._ticket
        heappush(self._heap, (when_ns, self._ticket, entry))

    def _delay(self, entry: Entry, level: _Level) -> None:
        level.main.remove(entry)
        level.late.entries[entry] = None
        self.breaks += 1
        del self._timers[entry]
        if entry.expires_ns:
            self._schedule(entry, entry.expires_ns)

    def _remove(self, entry: Entry) -> None:
        """Take one entry out where it stands."""
        level = self._level(entry)
        line = level.late if entry in level.late.entries else level.main
        line.remove(entry)
        if not level:
            self._close(level.number)
        self._size -= 1
        self.breaks += 1
        self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        """Undo `_note` for an entry that has left its line."""
        if entry.rows != 1:
            self._multiple -= 1
        if entry.correlation_id:
            same = self._by_id[entry.correlation_id]
            del same[entry]
            if not same:
                del self._by_id[entry.correlation_id]
        if self._timers.pop(entry, None) is None:
            return
        if len(self._heap) > _SLACK + 2 * len(self._timers):
            self._heap[:] = [item for item in self._heap if self._timers.get(item[2]) == item[1]]
            heapify(self._heap)


def request_prefix(entry: Entry) -> str:
    """Return what Triton's texts about a queued request begin with (QT-01)."""
    return f"[request id: {entry.id or '<id_unknown>'}] "


def _timeout_expired(entry: Entry) -> InferError:
    return DeadlineExceeded(request_prefix(entry) + "Request timeout expired")


def _deadline_passed(entry: Entry) -> InferError:
    return DeadlineExceeded(
        f"{request_prefix(entry)}the request's deadline, {entry.deadline_ms} ms since the epoch, passed in the queue",
        reason=Reason.DEADLINE_PASSED,
    )
