"""The dead-letter contract: how an input that could not be served is kept, and how it is read back (DESIGN §4, §5).

A dead letter is the original record, key, value and all headers in their order, with a block of headers of ours behind
them. Ours begin with `PREFIX`, and a client may have used the same names, or have sent a dead letter as its request: so
the last of ours says how many headers are the original's, and nothing is ever told apart by a name alone.

Beside letters the topic holds marks: records that say that a letter was redriven. A mark lies in its letter's
partition, behind it, so that retention never takes the mark first. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from headrace.schemas.errors import InferError
from headrace.schemas.headers import MAX_INT64, find_header, number_of
from headrace.schemas.record import ATTEMPT, DEADLINE_MS, TP, Header, Headers, Out, Record

PREFIX = "dead-letter-"
SOURCE = f"{PREFIX}source"
TIMESTAMP = f"{PREFIX}timestamp"
MODEL = f"{PREFIX}model"
VERSION = f"{PREFIX}version"
STATUS = f"{PREFIX}status"
REASON = f"{PREFIX}reason"
DETAIL = f"{PREFIX}detail"
CLASS = f"{PREFIX}class"
ATTEMPTS = f"{PREFIX}attempts"
NULL_VALUE = f"{PREFIX}null-value"
OMITTED_BYTES = f"{PREFIX}omitted-bytes"
OMITTED_KEY_BYTES = f"{PREFIX}omitted-key-bytes"
OMITTED_HEADERS = f"{PREFIX}omitted-headers"
HEADERS = f"{PREFIX}headers"
"""Number of the original's headers, which come first; the last of ours."""
REDRIVE = f"{PREFIX}redrive"
OFFSET = f"{PREFIX}offset"
RUN = f"{PREFIX}redrive-run"

MAX_DETAIL_CHARS = 2000
"""An error's sentence in a header is cut there."""

RECORD_OVERHEAD_BYTES = 128
"""What a record of its own batch takes beside key, value and headers, rounded up."""


def record_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return an upper bound of a record's size as the producer counts it, bytes."""
    size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    return size + sum(len(name.encode()) + len(item or b"") + 10 for name, item in headers)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An input that could not be served, with where it came from and why.

    Attributes:
        source: Topic and partition that it was read from.
        offset: Its offset there.
        timestamp_ms: Its timestamp there, ms since the epoch; -1 where it had none.
        model: Whose topic that is.
        version: The version that failed, or that was asked for; ``""`` where it was not known.
        status: Triton's code of the error.
        reason: Stable word of the error.
        error_class: Kind of the error, a class of `headrace.schemas.errors`.
        detail: Its sentence.
        attempts: How often it was tried, this time included.
        key: Original key.
        value: Original value, null included.
        headers: Original headers, in order.
        omitted_bytes: Length of a value that had no room in the record beside our headers; 0: nothing is missing.
        omitted_key_bytes: The same of the key.
        omitted_headers: How many headers had no room.
    """

    source: TP
    offset: int
    timestamp_ms: int
    model: str
    version: str
    status: str
    reason: str
    error_class: str
    detail: str
    attempts: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    omitted_bytes: int = 0
    omitted_key_bytes: int = 0
    omitted_headers: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing of the original is missing."""
        return not (self.omitted_bytes or self.omitted_key_bytes or self.omitted_headers)

    @property
    def request_bytes(self) -> int:
        """An upper bound of the original's size as a record, bytes."""
        return record_bytes(self.key, self.value, self.headers)

    @property
    def deadline_ms(self) -> int:
        """The original's own deadline, ms since the epoch; 0 where it has none that can be read."""
        try:
            return number_of(DEADLINE_MS, find_header(self.headers, DEADLINE_MS), MAX_INT64)
        except InferError:
            return 0


class RedriveState(StrEnum):
    """How far a redrive of a letter got."""

    BEGUN = "begun"
    SENT = "sent"


@dataclass(frozen=True, slots=True)
class Redrive:
    """What a mark says of the letter at ``offset`` of its own partition.

    Attributes:
        offset: The letter's.
        state: `RedriveState.BEGUN` is written before the request is sent, `RedriveState.SENT` once it is acknowledged:
            a letter that has only the first may have been sent or not.
        attempt: That the request was marked with.
        run: Names the redrive that left it: of several at the same time, each knows its own.
    """

    offset: int
    state: RedriveState
    attempt: int
    run: str = ""


def write_dead_letter(letter: DeadLetter, target: TP, max_record_bytes: int) -> Out:
    """Return the record of a dead letter.

    Args:
        letter: Whole.
        target: The dead-letter topic's partition.
        max_record_bytes: Largest record: a value that our headers push above it is left out, and a header says so;
            then the key and the record's own headers, if these alone are too much.
    """
    out = _letter_record(letter, target)
    if letter.value and record_bytes(out.key, out.value, out.headers) > max_record_bytes:
        letter = replace(letter, value=b"", omitted_bytes=len(letter.value))
        out = _letter_record(letter, target)
    if record_bytes(out.key, out.value, out.headers) > max_record_bytes:
        letter = replace(
            letter,
            key=None,
            headers=(),
            omitted_key_bytes=len(letter.key or b""),
            omitted_headers=len(letter.headers),
        )
        out = _letter_record(letter, target)
    return out


