"""Storms of requests that repeat idempotency keys: who got what must follow from the order of the log alone (P-17).

In exactly_once every execution answers another number, so that one that ran twice is seen in the committed view. At
least once the model is a function, for a crash may let it run again.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from echo_storm import LaggingLog
from headrace.consumers.settings import WorkerSettings
from headrace.repository.repository import Repository
from headrace.schemas.batch import Batch
from headrace.schemas.codec import decode_response, encode_request
from headrace.schemas.errors import BackendError, InferError
from headrace.schemas.headers import RequestOptions
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import AVRO, JSON, REPLAYED, TP, Out
from headrace.schemas.tensor import Tensor
from headrace.streams.log import Mode
from service_kit import ScriptedBackend, write_models
from simulated import FAULTS, SETTINGS, TOPOLOGY, CheckedLog, Fleet, all_answered, strike

CONFIG = """
backend: "scripted"
max_batch_size: 4
input [{ name: "INPUT0" data_type: TYPE_FP64 dims: [1] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP64 dims: [2] }]
dynamic_batching { max_queue_delay_microseconds: 3000 }
instance_group [{ count: 2 kind: KIND_CPU }]
"""
REQUESTS = TOPOLOGY.requests("echo")
KEYS = 4
"""Different keys on each partition."""
CULPRIT = 3
"""Number of the key whose requests the model fails on."""


def numbering(*, is_unique: bool) -> ScriptedBackend:
    """Return a model that answers its input, and the number of the execution where that shall be seen."""
    numbers = itertools.count(1)

    def play(batch: Batch) -> Mapping[str, np.ndarray]:
        column = batch.inputs()["INPUT0"]
        if (column % 10 == CULPRIT).any():
            raise BackendError("a culprit")
        seen = [[next(numbers) if is_unique else 0.0] for _ in column]
        return {"OUTPUT0": np.hstack([column, np.array(seen)])}

    return ScriptedBackend(play)


@dataclass
class Sent:
    """One record: its key, its payload, and whether its deadline had passed."""

    key: str
    value: float
    is_late: bool


class Traffic:
    """Seeded requests: some without a key, repeats, and others under a key that is used."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def record(self, log: CheckedLog) -> tuple[Out, Sent]:
        """Make one record."""
        rng = self._rng
        partition, number = rng.randrange(TOPOLOGY.partitions), rng.randrange(KEYS)
        key = f"{partition}-{number}" if rng.random() < 0.8 else ""
        value, is_late, headers = float(number), False, []
        if number == 0 and rng.random() < 0.3:
            value += 100  # another payload
        if number == 1 and rng.random() < 0.3:
            is_late = True
            headers.append(("deadline-ms", str(log.clock_ms() - 1).encode()))
        if rng.random() < 0.4:
            headers.append(("reply-topic", TOPOLOGY.replies.encode()))
        tensor = Tensor.from_numpy("INPUT0", np.array([[value]]))
        options = RequestOptions(idempotency_key=key.encode(), extra=tuple(headers))
        content_type = rng.choice((AVRO, AVRO, JSON))
        raw, more = encode_request(InferRequest((tensor,), id="r"), content_type, options)
        return Out(REQUESTS, partition, key.encode() or None, raw, more), Sent(key, value, is_late)


async def storm(
    seed: int,
    folder: Path,
    *,
    mode: Mode,
    faults: int,
    faults_of: Sequence[str] = FAULTS,
    records: int = 80,
    settings: WorkerSettings = SETTINGS,
) -> int:
    """Run one seeded simulation to its end and check everything; returns how many repeats were answered."""
    rng = random.Random(seed)
    is_exact = mode is Mode.EXACTLY_ONCE
    log = LaggingLog(rng) if is_exact else CheckedLog()
    if not (folder / "echo").exists():
        write_models(folder, {"echo": CONFIG})
    models = Repository([folder], find=numbering(is_unique=is_exact))
    assert not models.load()
    interval_s = rng.choice((0.0, 0.02, 0.1))
    settings = replace(settings, delivery=mode, transaction_interval_s=interval_s)
    fleet = Fleet(log, models, rng, settings=settings)
    sent: dict[str, Sent] = {}
    async with log:
        for _ in range(rng.choice((1, 2, 3))):
            await fleet.start()
        moments = [(rng.uniform(0, 2), False) for _ in range(records)]
        moments += [(rng.uniform(0.1, 2), True) for _ in range(faults)]
        traffic = Traffic(rng)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for moment, is_fault in sorted(moments):
            await asyncio.sleep(max(0.0, begun + moment - loop.time()))
            if is_fault:
                await strike(rng.choice(faults_of), log, fleet)
            else:
                send(log, traffic, sent)
        await all_answered(log, fleet, sent.keys())
        await fleet.stop()
        models.close()
    return check(log, sent, is_exact=is_exact)


def send(log: CheckedLog, traffic: Traffic, sent: dict[str, Sent]) -> None:
    out, what = traffic.record(log)
    source = f"{out.topic}/{out.partition}/{log.existing(TP(out.topic, out.partition)).end}"
    if log.replies and dict(out.headers).get("reply-topic"):
        log.calls.add(source)
    log.append([out])
    sent[source] = what


def check(log: CheckedLog, sent: Mapping[str, Sent], *, is_exact: bool) -> int:
    """Check every answer against the order of the log."""
    first: dict[str, float] = {}
    for one in sent.values():
        first.setdefault(one.key, one.value)
    said: dict[str, set[tuple[object, ...]]] = defaultdict(set)
    ran: dict[str, set[str]] = defaultdict(set)
    repeats = 0
    for source, one in sent.items():
        answers = log.answers.get(source, [])
        is_lost_call = log.faults and source in log.calls and not answers
        if is_exact and not is_lost_call:
            assert len(answers) == 1, f"{source} has {len(answers)} answers"
        for _, headers, value in answers:
            found = outcome(value, headers)
            if not is_keyed_answer(one, found, first[one.key]):
                continue
            said[one.key].add(found)
            if REPLAYED in dict(headers):
                repeats += 1
            else:
                ran[one.key].add(source)
    for key, outcomes in said.items():
        assert len(outcomes) == 1, f"key {key} has different answers: {outcomes}"
        assert not is_exact or len(ran[key]) <= 1, f"key {key} ran more than once: {ran[key]}"
    return repeats


def is_keyed_answer(one: Sent, found: tuple[object, ...], first: float) -> bool:
    """Whether an answer is one that all of its key must have; checks it if it is not."""
    if one.is_late and found == ("deadline_passed",):
        return False
    if one.key and one.value != first:
        assert found == ("idempotency_key_reused",), f"key {one.key}: {found}"
        return False
    assert found[0] == ("backend_failed" if one.value == CULPRIT else one.value)
    return bool(one.key)


def outcome(value: bytes, headers: Sequence[tuple[str, bytes]]) -> tuple[object, ...]:
    """Return what an answer says, and nothing of whose it is."""
    try:
        (output,) = decode_response(value, headers).outputs
    except InferError as error:
        return (error.reason.value,)
    return tuple(output.numpy().ravel().tolist())
