"""Attempts that outlive their process: what commit metadata says of owners that ended (DELIVERY P-14). Pure.

Rules of this module:

1. What is written is what the next owner shall believe if nothing else is written: an owner writes one crash more
   before it admits anything, and one death more of a record before that record runs alone. A clean hand-over takes both
   back; so what it found stays, and only its own part goes.
2. Progress ends it: once the committed offset has moved, nothing is said any more. What is finished above it is no
   progress, for a record that kills slowly lets its neighbours finish.
3. From `SUSPECTED_FROM` crashes on, what may have been in flight is suspected: offsets from the committed one on, below
   ``end``, which is fixed then. They stay so until all of them are finished, whatever finishes before, for a crash
   costs far more than running alone.
4. Only one record is ever announced. A death counts for it alone, and for nobody who waited.
5. What a process finds of its own is no crash: it lives.
6. Reading a record's value may end a process, too. Where owners go on to end although records are announced before
   they run, each is announced before it is read, and taken back when it was: one that ends its process then is not
   read any more.

In the metadata it is the pair ``c``: crashes and owner, then, where offsets are suspected, ``end``, the announced
record and its deaths, with commas between; an ``r`` behind them says that the last one came while it was read.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

from headrace.schemas.record import TP

SUSPECTED_FROM = 2
"""Crashes in a row, without progress, from which on records run alone: one may have had any other reason."""

MAX_CRASHES = 999
"""A larger count is written as this one: three characters of the metadata."""

MAX_DEATHS = 9999
"""The same of a record's deaths: four."""

MAX_DIGITS = 19
"""Of an offset."""

MAX_PAIR_BYTES = 56
"""Most that a pair takes: ``c=999,0123``, two offsets and 9999r, with commas between."""

OWNER_BYTES = 2
"""Random bytes by which a process knows what it has written itself."""

NOBODY = -1

READING = "r"


class Attempts(NamedTuple):
    """What is known of a partition's owners and records that ended together.

    Attributes:
        crashes: Owners in a row that ended without handing over and without progress.
        owner: Who wrote this, `OWNER_BYTES` in hexadecimal digits.
        end: Offsets below it, and not finished, are suspected; 0: none is.
        suspect: The record that was announced last, `NOBODY` where none was.
        deaths: How often its process ended while it was read or ran.
        reading: The last time, while it was read.
    """

    crashes: int = 0
    owner: str = ""
    end: int = 0
    suspect: int = NOBODY
    deaths: int = 0
    reading: bool = False

    def pair(self) -> str:
        """Return it as a pair of the metadata; ``""`` where there is nothing to say."""
        if not self.crashes:
            return ""
        fields: list[object] = [self.crashes, self.owner]
        if self.end:
            fields += [self.end]
            if self.suspect != NOBODY:
                fields += [self.suspect, f"{self.deaths}{READING * self.reading}"]
        return "c=" + ",".join(map(str, fields))


NONE = Attempts()


def read_attempts(metadata: str) -> Attempts:
    """Return what commit metadata says; `NONE` where it says nothing, or nothing that we understand."""
    for pair in metadata.split(";")[1:]:
        name, _, text = pair.partition("=")
        if name == "c":
            return _read(text)
    return NONE


def _read(text: str) -> Attempts:
    crashes, *rest = text.split(",")
    owner, numbers = rest[0] if rest else "", rest[1:]
    is_reading = len(numbers) == 3 and numbers[2].endswith(READING)
    if is_reading:
        numbers[2] = numbers[2].removesuffix(READING)
    digits = [crashes, *numbers]
    if not rest or len(numbers) not in (0, 1, 3) or not all(map(_is_number, digits)):
        return NONE
    if not owner.isascii() or len(owner) > 2 * OWNER_BYTES:
        return NONE
    count = min(int(crashes), MAX_CRASHES)
    end = int(numbers[0]) if numbers else 0
    if len(numbers) < 3:
        return Attempts(count, owner, end)
    deaths = min(int(numbers[2]), MAX_DEATHS)
    return Attempts(count, owner, end, int(numbers[1]), deaths, is_reading)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS


class Mark:
    """What one owner writes of one partition.

    Attributes:
        known: How it stands while this owner lives.
    """

    __slots__ = ("_announced", "_at", "_is_reading", "_is_withdrawn", "_owner", "known")

    def __init__(self, known: Attempts, at: int, owner: str) -> None:
        """Start a takeover.

        Args:
            known: What was found, ``end`` included where offsets are suspected now.
            at: The committed offset.
            owner: Who writes.
        """
        self.known = known
        self._at = at
        self._owner = owner
        self._announced = NOBODY
        self._is_reading = False
        self._is_withdrawn = False

    @property
    def reads_alone(self) -> bool:
        """Whether records are announced before they are read, too: announced before they run, owners still ended."""
        return self.known.crashes > SUSPECTED_FROM

    def is_in_force(self, low: int) -> bool:
        """Whether something is to be said while this is the lowest unfinished offset."""
        return low < self.known.end if self.known.end else low == self._at

    def written(self, low: int) -> Attempts:
        """Return what a commit of this offset says."""
        known = self.known
        if not self.is_in_force(low):
            return NONE
        if self._is_withdrawn:
            return known
        crashes = min(known.crashes + 1, MAX_CRASHES)
        said = known._replace(crashes=crashes, owner=self._owner)
        if self._announced == known.suspect != NOBODY:
            deaths = min(known.deaths + 1, MAX_DEATHS)
            return said._replace(deaths=deaths, reading=self._is_reading)
        return said

    def is_suspected(self, offset: int) -> bool:
        """Whether an offset that is not finished may run alone only."""
        return offset < self.known.end

    def deaths(self, offset: int) -> int:
        """Return how often a record ended its process while it was read or ran alone."""
        return self.known.deaths if self.known.suspect == offset else 0

    def announce(self, offset: int, *, reading: bool = False) -> None:
        """Say from now on that this record runs, or is read."""
        if self.known.suspect != offset:
            self.known = self.known._replace(suspect=offset, deaths=0, reading=False)
        self._announced, self._is_reading = offset, reading

    def recall(self) -> None:
        """Say no more that a record is read: others run while it waits for an instance."""
        self._announced = NOBODY

    def lift(self) -> None:
        """Suspect nothing any more, and say nothing."""
        self.known = NONE
        self._at = NOBODY

    def withdraw(self) -> None:
        """Take back what this owner has said: it lives, and hands the partition over."""
        self._is_withdrawn = True


class Marks:
    """The marks of one model in this process, over all of its memberships."""

    def __init__(self, *, span: int) -> None:
        """Start as somebody whom nobody knows.

        Args:
            span: Offsets that may have been in flight from the committed one on (`WorkerSettings.max_partition_span`).
        """
        self._owner = secrets.token_hex(OWNER_BYTES)
        self._span = span
        self._marks: dict[TP, Mark] = {}

    def take_over(self, tp: TP, metadata: str, low: int, end: int) -> Mark | None:
        """Return what is to be written before anything is admitted; None where nothing is there to be admitted.

        Args:
            tp: The partition.
            metadata: Of its committed position.
            low: The committed offset.
            end: The partition's end.
        """
        known = read_attempts(metadata)
        if (own := self._marks.pop(tp, None)) is not None and known.owner == self._owner:
            known = own.known
        if low >= end:
            return None
        if known.end <= low:
            known = known._replace(end=0, suspect=NOBODY, deaths=0, reading=False)
        if known.crashes >= SUSPECTED_FROM and not known.end:
            known = known._replace(end=min(end, low + self._span))
        mark = self._marks[tp] = Mark(known, low, self._owner)
        return mark