def _letter_record(letter: DeadLetter, target: TP) -> Out:
    headers: list[Header] = [
        *letter.headers,
        (SOURCE, f"{letter.source.topic}/{letter.source.partition}/{letter.offset}".encode()),
        (TIMESTAMP, b"%d" % letter.timestamp_ms),
        (MODEL, _bytes(letter.model)),
        (VERSION, _bytes(letter.version)),
        (STATUS, _bytes(letter.status)),
        (REASON, _bytes(letter.reason)),
        (DETAIL, _bytes(letter.detail[:MAX_DETAIL_CHARS])),
        (CLASS, _bytes(letter.error_class)),
        (ATTEMPTS, b"%d" % letter.attempts),
    ]
    value = letter.value
    if value is None and letter.key is None:
        value = b""  # neither key nor value is no record that a producer writes
        headers.append((NULL_VALUE, b"true"))
    omitted = (
        (OMITTED_BYTES, letter.omitted_bytes),
        (OMITTED_KEY_BYTES, letter.omitted_key_bytes),
        (OMITTED_HEADERS, letter.omitted_headers),
    )
    headers += [(name, b"%d" % count) for name, count in omitted if count]
    headers.append((HEADERS, b"%d" % len(letter.headers)))
    return Out(target.topic, target.partition, letter.key, value, headers)


def _bytes(text: str) -> bytes:
    # A plug-in's own words may hold half a pair of surrogates.
    return text.encode("utf-8", "backslashreplace")


def read_dead_letter(record: Record) -> DeadLetter:
    """Read a record of the dead-letter topic.

    Headers that something on the way put behind ours are passed over.

    Raises:
        ValueError: It is no dead letter; the sentence says what is missing or wrong.
    """
    headers = record.headers
    end = _last(headers, HEADERS)
    if end < 0:
        raise ValueError(f"header '{HEADERS}' is missing, expected a dead letter")
    begin = _number({HEADERS: headers[end][1]}, HEADERS)
    if begin > end:
        raise ValueError(f"header '{HEADERS}' is {begin}, expected at most {end}")
    ours = dict(headers[begin:end])
    topic, partition, offset = _source(_text(ours, SOURCE))
    value = record.value
    return DeadLetter(
        source=TP(topic, partition),
        offset=offset,
        timestamp_ms=_number(ours, TIMESTAMP, least=-1),
        model=_text(ours, MODEL),
        version=_text(ours, VERSION),
        status=_text(ours, STATUS),
        reason=_text(ours, REASON),
        error_class=_text(ours, CLASS),
        detail=_text(ours, DETAIL),
        attempts=_number(ours, ATTEMPTS),
        key=record.key,
        value=None if NULL_VALUE in ours else value,
        headers=tuple(headers[:begin]),
        omitted_bytes=_number(ours, OMITTED_BYTES, default=b"0"),
        omitted_key_bytes=_number(ours, OMITTED_KEY_BYTES, default=b"0"),
        omitted_headers=_number(ours, OMITTED_HEADERS, default=b"0"),
    )


def redriven(letter: DeadLetter, attempt: int, *, without_deadline: bool = False) -> Out:
    """Return the request that a whole letter is sent again as: the original, to the partition that it came from.

    Args:
        letter: Key, value and headers stay as they were.
        attempt: Its header `headrace.schemas.record.ATTEMPT` says this; it replaces one that was there.
        without_deadline: Leave out the original's own deadline.
    """
    replaced = {ATTEMPT, DEADLINE_MS} if without_deadline else {ATTEMPT}
    headers = [header for header in letter.headers if header[0] not in replaced]
    headers.append((ATTEMPT, b"%d" % attempt))
    return Out(letter.source.topic, letter.source.partition, letter.key, letter.value, headers)


def write_mark(target: TP, redrive: Redrive) -> Out:
    """Return the record that says how far the redrive of a letter got.

    Args:
        target: The letter's own partition of the dead-letter topic.
        redrive: What it says.
    """
    headers: list[Header] = [
        (REDRIVE, redrive.state.encode()),
        (OFFSET, b"%d" % redrive.offset),
        (ATTEMPTS, b"%d" % redrive.attempt),
        (RUN, redrive.run.encode()),
    ]
    key = b"%d/%d" % (target.partition, redrive.offset)
    return Out(target.topic, target.partition, key, b"", headers)


def read_mark(record: Record) -> Redrive | None:
    """Return what a mark says, None of any other record.

    Raises:
        ValueError: It is a mark that cannot be read.
    """
    found = dict(record.headers)
    if REDRIVE not in found or HEADERS in found:
        return None  # a letter's own headers may hold any name, but a letter has a count
    state = _text(found, REDRIVE)
    if state not in set(RedriveState):
        raise ValueError(f"header '{REDRIVE}' is {state!r}, expected begun or sent")
    run = (found.get(RUN) or b"").decode(errors="replace")
    return Redrive(_number(found, OFFSET), RedriveState(state), _number(found, ATTEMPTS), run)


def _last(headers: Headers, name: str) -> int:
    """Return the place of the last header of that name, -1 without one."""
    for place in range(len(headers) - 1, -1, -1):
        if headers[place][0] == name:
            return place
    return -1


def _text(found: Mapping[str, bytes | None], name: str) -> str:
    raw = found.get(name)
    if raw is None:
        raise ValueError(f"header '{name}' is missing, expected a dead letter")
    return raw.decode(errors="replace")


def _number(
    found: Mapping[str, bytes | None], name: str, *, least: int = 0, default: bytes | None = None
) -> int:
    raw = found.get(name, default)
    try:
        number = int(raw or b"")
    except ValueError:
        number = least - 1
    if not least <= number <= MAX_INT64:
        raise ValueError(f"header '{name}' is {raw!r}, expected a whole number from {least}")
    return number


def _source(text: str) -> tuple[str, int, int]:
    topic, _, rest = text.partition("/")  # no topic's name has a slash
    partition, _, offset = rest.partition("/")
    if not (topic and partition.isdecimal() and offset.isdecimal()):
        raise ValueError(f"header '{SOURCE}' is {text!r}, expected topic/partition/offset")
    return topic, int(partition), int(offset)
