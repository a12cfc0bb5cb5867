"""A takeover reads the state topic on every log: winners, tombstones, damage, bounds (P-4, P-5, B24, B96)."""

from __future__ import annotations

import asyncio
import zlib
from contextlib import suppress

import pytest
from aiokafka import AIOKafkaProducer
from headrace.consumers.restore import restore
from headrace.schemas.errors import LogError
from headrace.schemas.model_config import StateConfig
from headrace.schemas.record import Out
from headrace.schemas.sequence import Flag, SequenceState, sequence_id_of
from headrace.schemas.snapshot import (
    Damage,
    SequenceCodec,
    pack_snapshot,
    state_key,
    takeover_nonce,
)
from headrace.schemas.tensor import Datatype
from headrace.streams.log import TopicSpec
from headrace.streams.memory import MemoryLog
from headrace.streams.memory_reader import MemoryReader

OLD, NEW = b"000000aa", b"000000bb"
CODEC = SequenceCodec([StateConfig("h", "h_out", Datatype.UINT8, (-1,))])


def live(offset: int, data: bytes = b"abcd") -> SequenceState:
    return SequenceState(offset, Flag.LIVE, 1, 2, 3, (data,), ((len(data),),))


def saved(key: bytes, nonce: bytes, state: SequenceState | None, partition: int = 0) -> Out:
    """A snapshot, or a tombstone."""
    value = None if state is None else pack_snapshot(CODEC, state)
    return Out("", partition, state_key("sequence", key, nonce), value)


def broken(out: Out, at: int) -> Out:
    """The same record with a byte changed."""
    value = bytearray(out.value or b"")
    value[at] ^= 1
    out.value = bytes(value)
    return out


@pytest.fixture
async def topic(log, unique):
    """A compacted topic of three partitions."""
    name = unique("state")
    await log.ensure([TopicSpec(name, 3, {"cleanup.policy": "compact"})])
    return name


async def write(log, topic, outs):
    """Append, in order."""
    async with log.publisher() as publisher:
        await publisher.publish(
            [Out(topic, out.partition, out.key, out.value, out.headers) for out in outs]
        )


async def test_P4_the_greatest_offset_wins_on_every_log(log, topic):
    """Of all owners' snapshots, whoever wrote last; a marker before a live one; a tombstone removes its own only."""
    ended = live(5).marked(Flag.ENDED, 5)
    await write(
        log,
        topic,
        [
            saved(b"u:1", OLD, live(3)),
            saved(b"u:1", NEW, live(9)),
            saved(b"u:1", OLD, live(4)),
            saved(b"u:2", OLD, ended),
            saved(b"u:2", NEW, live(5)),
            saved(b"s:a/b", OLD, live(1)),
            saved(b"s:a/b", NEW, live(7)),
            saved(b"s:a/b", NEW, None),
            saved(b"u:3", NEW, live(1)),
            saved(b"u:3", NEW, None),
            saved(b"u:4", NEW, live(8), partition=2),
        ],
    )
    found = await restore(log, topic, [0, 1, 2], CODEC)
    assert found[0].states == {b"u:1": live(9), b"u:2": ended, b"s:a/b": live(1)}
    assert found[0].nonces == {b"u:1": (OLD, NEW), b"u:2": (NEW, OLD), b"s:a/b": (OLD,)}
    assert found[0].written_ms.keys() == {b"u:2"}
    assert not found[0].failures
    assert found[0].records == 10
    assert (found[1].states, found[1].records) == ({}, 0)
    assert found[2].states == {b"u:4": live(8)}


