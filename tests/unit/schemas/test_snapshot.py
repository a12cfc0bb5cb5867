"""Records of the state topic: their keys, their bytes, and what is said of those that cannot be used (DELIVERY P-4)."""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress

import pytest
from headrace.schemas.model_config import StateConfig
from headrace.schemas.record import Out
from headrace.schemas.remembered import AnswerCodec, KeptAnswer, Remembered
from headrace.schemas.sequence import Flag, SequenceState, sequence_key
from headrace.schemas.snapshot import (
    VERSION,
    CorruptSnapshot,
    Damage,
    NewerSnapshot,
    OtherLayout,
    SequenceCodec,
    SnapshotError,
    StateKind,
    layout_digest,
    pack_snapshot,
    read_head,
    read_rank,
    split_state_key,
    state_key,
    unpack_snapshot,
)
from headrace.schemas.tensor import Datatype
from hypothesis import given, settings
from hypothesis import strategies as st

STATES = (
    StateConfig("h", "h_out", Datatype.FP32, (2,)),
    StateConfig("mark", "mark_out", Datatype.UINT8, (-1,)),
)
LIVE = SequenceState(258, Flag.LIVE, 1_700_000_000_123, 3, 17, (b"\x01" * 8, b"xyz"), ((2,), (3,)))
ENDED = LIVE.marked(Flag.ENDED, 259)
ANSWER = Out(
    "p.m.results", 4, b"u:7", b"value", [("id", b"a"), ("x-none", None), ("status", b"OK")]
)

GOLDEN = (
    "48525353"  # magic
    "01"  # format version
    "00"  # flag: live
    "0000"  # reserved
    "d687e0c801e4dbde"  # digest of the layout
    "0201000000000000"  # input offset
    "7b68e5cf8b010000"  # timestamp, ms
    "1f08c956"  # CRC-32 of these
    "01" "37000000"  # the state's section, length
    "0300000000000000"  # model version
    "1100000000000000"  # steps
    "0200"  # tensors
    "01" "08000000" "0200000000000000" "0101010101010101"  # rank, bytes, dims, data
    "01" "03000000" "0300000000000000" "78797a"
    "02" "5c000000"  # the answers' section, length
    "58000000"  # length of one
    "0201000000000000"  # its input offset
    "0b000000" "702e6d2e726573756c7473"  # topic
    "04000000"  # partition
    "03000000" "753a37"  # key
    "05000000" "76616c7565"  # value
    "03000000"  # headers
    "02000000" "6964" "01000000" "61"
    "06000000" "782d6e6f6e65" "ffffffff"
    "06000000" "737461747573" "02000000" "4f4b"
    "11b0ae99"  # CRC-32 of the sections
)  # fmt: skip


def codec() -> SequenceCodec:
    """The codec of a model with two states."""
    return SequenceCodec(STATES)


def fields(out: Out) -> tuple:
    """Everything that an answer is."""
    return out.topic, out.partition, out.key, out.value, list(out.headers)


def section(tag: int, content: bytes) -> bytes:
    """One section as the format has it."""
    return struct.pack("<BI", tag, len(content)) + content


def with_sections(value: bytes, sections: bytes) -> bytes:
    """The same head, other sections, a right checksum."""
    return value[:36] + sections + struct.pack("<I", zlib.crc32(sections))


def with_head(value: bytes, **changed: int) -> bytes:
    """Other fields in the head, a right checksum."""
    head = read_head(value)._replace(**changed)
    packed = struct.pack("<4sBBHQqq", *head[:7])
    return packed + struct.pack("<I", zlib.crc32(packed)) + value[36:]


def test_P4_the_key_says_kind_key_and_takeover() -> None:
    """The same id under two takeovers has two keys, so that compaction keeps both."""
    assert state_key(StateKind.SEQUENCE, b"u:7", b"0a1b2c3d") == b"sequence/u:7/0a1b2c3d"
    assert split_state_key(b"join/in/0/41/0a1b2c3d") == ("join", b"in/0/41", b"0a1b2c3d")


@given(st.one_of(st.integers(0, 2**64 - 1), st.text(min_size=1)), st.sampled_from(StateKind))
def test_KX12_any_id_comes_back_out_of_the_key(sequence_id: int | str, kind: StateKind) -> None:
    """Also with slashes in it: the split is from the right."""
    key = sequence_key(sequence_id)
    assert split_state_key(state_key(kind, key, b"00ff00ff")) == (kind, key, b"00ff00ff")


