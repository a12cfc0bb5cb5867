"""What can be no step of a sequence, on a whole worker: its typed error, counted, and the others go on."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from fault_kit import Key, OneMemoryLog, Running, Stage, until
from headrace.schemas.codec import encode_request
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import TP, Out
from headrace.schemas.sequence import Flag, SequenceState
from headrace.schemas.snapshot import pack_snapshot, split_state_key
from headrace.schemas.tensor import Tensor
from headrace.streams.log import EARLIEST, LATEST, Span, TopicSpec
from headrace.streams.memory import MemoryLog
from headrace.streams.topology import MappedTopics
from prometheus_client import generate_latest
from sequence_kit import (
    MODEL,
    SequenceStage,
    Step,
    check_folds,
    check_steps,
    codec,
    counts,
    write_folds,
    write_sums,
)
from service_kit import samples


class Bad(NamedTuple):
    """A record that is no step, and what it is answered."""

    out: Out
    status: str
    reason: str
    words: str


def _control(stage: SequenceStage, name: str) -> Out:
    """Make a step that brings a control tensor."""
    tensors = (
        Tensor.from_numpy("INPUT", np.ones((1, 1), np.int64)),
        Tensor.from_numpy(name, np.ones((1, 1), np.int32)),
    )
    value, headers = encode_request(InferRequest(tensors, sequence_id=7))
    return Out(stage.requests, 0, b"7", value, headers)


def _keyed(out: Out, key: bytes | None) -> Out:
    out.key = key
    return out


def bad_records(stage: SequenceStage) -> list[Bad]:
    """Return one record of each kind; sequence 7 is live."""
    record = stage.record
    step = Step(7, 1)
    first = "must specify the START flag on the first request of the sequence"
    return [
        Bad(
            record(Step(0, 1)),
            "INVALID_ARG",
            "invalid_request",
            "must specify a non-zero or non-empty correlation ID",
        ),
        Bad(
            record(Step("", 1)),
            "INVALID_ARG",
            "invalid_request",
            "must specify a non-zero or non-empty correlation ID",
        ),
        Bad(
            record(step, rows=2),
            "INVALID_ARG",
            "invalid_request",
            "must specify batch-size 1 due to requirements of sequence batcher",
        ),
        Bad(
            record(Step(99, 1)),
            "INVALID_ARG",
            "sequence_unknown",
            f"sequence 99 to model 'echo' {first}",
        ),
        Bad(
            record(Step(8, 1)),
            "INVALID_ARG",
            "sequence_unknown",
            f"sequence 8 to model 'echo' {first}",
        ),
        Bad(
            record(Step("7", 1)),
            "INVALID_ARG",
            "invalid_request",
            "sequence batching control 'CORRID' data-type is 'BYTES', but model 'echo' expects 'UINT64'",
        ),
        Bad(_control(stage, "CORRID"), "INVALID_ARG", "invalid_request", "CORRID"),
        Bad(_control(stage, "START"), "INVALID_ARG", "invalid_request", "START"),
        Bad(
            _keyed(record(step), b"8"),
            "INVALID_ARG",
            "invalid_header",
            "the record has the key b'8', expected its sequence id b'7'",
        ),
        Bad(
            _keyed(record(step), None),
            "INVALID_ARG",
            "invalid_header",
            "the record has no key, expected its sequence id b'7'",
        ),
    ]


async def test_SQ01_SQ02_SQ03_SQ14_what_is_no_step_gets_its_error_and_the_sequence_goes_on(
    tmp_path, logs, unique
):
    """Each kind between two steps of the same live sequence; 8 has ended before."""
    repository = write_sums(tmp_path, corrid=True, batch=4)
    async with (
        SequenceStage(logs, unique("bad")) as stage,
        stage.worker(repository) as running,
    ):
        await stage.step(Step(7, 1, start=True), Step(8, 1, start=True), Step(8, 2, end=True))
        found: list[tuple[Key, Bad]] = []
        for bad in bad_records(stage):
            (key,) = await stage.send_raw([bad.out])
            found.append((key, bad))
            await stage.step(Step(7, 10))
        await stage.until_answered(stage.sent)
        await stage.until_committed_all()
        check_steps(stage)
        for key, bad in found:
            answer = stage.answer(key)
            assert (answer.status, answer.reason) == (bad.status, bad.reason), answer
            assert bad.words in answer.text
        page = generate_latest(running.worker.registry).decode()
        for reason in {bad.reason for _, bad in found}:
            expected = sum(bad.reason == reason for _, bad in found)
            assert samples(page, "headrace_refused_requests", reason=reason) == expected
        assert counts(running).live == 1


async def test_B89_an_expired_sequence_says_so_and_START_works_at_once(tmp_path, logs, unique):
    """By the reaper, counted once; a step of an id that never was is told apart; then the same id begins again."""
    repository = write_sums(tmp_path, idle_s=0.3)
    async with (
        SequenceStage(logs, unique("b89")) as stage,
        stage.worker(repository, sequence_skew_s=0.1) as running,
    ):
        await stage.step(Step(7, 1, start=True))
        await until(lambda: counts(running).expired == 1, "the expiry")
        late, other = await stage.send_raw([stage.record(Step(7, 2)), stage.record(Step(8, 2))])
        await stage.step(Step(7, 5, start=True), Step(7, 6, end=True))
        await stage.until_answered(stage.sent)
        assert stage.answer(late).reason == "sequence_expired"
        assert "it expired, " in stage.answer(late).text
        assert "(max_sequence_idle_microseconds)" in stage.answer(late).text
        assert stage.answer(other).reason == "sequence_unknown"
        check_steps(stage)
        assert counts(running).expired == 1


# Snapshots that cannot be used.


def corrupt(state: SequenceState) -> bytes:
    """Flip a bit of the state."""
    value = bytearray(pack_snapshot(codec(), state, None))
    value[-6] ^= 1
    return bytes(value)


def beheaded(state: SequenceState) -> bytes:
    """Leave bytes that are no snapshot at all."""
    return b"no snapshot"


def of_another_shape(state: SequenceState) -> bytes:
    """Write what a model with another state would."""
    wide = state._replace(tensors=(bytes(24),), shapes=((3,),))
    return pack_snapshot(codec((3,)), wide, None)


def newer(state: SequenceState) -> bytes:
    """Write what a later release would: another format version behind the same head."""
    value = bytearray(pack_snapshot(codec(), state, None))
    value[4] = 200
    head = struct.calcsize("<4sBBHQqq")
    value[head : head + 4] = struct.pack("<I", zlib.crc32(value[:head]))
    return bytes(value)


async def snapshots(stage: Stage) -> dict[bytes, tuple[TP, bytes, bytes]]:
    """Return sequence → where its snapshot is, its record key and value, as the state topic has it last."""
    topic = stage.topology.state(MODEL)
    spans = {TP(topic, number): Span(EARLIEST, LATEST) for number in range(2)}
    found = {}
    async with stage.log.reader(spans) as reader:
        while not reader.done():
            for block in await reader.poll(1000, 1.0):
                for record in block.records:
                    if record.value is not None:
                        _, key, _ = split_state_key(record.key)
                        found[key] = (block.tp, record.key, record.value)
    return found


DAMAGES: dict[int, tuple[Callable[[SequenceState], bytes], str, str]] = {
    1: (corrupt, "corrupt", "sequence 1 to model 'echo' must specify the START flag"),
    2: (beheaded, "corrupt", "it was lost, "),
    3: (of_another_shape, "shape", "it was lost, "),
    4: (newer, "newer", "it was lost, "),
}


async def test_a_snapshot_that_cannot_be_used_loses_its_sequence_and_no_other(
    tmp_path, logs, unique, caplog
):
    """Corrupt, no snapshot, of another shape, of a newer release: `sequence_lost` with the reason, counted by kind."""
    repository = write_sums(tmp_path)
    names = [*DAMAGES, 5, 6]
    async with SequenceStage(logs, unique("snap")) as stage:
        async with stage.worker(repository):
            await stage.step(*(Step(name, name, start=True) for name in names))
            await stage.until_answered(stage.sent)
            await stage.until_committed_all()
        saved = await snapshots(stage)
        outs = []
        for name, (damage, _, _) in DAMAGES.items():
            tp, record_key, _ = saved[b"u:%d" % name]
            # As of the last request, so that it is the winner.
            state = SequenceState(name - 1, Flag.LIVE, 0, 1, 1, (bytes(8),), ((1,),))
            outs.append(Out(tp.topic, tp.partition, record_key, damage(state)))
        async with stage.log.publisher() as publisher:
            await publisher.publish(outs)
        async with stage.worker(repository) as second:
            lost = await stage.send_raw([stage.record(Step(name, 1)) for name in DAMAGES])
            await stage.step(*(Step(name, 10) for name in (5, 6)))
            await stage.step(*(Step(name, 3, start=True, end=True) for name in DAMAGES))
            await stage.until_answered(stage.sent)
            await stage.until_committed_all()
            for key, (_, _, words) in zip(lost, DAMAGES.values(), strict=True):
                answer = stage.answer(key)
                assert (answer.status, answer.reason) == ("INVALID_ARG", "sequence_lost")
                assert words in answer.text
            texts = [stage.answer(key).text for key in lost]
            assert len(set(texts)) == len(texts), "each says what is wrong with it"
            page = generate_latest(second.worker.registry).decode()
            for kind, count in (("corrupt", 2), ("shape", 1), ("newer", 1)):
                assert samples(page, "headrace_snapshot_failures", kind=kind) == count
            assert (counts(second).lost, counts(second).restored) == (4, 2)
        check_steps(stage)
        for name in DAMAGES:
            assert f"sequence u:{name} on partition 0 is lost" in caplog.text


# Sequences that are where they should not be, or whose model cannot go on.


async def test_one_sequence_on_two_partitions_is_counted_and_warned_about(
    tmp_path, logs, unique, caplog
):
    """Two producers that hash differently; both sequences are served, and the sentence names the setting."""
    repository = write_sums(tmp_path, batch=4)
    async with (
        SequenceStage(logs, unique("split")) as stage,
        stage.worker(repository) as running,
    ):
        await stage.step(Step("cam", 1, start=True), partition=0)
        await stage.until_answered(stage.sent)
        (astray,) = await stage.send_raw([stage.record(Step("cam", 1), partition=1)])
        await stage.step(Step("cam", 2, start=True), partition=1)
        await stage.step(Step("cam", 3), partition=0)
        await stage.until_answered(stage.sent)
        check_steps(stage)
        answer = stage.answer(astray)
        assert answer.reason == "sequence_unknown"
        assert "it is live on partition 0, and this is 1" in answer.text
        assert counts(running).split == 2
    assert caplog.text.count("sequence s:cam of model 'echo' came to partition 1") == 1
    assert "partitioner=murmur2_random" in caplog.text


async def step_after_takeover(stage: SequenceStage, running: Running) -> tuple[Key, Key]:
    """Step 7 without START and begin 8; returns where the steps lie."""
    (late,) = await stage.send_raw([stage.record(Step(7, 1))])
    (fresh,) = await stage.step(Step(8, 5, start=True))
    await stage.until_answered(stage.sent)
    await stage.until_committed_all()
    return late, fresh


@pytest.mark.parametrize("oldest", [0, 4], ids=["direct", "oldest"])
async def test_KX06_a_model_with_memory_of_its_own_loses_its_sequences_at_a_takeover(
    tmp_path, logs, unique, oldest
):
    """`sequence_lost`, counted, and never a sum that begins in the middle; an ended one is not lost."""
    repository = write_sums(tmp_path, states=False, oldest=oldest, batch=4)
    async with SequenceStage(logs, unique("lost")) as stage:
        async with stage.worker(repository):
            await stage.step(Step(7, 1, start=True), Step(7, 2), Step(9, 1, start=True, end=True))
            await stage.until_answered(stage.sent)
            await stage.until_committed_all()
        # It is remembered over the next takeover, but for the sentence.
        for why in ("the memory that the model keeps of its own", "its state is gone"):
            async with stage.worker(repository) as running:
                late, fresh = await step_after_takeover(stage, running)
                assert stage.answer(late).reason == "sequence_lost"
                assert why in stage.answer(late).text
                assert stage.answer(fresh).values == (5,)
                assert counts(running).lost == 1
                (ended,) = await stage.send_raw([stage.record(Step(9, 1))])
                await stage.until_answered([ended])
                assert stage.answer(ended).reason == "sequence_unknown"


async def test_a_sequence_stays_on_its_version_and_is_lost_with_it(tmp_path, logs, unique):
    """Over a takeover too; when the version is not served any more, the sentence says which it was."""
    both = write_folds(tmp_path / "both")
    newest = write_folds(tmp_path / "newest", versions=(2,))
    async with SequenceStage(logs, unique("version")) as stage:
        async with stage.worker(both):
            await stage.step(
                Step("old", 1, start=True, version=1), Step("old", 2), Step("new", 1, start=True)
            )
            (other,) = await stage.send_raw([stage.record(Step("old", 9, version=2))])
            await stage.until_answered(stage.sent)
            await stage.until_committed_all()
        assert "the sequence is on version 1" in stage.answer(other).text
        async with stage.worker(both):
            await stage.step(Step("old", 3), Step("old", 4, version=1), Step("new", 2))
            await stage.until_answered(stage.sent)
            await stage.until_committed_all()
        check_folds(stage)
        async with stage.worker(newest) as last:
            (gone,) = await stage.send_raw([stage.record(Step("old", 5))])
            await stage.step(Step("new", 3), Step("other", 1, start=True))
            await stage.until_answered(stage.sent)
            assert stage.answer(gone).reason == "sequence_lost"
            assert "it was on version 1, which is not served any more" in stage.answer(gone).text
            assert counts(last).lost == 1
        check_folds(stage)


async def test_mapped_topics_may_have_any_key(tmp_path):
    """It is somebody else's there, and only the partition counts; each partition has its own order (DESIGN §4)."""
    log = MemoryLog()
    stage = SequenceStage(OneMemoryLog(log), "mapped")
    stage.topology = replace(stage.topology, mapped={MODEL: MappedTopics(requests="orders")})
    await log.ensure([TopicSpec("orders", stage.topology.partitions)])  # it is there before us
    stage.requests = stage.topology.requests(MODEL)
    async with stage, stage.worker(write_sums(tmp_path)):
        steps = (Step(7, 1, start=True), Step(7, 2), Step(7, 3, end=True))
        outs = [
            _keyed(stage.record(step), key)
            for step, key in zip(steps, (None, b"x", b"7"), strict=True)
        ]
        await stage.send_steps(steps, outs)
        await stage.until_answered(stage.sent)
        check_steps(stage)