async def test_a_damaged_snapshot_is_lost_and_the_others_go_on(log, topic):
    """Corrupt in head or body, of another model shape, from a newer release: each with its sentence, counted."""
    other = SequenceCodec([])
    newer = bytearray(pack_snapshot(CODEC, live(6)))
    newer[4] = 2
    newer[32:36] = zlib.crc32(bytes(newer[:32])).to_bytes(4, "little")
    await write(
        log,
        topic,
        [
            saved(b"u:1", OLD, live(1)),
            saved(b"u:2", OLD, live(2)),
            broken(saved(b"u:2", NEW, live(5)), 20),
            broken(saved(b"u:3", OLD, live(3)), -1),
            Out("", 0, state_key("sequence", b"u:4", OLD), pack_snapshot(other, live(4))),
            Out("", 0, state_key("sequence", b"u:5", OLD), bytes(newer)),
            broken(saved(b"u:6", OLD, live(6)), 20),
            broken(saved(b"u:7", OLD, live(6)), 20),
            saved(b"u:7", OLD, live(7)),
        ],
    )
    found = (await restore(log, topic, [0], CODEC))[0]
    assert found.states.pop(b"u:1") == live(1)
    assert found.states.pop(b"u:7") == live(7)  # its writer has gone on since
    assert {key: (state.flag, state.offset) for key, state in found.states.items()} == {
        b"u:2": (Flag.LOST, 2),  # nobody knows how far it was; at least so far
        b"u:3": (Flag.LOST, 3),
        b"u:4": (Flag.LOST, 4),
        b"u:5": (Flag.LOST, 6),
        b"u:6": (Flag.LOST, -1),
    }
    assert found.damage == {Damage.CORRUPT: 3, Damage.OTHER_LAYOUT: 1, Damage.NEWER: 1}
    assert found.failures.keys() == found.states.keys()
    assert "head differs from its checksum" in found.failures[b"u:2"]
    assert "sections differ from their checksum" in found.failures[b"u:3"]
    assert "have changed" in found.failures[b"u:4"]
    assert "newer release" in found.failures[b"u:5"]


async def test_P4_what_was_written_under_another_number_of_partitions_is_lost(log, topic):
    """Its key may have been elsewhere since. Markers stay, and so do answers: they were promised before."""
    two, three = takeover_nonce(2, "000000aa"), takeover_nonce(3, "000000bb")
    ended = live(5).marked(Flag.ENDED, 5)
    answer = Out("results", 1, b"k", b"answer", [])
    recorded = pack_snapshot(CODEC, live(6), {6: answer})
    await write(
        log,
        topic,
        [
            saved(b"u:1", two, live(3)),
            saved(b"u:2", three, live(4)),
            saved(b"u:3", two, ended),
            saved(b"u:4", three, live(5)),
            saved(b"u:4", two, live(9)),
            saved(b"u:5", two, live(5)),
            saved(b"u:5", three, live(9)),
            Out("", 0, state_key("sequence", b"u:6", two), recorded),
            saved(b"u:7", OLD, live(7)),
        ],
    )
    found = (await restore(log, topic, [0], CODEC, input_partitions=3))[0]
    lost = {key: state.offset for key, state in found.states.items() if state.flag is Flag.LOST}
    assert lost == {b"u:1": 3, b"u:4": 9, b"u:6": 6, b"u:7": 7}
    assert found.failures.keys() == found.finally_lost == lost.keys()
    assert "had 2 partitions when it was written and has 3 now" in found.failures[b"u:1"]
    assert "had an unknown number of partitions" in found.failures[b"u:7"]
    assert not found.damage
    kept = {key: state for key, state in found.states.items() if key not in lost}
    assert kept == {b"u:2": live(4), b"u:3": ended, b"u:5": live(9)}
    assert {key: list(outs) for key, outs in found.answers.items()} == {b"u:6": [6]}


async def test_records_of_others_are_ignored(log, topic):
    """Other kinds, other keys, none at all."""
    value = pack_snapshot(CODEC, live(1))
    keys = [b"join/u:1/00000000", b"sequence/u:1", b"whatever", b"sequence/u:2/00000000"]
    await write(log, topic, [Out("", 0, key, value) for key in keys])
    found = (await restore(log, topic, [0], CODEC))[0]
    assert found.states.keys() == {b"u:2"}
    assert (found.records, found.ignored) == (4, 3)


