"""Storms over the identity model: seeded requests of every kind, and what must come back of them."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from claim_kit import VirtualClaims
from deadly_kit import DeadlyFleet
from headrace.consumers.settings import WorkerSettings
from headrace.repository.repository import Repository
from headrace.schemas.batch import Entry
from headrace.schemas.codec import decode_response, encode_request
from headrace.schemas.dead_letter import SOURCE
from headrace.schemas.errors import InferError
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import AVRO, BINARY, CLAIM_CHECK, JSON, PROTOBUF, TP, Out
from headrace.schemas.tensor import Tensor
from headrace.streams.cancels import Cancel, cancel_record
from headrace.streams.log import Mode
from headrace.streams.memory_source import MemorySource
from headrace.streams.memory_transactions import Step
from simulated import FAULTS, SETTINGS, TOPOLOGY, CheckedLog, Fleet, all_answered, strike

CULPRIT = -666.0
DEADLY = -999.0
"""The worker dies of it, where a storm has such."""

UNREADABLE = b"a parser's end"
"""The worker dies while it reads this value, where a storm has such (`deadly_kit.DeadlyReading`)."""


CONFIG = f"""
backend: "identity"
max_batch_size: 8
input [{{ name: "INPUT0" data_type: TYPE_FP32 dims: [2] }}]
output [{{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [2] }}]
dynamic_batching {{ max_queue_delay_microseconds: 3000 }}
instance_group [{{ count: 2 kind: KIND_CPU }}]
parameters {{ key: "fail_if" value {{ string_value: "INPUT0={CULPRIT:.0f}" }} }}
"""


REQUESTS = TOPOLOGY.requests("echo")


RESULTS = TOPOLOGY.results("echo")


@dataclass
class Sent:
    """One record as it was sent, and the answer that it must get."""

    status: str
    reason: str = ""
    values: list[list[float]] = field(default_factory=list)
    reply_topic: str = RESULTS
    content_type: str = AVRO
    dead_letter: bool = False
    cancelled: bool = False
    claim: bytes = b""


class Traffic:
    """Seeded requests of every kind."""

    def __init__(
        self,
        rng: random.Random,
        *,
        deadly: float = 0.0,
        unreadable: float = 0.0,
        claimed: float = 0.0,
        claims: VirtualClaims | None = None,
    ) -> None:
        self._rng = rng
        self._deadly = deadly
        self._unreadable = unreadable
        self._claimed = claimed
        self._claims = claims
        self._ids = itertools.count(1)

    def record(self, now_ms: int) -> tuple[Out, Sent]:
        """Make one record and say what must come back."""
        out, sent = self._whole(now_ms)
        if self._claims is not None and out.value and self._rng.random() < self._claimed:
            sent.claim = self._claims.keep(out.value)
            headers = [*out.headers, (CLAIM_CHECK, sent.claim)]
            out = Out(out.topic, out.partition, out.key, None, headers)
        return out, sent

    def _whole(self, now_ms: int) -> tuple[Out, Sent]:
        partition = self._rng.randrange(TOPOLOGY.partitions)
        if self._unreadable and self._rng.random() < self._unreadable:
            sent = Sent("INTERNAL", "worker_crashed", dead_letter=True)
            return Out(REQUESTS, partition, b"k", UNREADABLE, [("x-trace", b"t")]), sent
        return self._readable(partition, now_ms)

    def _readable(self, partition: int, now_ms: int) -> tuple[Out, Sent]:
        rng = self._rng
        rows = rng.choice((1, 1, 1, 2, 5))
        values = [[float(next(self._ids)), rng.random()] for _ in range(rows)]
        headers: list[tuple[str, bytes]] = [("x-trace", b"t")]
        sent = Sent("OK", values=values)
        kind = rng.choice(
            ("good",) * 12
            + ("culprit", "bytes", "null", "shape", "version") * 1
            + ("reply", "refused", "deadline", "type")
        )
        if self._deadly and rng.random() < self._deadly:
            kind, values[0][0] = "deadly", DEADLY
            sent.status, sent.reason, sent.dead_letter = "INTERNAL", "worker_crashed", True
        if kind == "culprit":
            values[0][0] = CULPRIT
            sent.status, sent.reason, sent.dead_letter = "INTERNAL", "backend_failed", True
        if kind == "shape":
            values = [[*row, 0.0] for row in values]
            sent.status, sent.reason = "INVALID_ARG", "invalid_request"
        if kind == "version":
            headers.append(("model-version", b"9"))
            sent.status, sent.reason = "NOT_FOUND", "unknown_version"
        if kind == "deadline":
            headers.append(("deadline-ms", str(now_ms - 1).encode()))
            sent.status, sent.reason = "UNAVAILABLE", "deadline_passed"
        if kind == "refused":
            headers.append(("reply-topic", b"elsewhere"))
            sent.status, sent.reason = "INVALID_ARG", "reply_topic_refused"
        if kind == "reply" or (kind == "good" and rng.random() < 0.3):
            headers.append(("reply-topic", TOPOLOGY.replies.encode()))
            headers.append(("correlation-id", f"c{next(self._ids)}".encode()))
            sent.reply_topic = TOPOLOGY.replies
        sent.content_type = rng.choice((AVRO, AVRO, AVRO, JSON, BINARY, PROTOBUF))
        tensor = Tensor.from_numpy("INPUT0", np.array(values, np.float32))
        value, more = encode_request(InferRequest((tensor,), id="r"), sent.content_type)
        named = dict(headers)
        all_headers = [*headers, *((n, v) for n, v in more if n not in named)]
        raw: bytes | None = value
        if kind in ("bytes", "null", "type"):
            sent.dead_letter = True
            sent.status, sent.reason = "INVALID_ARG", "undecodable"
            sent.content_type = AVRO
            all_headers = headers
            raw = None if kind == "null" else b"\xff" * 10
            if kind == "type":
                all_headers = [*headers, ("content-type", b"text/plain")]
                sent.reason = "unknown_content_type"
        return Out(REQUESTS, partition, b"k", raw, all_headers), sent


class LaggingLog(CheckedLog):
    """A log whose transactions take their time, so that everything can strike between two of their steps."""

    lags_s = (0.0, 0.0, 0.001, 0.01, 0.05)

    def __init__(self, rng: random.Random) -> None:
        super().__init__(replies=TOPOLOGY.replies)
        self._rng = rng

    async def travel(self, step: Step, source: MemorySource) -> None:
        """Travel late."""
        await asyncio.sleep(self._rng.choice(self.lags_s))
        await super().travel(step, source)


async def storm(
    seed: int,
    repository: Path,
    *,
    faults: int,
    faults_of: Sequence[str] = FAULTS,
    records: int = 100,
    log: CheckedLog | None = None,
    mode: Mode = Mode.AT_LEAST_ONCE,
    settings: WorkerSettings = SETTINGS,
    deadly: float = 0.0,
    unreadable: float = 0.0,
    claimed: float = 0.0,
    seconds: float = 2.0,
    within_s: float = 120.0,
    made: list[Fleet] | None = None,
) -> CheckedLog:
    """Run one seeded simulation to its end and check everything; returns the log for more.

    Args:
        seed: Decides everything.
        repository: With the echo model.
        faults: How many.
        faults_of: Which.
        records: How many.
        log: Maybe with a planted bug.
        mode: The guarantee.
        settings: Of every worker.
        deadly: So many of the records, on average, end their worker.
        unreadable: So many do while they are read.
        claimed: So many have their values in a store.
        seconds: Within which all is sent, and fails.
        within_s: Seconds behind that, within which all is answered and committed.
        made: Where to put the fleet, for more.
    """
    rng = random.Random(seed)
    if log is None:
        log = CheckedLog() if mode is Mode.AT_LEAST_ONCE else LaggingLog(rng)
    models = Repository([repository])
    assert not models.load()
    interval_s = 0.1 if mode is Mode.AT_LEAST_ONCE else rng.choice((0.0, 0.02, 0.1))
    settings = replace(settings, delivery=mode, transaction_interval_s=interval_s)
    claims = VirtualClaims(rng) if claimed else None
    fleet: Fleet = DeadlyFleet(
        log, models, rng, settings=settings, is_deadly=is_deadly, claims=claims
    )
    if made is not None:
        made.append(fleet)
    sent: dict[str, Sent] = {}
    async with log:
        await fleet.start()
        for _ in range(rng.randrange(3)):
            await fleet.start()
        moments = sorted(rng.uniform(0, seconds) for _ in range(records))
        troubles = sorted(rng.uniform(0.1, seconds) for _ in range(faults))
        traffic = Traffic(
            rng, deadly=deadly, unreadable=unreadable, claimed=claimed, claims=claims
        )
        begun = asyncio.get_running_loop().time()
        for moment in sorted([*moments, *troubles]):
            await asyncio.sleep(max(0.0, begun + moment - asyncio.get_running_loop().time()))
            if moment in troubles and fleet.running:
                await strike(rng.choice(faults_of), log, fleet)
            elif moment not in troubles:
                _send(log, traffic, sent, rng)
        await all_answered(log, fleet, sent.keys(), within_s=within_s)
        await fleet.stop()
        models.close()
    check(log, sent, mode)
    return log


def is_deadly(entry: Entry) -> bool:
    """Whether a worker dies of a request."""
    (raw,) = entry.data
    return raw is not None and bool(np.frombuffer(raw, np.float32)[0] == DEADLY)


def _send(log: CheckedLog, traffic: Traffic, sent: dict[str, Sent], rng: random.Random) -> None:
    out, expected = traffic.record(log.clock_ms())
    offset = log.existing(TP(out.topic, out.partition)).end
    source = f"{out.topic}/{out.partition}/{offset}"
    if expected.reply_topic == log.replies:
        log.calls.add(source)
    log.append([out])
    sent[source] = expected
    correlation = dict(out.headers).get("correlation-id")
    if correlation and rng.random() < 0.3:
        expected.cancelled = True
        log.append([cancel_record(TOPOLOGY.cancels, 0, Cancel("echo", correlation))])


def check(log: CheckedLog, sent: Mapping[str, Sent], mode: Mode = Mode.AT_LEAST_ONCE) -> None:
    """Check each answer's place, status, values and number, in exactly_once in the committed view."""
    letters = [
        (named[SOURCE].decode(), named.get(CLAIM_CHECK, b""))
        for partition in range(TOPOLOGY.partitions)
        for record in log.records(TOPOLOGY.dead_letters, partition, committed=True)
        for named in [dict(record.headers)]
    ]
    due = {(source, expected.claim) for source, expected in sent.items() if expected.dead_letter}
    assert set(letters) == due, f"dead letters of others, or none: {due ^ set(letters)}"
    assert log.answers.keys() <= sent.keys(), "orphaned"
    if mode is Mode.EXACTLY_ONCE:
        assert len(letters) == len(set(letters)), "a dead letter came twice"
        assert not log.transactions.open(), "a transaction was left open"
    for source, expected in sent.items():
        answers = log.answers.get(source, [])
        is_lost_call = log.faults and source in log.calls and not answers  # its caller is told 504
        if (log.faults == 0 or mode is Mode.EXACTLY_ONCE) and not is_lost_call:
            assert len(answers) == 1, f"{source} has {len(answers)} answers"
        for place, headers, value in answers:
            assert place.topic == expected.reply_topic, source
            named = dict(headers)
            assert named["x-trace"] == b"t"
            if expected.cancelled and named["status"] == b"CANCELLED":
                continue
            assert named["status"].decode() == expected.status, (source, named, expected)
            assert named.get("reason", b"").decode() == expected.reason, (source, named)
            if expected.status != "OK":
                with pytest.raises(InferError) as info:
                    decode_response(value, headers)
                assert info.value.reason == expected.reason
                continue
            response = decode_response(value, headers)
            assert response.id == "r"
            (output,) = response.outputs
            assert np.array_equal(output.numpy(), np.array(expected.values, np.float32))
