"""The records of the state topic: their keys and their values (DELIVERY P-3, P-4).

A record's key is ``kind/key/nonce``, such as ``sequence/u:7/4-0a1b2c3d``: the nonce says which takeover wrote it, so
that compaction never lets one owner's snapshot replace another's, and of how many partitions the input topic was then:
under another number a key may have been elsewhere meanwhile. A value is::

    head      magic "HRSS", format version, flag, digest of the layout, input offset, timestamp, CRC-32 of these
    sections  any number of: tag, length, content; tags that are not known are passed over
    check     CRC-32 of the sections

All numbers are little-endian. The head is the same in every format version, so that any release can rank what any
other one wrote; a reader of many snapshots looks at nothing else (`read_head`). Within a format version, fields are
only ever added at the end of a section's content, and sections with tags of their own; whatever an older reader
could not pass over makes a new version.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import chain
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from headrace.schemas.model_config import StateConfig
from headrace.schemas.packing import Reader, headers_of, number, sized
from headrace.schemas.record import Out
from headrace.schemas.remembered import Recent, pack_recent, unpack_recent
from headrace.schemas.sequence import Flag, SequenceState, sequence_id_of
from headrace.schemas.tensor import Shape

MAGIC = b"HRSS"
VERSION = 1
"""Format version that we write, and the newest one that we read."""

_Fields: TypeAlias = tuple[bytes, int, int, int, int, int, int, int]
_HEAD = struct.Struct("<4sBBHQqqI")
_FIELDS = struct.Struct("<4sBBHQqq")
_CHECKED = _FIELDS.size
_SECTION = struct.Struct("<BI")
_CHECK = struct.Struct("<I")
_STATE, _ANSWERS = 1, 2

_STEPS = struct.Struct("<qqH")
_TENSOR = struct.Struct("<BI")
_NUMBER = struct.Struct("<q")


class StateKind(StrEnum):
    """What a keyed store holds: the first part of a state record's key."""

    SEQUENCE = "sequence"
    JOIN = "join"
    ANSWER = "answer"


class Damage(StrEnum):
    """Why a snapshot cannot be used: stable words for metrics."""

    CORRUPT = "corrupt"
    OTHER_LAYOUT = "other_layout"
    NEWER = "newer"


class SnapshotError(Exception):
    """A snapshot cannot be used; its sequence is lost, and the others go on. Never silent.

    Attributes:
        damage: Which kind of damage.
        detail: One sentence.
    """

    damage = Damage.CORRUPT

    def __init__(self, detail: str) -> None:
        """Keep the sentence."""
        super().__init__(detail)
        self.detail = detail


class CorruptSnapshot(SnapshotError):
    """A checksum differs, bytes are missing, or it is no snapshot at all."""


class OtherLayout(SnapshotError):
    """The states that the model declares have changed since: names, datatypes or dims."""

    damage = Damage.OTHER_LAYOUT


class NewerSnapshot(SnapshotError):
    """A newer release wrote it, in a format that this one does not know."""

    damage = Damage.NEWER


class Stored(Protocol):
    """What a keyed store holds, whatever its kind: an immutable value as of one record of the input partition."""

    @property
    def offset(self) -> int:
        """Of that record; it and all earlier ones of the key are finished."""

    @property
    def flag(self) -> Flag:
        """Whether the key goes on; all but `Flag.LIVE` are markers (P-2)."""

    @property
    def timestamp_ms(self) -> int:
        """That record's timestamp."""


S = TypeVar("S", bound=Stored)


class Head(NamedTuple):
    """What every snapshot begins with.

    Attributes:
        magic: `MAGIC`.
        version: Format version of the sections.
        flag: Value of the `Flag`.
        reserved: 0.
        digest: Of the layout of what is stored, as `layout_digest` makes it.
        offset: Input offset.
        timestamp_ms: Timestamp of that record.
        check: CRC-32 of the above.
    """

    magic: bytes
    version: int
    flag: int
    reserved: int
    digest: int
    offset: int
    timestamp_ms: int
    check: int


class StateCodec(Protocol[S]):
    """Turns what a store holds into a section's content and back; one per model, prepared once.

    Attributes:
        digest: Of the layout; live snapshots of another one are refused.
    """

    digest: int

    def check_key(self, key: bytes) -> None:
        """Raise `ValueError` where nothing that is stored can have this key."""

    def encode(self, state: S) -> Sequence[bytes]:
        """Return what the head does not say, in pieces: large ones are joined only once."""

    def decode(self, head: Head, content: memoryview) -> S:
        """Return the state; `ValueError` or `struct.error` where the content makes no sense. More may follow it."""

    def lost(self, offset: int, timestamp_ms: int) -> S:
        """Return the marker of a key whose snapshot cannot be used."""