@pytest.mark.parametrize(
    "key",
    [b"u:abc", b"u:", b"u:07", b"u: 7", b"u:-7", b"u:0", b"s:", b"s:\xff", b"x:7", b"7", b"a/b"],
)
async def test_a_snapshot_under_a_key_of_no_sequence_is_ignored(log, topic, key):
    """Whoever wrote it: nobody could ask for it, and its id cannot be named. The others go on."""
    outs = [saved(key, OLD, live(1)), saved(b"u:2", OLD, live(2)), saved(b"s:a/b", OLD, live(3))]
    await write(log, topic, outs)
    found = (await restore(log, topic, [0], CODEC))[0]
    assert found.states.keys() == found.nonces.keys() == {b"u:2", b"s:a/b"}
    assert {sequence_id_of(key) for key in found.states} == {2, "a/b"}
    assert (found.records, found.ignored, found.failures) == (3, 1, {})


async def test_no_partitions_and_an_empty_topic(log, topic):
    """Nothing to read is read at once."""
    assert await restore(log, topic, [], CODEC) == {}
    assert (await restore(log, topic, [1], CODEC))[1].states == {}


async def test_a_missing_topic_is_an_error(log, unique):
    """The takeover has failed, and is tried again."""
    with pytest.raises(LogError, match="does not exist"):
        await restore(log, unique("nowhere"), [0], CODEC)


@pytest.mark.kafka
@pytest.mark.parametrize("logs", ["kafka"], indirect=True)
async def test_B24_aborted_and_open_transactions_at_the_end_hold_nothing_up(
    log, topic, logs, unique
):
    """FAULTS B24: what was aborted is not restored, and nobody waits for what is open."""
    await write(log, topic, [saved(b"u:1", OLD, live(1))])
    producer = AIOKafkaProducer(
        bootstrap_servers=logs.properties["bootstrap.servers"], transactional_id=unique("tx")
    )
    async with producer:
        for ends in (True, False):
            await producer.begin_transaction()
            out = saved(b"u:1", NEW, live(9))
            await producer.send_and_wait(topic, out.value, key=out.key, partition=0)
            if ends:
                await producer.abort_transaction()
            async with asyncio.timeout(10):
                found = await restore(log, topic, [0], CODEC)
            assert found[0].states == {b"u:1": live(1)}
        await producer.abort_transaction()


async def test_B96_only_what_compaction_would_leave_is_kept():
    """FAULTS B96: twenty snapshots of each sequence are read and one is held; the loop goes on in between."""
    log = MemoryLog()
    await log.ensure([TopicSpec("state", 1)])
    for offset in range(20):
        await write(
            log,
            "state",
            [saved(b"u:%d" % i, OLD, live(offset, bytes(4096))) for i in range(1, 501)],
        )
    held: list[int] = []

    class Watching(SequenceCodec):
        """Counts the turns of the loop while it decodes."""

        def decode(self, head, content):
            held.append(turns)
            return super().decode(head, content)

    turns = 0
    done = False

    async def turn():
        nonlocal turns
        while not done:
            turns += 1
            await asyncio.sleep(0)

    watching = asyncio.create_task(turn())
    codec = Watching([StateConfig("h", "h_out", Datatype.UINT8, (-1,))])
    found = (await restore(log, "state", [0], codec, max_records=100))[0]
    done = True
    await watching
    assert len(found.states) == len(held) == 500  # nothing but the winners was decoded
    assert {state.offset for state in found.states.values()} == {19}
    assert held[0] >= 100  # a turn per block
    assert len(set(held)) >= 3  # and some while decoding
    assert found.records == 10_000


class Silent(MemoryReader):
    """A reader whose broker does not answer."""

    async def poll(self, max_records, timeout_s):
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.Event().wait()
        return ()


class SilentLog(MemoryLog):
    """A log with such readers."""

    def reader(self, spans, *, committed=False):
        return Silent(self, spans)


async def test_a_stalled_topic_is_an_error_with_its_position():
    """Every wait is bounded: the takeover fails and is tried again."""
    log = SilentLog()
    await log.ensure([TopicSpec("state", 1)])
    await write(log, "state", [saved(b"u:1", OLD, live(1))])
    with pytest.raises(LogError, match=r"no progress for 0\.2 s: state/0 at 0") as caught:
        await restore(log, "state", [0], CODEC, stall_s=0.2)
    assert caught.value.retriable