@pytest.mark.parametrize(
    "key", [b"", b"sequence", b"sequence/u:7", b"/u:7/00", b"sequence//00", b"a/b/"]
)
def test_a_key_of_somebody_else_is_refused(key: bytes) -> None:
    """The state topic may hold records that are not ours."""
    with pytest.raises(ValueError, match="is not kind/key/nonce"):
        split_state_key(key)


def test_the_bytes_are_those_of_the_first_release() -> None:
    """What was written must stay readable: a change of these bytes needs a new format version."""
    value = pack_snapshot(codec(), LIVE, {258: ANSWER})
    assert value.hex() == GOLDEN
    state, answers = unpack_snapshot(codec(), bytes.fromhex(GOLDEN))
    assert state == LIVE
    assert {at: fields(out) for at, out in answers.items()} == {258: fields(ANSWER)}


def test_a_marker_holds_no_tensors() -> None:
    """P-2: it says only how the sequence ended, and when."""
    value = pack_snapshot(codec(), ENDED)
    assert unpack_snapshot(codec(), value) == (ENDED, {})
    assert len(value) < 100


shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
live_states = st.builds(
    lambda offset, at, version, steps, parts: SequenceState(
        offset,
        Flag.LIVE,
        at,
        version,
        steps,
        tuple(d for d, _ in parts),
        tuple(s for _, s in parts),
    ),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**63 - 1),
    st.integers(0, 2**31),
    st.integers(0, 2**40),
    st.lists(st.tuples(st.binary(max_size=40), shapes), max_size=3),
)
states = st.one_of(
    live_states,
    st.builds(
        lambda state, flag: state.marked(flag, state.offset),
        live_states,
        st.sampled_from(list(Flag)[1:]),
    ),
)
outs = st.builds(
    Out,
    st.text(max_size=8),
    st.integers(0, 2**31 - 1),
    st.none() | st.binary(max_size=8),
    st.none() | st.binary(max_size=40),
    st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=8)), max_size=3),
)


@given(states, st.dictionaries(st.integers(0, 2**63 - 1), outs, max_size=3))
def test_every_state_comes_back(state: SequenceState, answers: dict[int, Out]) -> None:
    """With the answers that were recorded with it (P-16), and the head says where it stands."""
    value = pack_snapshot(codec(), state, answers)
    found, recorded = unpack_snapshot(codec(), value)
    assert found == state
    assert {at: fields(out) for at, out in recorded.items()} == {
        at: fields(out) for at, out in answers.items()
    }
    head = read_head(value)
    assert (head.offset, head.flag, head.timestamp_ms) == state[:3]
    assert read_rank(value) == (state.offset, state.flag is not Flag.LIVE)


def test_equal_shapes_share_one_tuple() -> None:
    """Ten thousand sequences of fixed dims do not need ten thousand shapes."""
    reader = codec()
    first, _ = unpack_snapshot(reader, pack_snapshot(codec(), LIVE))
    second, _ = unpack_snapshot(reader, pack_snapshot(codec(), LIVE))
    assert first.shapes is second.shapes


def test_what_is_read_does_not_pin_the_record() -> None:
    """A fetch's whole buffer would stay in memory for one small tensor."""
    state, _ = unpack_snapshot(codec(), pack_snapshot(codec(), LIVE))
    assert [type(tensor) for tensor in state.tensors] == [bytes, bytes]


@pytest.mark.parametrize("at", range(len(bytes.fromhex(GOLDEN))))
def test_a_changed_byte_is_noticed(at: int) -> None:
    """Wherever it is, one bit is enough."""
    value = bytearray.fromhex(GOLDEN)
    value[at] ^= 0x10
    with pytest.raises(CorruptSnapshot) as caught:
        unpack_snapshot(codec(), bytes(value))
    assert caught.value.damage is Damage.CORRUPT


@pytest.mark.parametrize("size", range(len(bytes.fromhex(GOLDEN))))
def test_missing_bytes_are_noticed(size: int) -> None:
    """Cut anywhere."""
    with pytest.raises(CorruptSnapshot):
        unpack_snapshot(codec(), bytes.fromhex(GOLDEN)[:size])


@settings(max_examples=300)
@given(st.binary(max_size=200), st.binary(max_size=80))
def test_no_bytes_raise_anything_else(noise: bytes, sections: bytes) -> None:
    """Noise, and noise behind right checksums: a typed error or a state, never another exception."""
    for value in (noise, with_sections(bytes.fromhex(GOLDEN), sections)):
        with suppress(SnapshotError):
            unpack_snapshot(codec(), value)
    with pytest.raises(CorruptSnapshot):
        read_head(noise)