def state_key(kind: str, key: bytes, nonce: bytes) -> bytes:
    """Return the key of a state record; ``nonce`` has no slash, ``key`` may have any number."""
    return b"%s/%s/%s" % (kind.encode(), key, nonce)


def split_state_key(record_key: bytes) -> tuple[str, bytes, bytes]:
    """Return kind, key and nonce.

    Raises:
        ValueError: It is no state record's key.
    """
    kind, slash, rest = record_key.partition(b"/")
    key, second, nonce = rest.rpartition(b"/")
    if not (slash and second and kind and key and nonce):
        raise ValueError(f"the record key {record_key[:80]!r} is not kind/key/nonce")
    return kind.decode(errors="replace"), key, nonce


def takeover_nonce(partitions: int, token: str) -> bytes:
    """Return the nonce of a takeover.

    Args:
        partitions: Of the input topic at that time, at least 1.
        token: Never used before; hexadecimal digits.
    """
    return b"%x-%s" % (partitions, token.encode())


def nonce_partitions(nonce: bytes) -> int:
    """Return how many partitions the input topic had at a takeover, 0 where its nonce does not say."""
    count, dash, _ = nonce.partition(b"-")
    try:
        return int(count, 16) if dash else 0
    except ValueError:
        return 0


def layout_digest(states: Iterable[StateConfig]) -> int:
    """Return a digest of the declared states, in the order of the configuration: names, datatypes and dims."""
    text = "\n".join(
        f"{state.input_name!r} {state.output_name!r} {state.datatype.value} {list(state.dims)}"
        for state in states
    )
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def pack_snapshot(
    codec: StateCodec[S], state: S, answers: Mapping[int, Out] | None = None
) -> bytes:
    """Return the value of a state record.

    Args:
        codec: Of what is stored.
        state: What is stored.
        answers: Input offset → the answer that was recorded before it was published (P-16).
    """
    head = _FIELDS.pack(
        MAGIC, VERSION, state.flag, 0, codec.digest, state.offset, state.timestamp_ms
    )
    first, *rest = codec.encode(state)
    size = len(first) + sum(map(len, rest))
    parts = [_SECTION.pack(_STATE, size) + first, *rest]
    if answers:
        recorded = _pack_answers(answers)
        parts += [_SECTION.pack(_ANSWERS, len(recorded)), recorded]
    check = 0
    for part in parts:
        check = zlib.crc32(part, check)
    return b"".join((head, _CHECK.pack(zlib.crc32(head)), *parts, _CHECK.pack(check)))


def read_head(value: bytes) -> Head:
    """Return a snapshot's head; nothing behind it is looked at.

    Raises:
        CorruptSnapshot: It is too short, no snapshot, or its checksum differs.
    """
    return Head._make(_head(value))


def read_rank(value: bytes) -> tuple[int, bool]:
    """Return a snapshot's input offset and whether it is a marker: of one key's, the greater one counts (P-4).

    The same as `read_head`, for a reader of very many.

    Raises:
        CorruptSnapshot: It is too short, no snapshot, or its checksum differs.
    """
    found = _head(value)
    return found[5], found[2] != 0


def _head(value: bytes) -> _Fields:
    try:
        found: _Fields = _HEAD.unpack_from(value)
    except struct.error as exc:
        raise CorruptSnapshot(f"a snapshot of {len(value)} bytes is cut in its head") from exc
    if found[0] != MAGIC:
        raise CorruptSnapshot(f"a snapshot begins with {found[0]!r}, expected {MAGIC!r}")
    if zlib.crc32(value[:_CHECKED]) != found[7]:
        raise CorruptSnapshot("a snapshot's head differs from its checksum")
    return found


def unpack_snapshot(codec: StateCodec[S], value: bytes) -> tuple[S, dict[int, Out]]:
    """Return what a state record holds, and the answers that were recorded with it.

    Raises:
        CorruptSnapshot: A checksum differs or bytes are missing.
        OtherLayout: It is a live one of another layout; markers have none.
        NewerSnapshot: Its format version is above `VERSION`.
    """
    head = read_head(value)
    if head.version > VERSION:
        raise NewerSnapshot(
            f"a snapshot has format version {head.version}, expected at most {VERSION}: "
            "a newer release wrote it"
        )
    sections = memoryview(value)[_HEAD.size : -_CHECK.size]
    if (
        len(value) < _HEAD.size + _CHECK.size
        or zlib.crc32(sections) != _CHECK.unpack(value[-_CHECK.size :])[0]
    ):
        raise CorruptSnapshot("a snapshot's sections differ from their checksum")
    if head.flag == Flag.LIVE and head.digest != codec.digest:
        raise OtherLayout(
            f"a snapshot has the layout {head.digest:016x}, expected {codec.digest:016x}: "
            "the states that the model declares have changed"
        )
    try:
        found = _sections(sections)
        return codec.decode(head, found[_STATE]), _unpack_answers(
            found.get(_ANSWERS, memoryview(b""))
        )
    except (struct.error, ValueError, KeyError) as exc:
        raise CorruptSnapshot(f"a snapshot's sections make no sense: {exc!r}") from exc


class SequenceCodec:
    """Snapshots of sequences; see `StateCodec`."""

    def __init__(self, states: Iterable[StateConfig]) -> None:
        """Prepare for a model's declared states."""
        self.digest = layout_digest(states)
        self._shapes: tuple[Shape, ...] = ()
        self._heads: tuple[tuple[Shape, ...], tuple[int, ...], list[bytes]] = ((), (), [])

    def check_key(self, key: bytes) -> None:
        """Raise `ValueError` where it is no sequence's."""
        sequence_id_of(key)

    def encode(self, state: SequenceState) -> list[bytes]:
        """Return version, steps, tensors, and recent keys with their answers."""
        tensors, shapes = state.tensors, state.shapes
        if state.recent:
            recent = sized(pack_recent(state.recent))
            return [*self.encode(state._replace(recent=())), recent]
        steps = _STEPS.pack(state.version, state.steps, len(tensors))
        if not tensors:
            return [steps]
        known, sizes, heads = self._heads
        if known is not shapes or sizes != tuple(map(len, tensors)):
            heads = [_tensor_head(*found) for found in zip(tensors, shapes, strict=True)]
            self._heads = shapes, tuple(map(len, tensors)), heads
        if len(tensors) == 1:
            return [steps + heads[0], tensors[0]]
        return [steps, *chain.from_iterable(zip(heads, tensors, strict=True))]

    def decode(self, head: Head, content: memoryview) -> SequenceState:
        """Return the state; the data is copied, so that it does not pin the record."""
        version, steps, count = _STEPS.unpack_from(content)
        reader = Reader(content, _STEPS.size)
        tensors, shapes = [], []
        for _ in range(count):
            rank, size = _TENSOR.unpack(reader.take(_TENSOR.size))
            shapes.append(struct.unpack(f"<{rank}q", reader.take(8 * rank)))
            tensors.append(bytes(reader.take(size)))
        found = tuple(shapes)
        if found == self._shapes:
            found = self._shapes  # where the dims are fixed all share one tuple
        self._shapes = found
        flag = Flag(head.flag)
        recent: Recent = ()
        if reader.at < len(content):
            recent = unpack_recent(reader.take(reader.number()))
        return SequenceState(
            head.offset, flag, head.timestamp_ms, version, steps, tuple(tensors), found, recent
        )

    def lost(self, offset: int, timestamp_ms: int) -> SequenceState:
        """Return a marker that says so."""
        return SequenceState(offset, Flag.LOST, timestamp_ms, 0, 0)


def _tensor_head(tensor: bytes, shape: Shape) -> bytes:
    return _TENSOR.pack(len(shape), len(tensor)) + struct.pack(f"<{len(shape)}q", *shape)


def _sections(data: memoryview) -> dict[int, memoryview]:
    reader, found = Reader(data), {}
    while reader.at < len(data):
        tag, size = _SECTION.unpack(reader.take(_SECTION.size))
        found[tag] = reader.take(size)
    return found


def _pack_answers(answers: Mapping[int, Out]) -> bytes:
    """Each answer has its own length, so that later fields have room."""
    parts = []
    for offset, out in answers.items():
        fields = [_NUMBER.pack(offset), sized(out.topic.encode()), number(out.partition)]
        fields += [sized(out.key), sized(out.value), *headers_of(out.headers)]
        parts.append(sized(b"".join(fields)))
    return b"".join(parts)


def _unpack_answers(content: memoryview) -> dict[int, Out]:
    reader, found = Reader(content), {}
    while reader.at < len(content):
        answer = Reader(reader.take(reader.number()))
        (offset,) = _NUMBER.unpack(answer.take(_NUMBER.size))
        topic, partition = answer.text(), answer.number()
        key, value = answer.sized(), answer.sized()
        found[offset] = Out(topic, partition, key, value, answer.headers())
    return found