def test_a_damaged_body_still_says_its_offset() -> None:
    """The head has its own checksum: a reader can rank what it cannot decode."""
    value = bytes.fromhex(GOLDEN)[:-1] + b"\0"
    assert read_head(value).offset == 258
    with pytest.raises(CorruptSnapshot, match="sections differ from their checksum"):
        unpack_snapshot(codec(), value)


@pytest.mark.parametrize(
    "changed",
    [
        STATES[:1],
        STATES[::-1],
        (StateConfig("h", "h_out", Datatype.FP16, (2,)), STATES[1]),
        (StateConfig("h", "h_out", Datatype.FP32, (3,)), STATES[1]),
        (StateConfig("g", "h_out", Datatype.FP32, (2,)), STATES[1]),
        (StateConfig("h", "g_out", Datatype.FP32, (2,)), STATES[1]),
    ],
)
def test_states_of_another_model_shape_are_refused(changed: tuple[StateConfig, ...]) -> None:
    """Fewer, in another order, of another datatype, dims or name; but a marker has no layout."""
    other = SequenceCodec(changed)
    with pytest.raises(OtherLayout, match="the states that the model declares have changed"):
        unpack_snapshot(other, pack_snapshot(codec(), LIVE))
    assert unpack_snapshot(other, pack_snapshot(codec(), ENDED)) == (ENDED, {})


def test_the_layout_is_what_the_model_declares() -> None:
    """How the first state is made does not count: it is no part of later ones."""
    other = StateConfig("h", "h_out", Datatype.FP32, (2,), use_same_buffer=True)
    assert layout_digest([other, STATES[1]]) == layout_digest(STATES) != layout_digest([])


def test_a_snapshot_of_a_newer_release_is_refused_by_its_version() -> None:
    """Its offset can be read all the same: the head stays as it is."""
    value = with_head(bytes.fromhex(GOLDEN), version=VERSION + 1)
    assert read_head(value).offset == 258
    with pytest.raises(NewerSnapshot, match="format version 2, expected at most 1"):
        unpack_snapshot(codec(), value)


NO_KEYS = struct.pack("<i", 0)
"""The last field of this release, where there is none: later ones come behind it."""


def test_P17_recent_keys_and_their_answers_come_back_as_they_were() -> None:
    """DELIVERY P-17: they live in the snapshot, of a live sequence and of one that has ended."""
    answers = (
        KeptAnswer(b"value", [("status", b"OK"), ("model-version", b"3")]),
        KeptAnswer(b"", [("status", b"INTERNAL"), ("reason", b"backend_failed")]),
    )
    recent = (
        (b"key/1", Remembered(7, Flag.LIVE, 11, 1_700_000_000_999, b"d" * 16, answers)),
        (b"~", Remembered(9, Flag.LIVE, 12, 13, b"", ())),
    )
    for state in (LIVE, ENDED):
        keyed = state._replace(recent=recent)
        assert unpack_snapshot(codec(), pack_snapshot(codec(), keyed)) == (keyed, {})
        assert unpack_snapshot(codec(), pack_snapshot(codec(), state))[0].recent == ()


def test_P17_an_answer_of_a_stateless_request_comes_back_as_it_was() -> None:
    """With the head of every snapshot, so that readers rank it as they do others."""
    answer = KeptAnswer(b"value", [("status", b"OK"), ("claim-check", b"{}")])
    state = Remembered(258, Flag.LIVE, 1_700_000_000_123, 5, b"d" * 16, (answer, answer))
    value = pack_snapshot(AnswerCodec(), state)
    assert unpack_snapshot(AnswerCodec(), value) == (state, {})
    assert read_rank(value) == (258, False)
    assert state.size > len(value) / 2
    for cut in range(len(value)):
        with pytest.raises(CorruptSnapshot):
            unpack_snapshot(AnswerCodec(), value[:cut])
    assert AnswerCodec().lost(3, 4).flag is Flag.LOST
    with pytest.raises(ValueError, match="a character at least"):
        AnswerCodec().check_key(b"")


def test_fields_that_a_later_release_adds_are_passed_over() -> None:
    """Within a format version: a section of its own, and more at the end of a known one."""
    value = pack_snapshot(codec(), LIVE)
    (size,) = struct.unpack_from("<I", value, 37)
    content = value[41 : 41 + size]
    later = with_sections(
        value, section(77, b"whatever") + section(1, content + NO_KEYS + b"later")
    )
    assert unpack_snapshot(codec(), later) == (LIVE, {})


def test_an_unknown_flag_is_no_state() -> None:
    """A flag that this release does not know needs a new format version."""
    with pytest.raises(CorruptSnapshot, match="make no sense"):
        unpack_snapshot(codec(), with_head(bytes.fromhex(GOLDEN), flag=9))
