"""The worker's own steps, one by one and without broker or model, as multiples of one fastavro read.

Blocks and batches have the sizes that the worker has under load. Each step's time is the least of several passes over
the same records, taken in turns with the reference's. The answers come from numpy, and are read back and compared.
"""

from __future__ import annotations

import gc
import io
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import fastavro
import numpy as np
from aiokafka.structs import ConsumerRecord
from headrace.consumers.dynamic import DynamicBatcher
from headrace.consumers.ledger import OffsetLedger
from headrace.schemas.answers import Answer, ResponseEncoder
from headrace.schemas.batch import Batch, Entry, Responses
from headrace.schemas.config_text import config_from_message, parse_config
from headrace.schemas.record import TP
from headrace.schemas.requests import RequestDecoder
from headrace.schemas.signature import Signature
from headrace.schemas.split import split_output

from benchmarks.figures import Figure
from benchmarks.formats import Avro, avro_request, schema
from benchmarks.models import configuration
from benchmarks.processes import BenchmarkFailed
from benchmarks.workload import MODEL, OUTPUT, POOL, expected, is_right, pool

NAME = "worker-steps"
ON_BROKERS = ()
BLOCK_RECORDS = 512
_TP = TP(f"steps.{MODEL}.requests", 0)
_OFF_LAYOUT_EVERY = 20  # 5 %
_FORMAT = Avro()
_STEPS = ("decode", "offer", "take", "gather", "split", "encode", "ledger")


def measure(kind: str, folder: Path, *, quick: bool) -> Iterator[Figure]:  # noqa: ARG001  # all benchmarks are called alike
    """Yield each step's time per record, and their sum, for usual records and with 5 % off the usual layout."""
    count, rounds = (BLOCK_RECORDS * 8, 3) if quick else (BLOCK_RECORDS * 40, 7)
    for name, records in (
        (NAME, _records(count, off_layout_every=0)),
        (f"{NAME}.off-layout", _records(count, off_layout_every=_OFF_LAYOUT_EVERY)),
    ):
        # A worker holds a few thousand records, not all of these: the collector shall not walk them.
        gc.collect()
        gc.freeze()
        least: dict[str, float] = {}
        for _ in range(rounds):
            for step, seconds in (("read", _time_reads(records)), *_time_steps(records).items()):
                least[step] = min(seconds, least.get(step, seconds))
        read_us = 1e6 * least.pop("read") / count
        least["encode"] = max(0.0, least["encode"] - least["split"])  # the encoder splits too
        for step, seconds in least.items():
            yield _figure(f"{name}.{step}", 1e6 * seconds / count, read_us)
        yield _figure(name, 1e6 * sum(least.values()) / count, read_us)


def _figure(name: str, value_us: float, read_us: float) -> Figure:
    return Figure(
        name, "", value_us, "µs/record", "fastavro read", read_us, ratio=value_us / read_us
    )


def _records(count: int, *, off_layout_every: int) -> list[ConsumerRecord]:
    """Make consumed records; every so many carry a parameter that no other record has."""
    records = []
    for number in range(count):
        key, value, headers = _FORMAT.request(number)
        if off_layout_every and number % off_layout_every == 0:
            value = avro_request(pool()[number % POOL], parameters={"attempt": f"run {number}"})
        records.append(
            ConsumerRecord(
                topic=_TP.topic,
                partition=_TP.partition,
                offset=number,
                timestamp=0,
                timestamp_type=0,
                key=key,
                value=value,
                checksum=None,
                serialized_key_size=len(key),
                serialized_value_size=len(value),
                headers=tuple(headers),
            )
        )
    return records


def _time_reads(records: Sequence[ConsumerRecord]) -> float:
    parsed = schema("infer_request")
    values = [record.value for record in records]
    began = time.perf_counter()
    for value in values:
        fastavro.schemaless_reader(io.BytesIO(value), parsed, None)
    return time.perf_counter() - began


def _time_steps(records: Sequence[ConsumerRecord]) -> dict[str, float]:
    """Take the records through all steps, block by block; returns seconds per step, encode's with its split."""
    config = config_from_message(
        parse_config(configuration(), "config.pbtxt"), file="config.pbtxt", directory_name=MODEL
    )
    signature = Signature(config, 1)
    decoder = RequestDecoder({1: signature}, model_name=MODEL)
    assert config.dynamic_batching is not None
    batcher = DynamicBatcher(signature, config.dynamic_batching)
    encoder = ResponseEncoder(signature)
    ledger = OffsetLedger(epoch=1)
    ledger.begin(0)
    spent = dict.fromkeys(_STEPS, 0.0)
    for at in range(0, len(records), BLOCK_RECORDS):
        block = records[at : at + BLOCK_RECORDS]
        times = [time.perf_counter()]
        admitted = ledger.admit(block)
        times.append(time.perf_counter())
        entries = decoder.decode(_TP, 1, admitted).by_version[1]
        times.append(time.perf_counter())
        batcher.offer(entries, time.monotonic_ns())
        times.append(time.perf_counter())
        batches = _take_all(batcher)
        times.append(time.perf_counter())
        for batch in batches:
            batch.column(0)
        times.append(time.perf_counter())
        results = [_responses(batch) for batch in batches]  # what the model makes is not timed
        resumed = time.perf_counter()
        for batch, responses in zip(batches, results, strict=True):
            split_output(batch, signature.outputs[0], responses.outputs[OUTPUT])
        split_at = time.perf_counter()
        encoded = [
            encoder.encode(batch, responses)
            for batch, responses in zip(batches, results, strict=True)
        ]
        encoded_at = time.perf_counter()
        for some in encoded:
            ledger.finish([entry.record.offset for entry, _, _ in some])
        ledger.position()
        ended = time.perf_counter()
        spent["ledger"] += times[1] - times[0] + ended - encoded_at
        spent["decode"] += times[2] - times[1]
        spent["offer"] += times[3] - times[2]
        spent["take"] += times[4] - times[3]
        spent["gather"] += times[5] - times[4]
        spent["split"] += split_at - resumed
        spent["encode"] += encoded_at - split_at
        # Checked and dropped block by block: kept answers would make the collector's work grow.
        _check([answer for some in encoded for answer in some], range(at, at + len(block)))
    if ledger.position().offset != len(records):
        raise BenchmarkFailed(f"the ledger stands at {ledger.position()} after {len(records)}")
    return spent


def _take_all(batcher: DynamicBatcher) -> list[Batch]:
    batches = []
    while (batch := batcher.take(0, time.monotonic_ns(), flush=True)) is not None:
        batcher.done(batch, time.monotonic_ns())
        batches.append(batch)
    return batches


def _number(entry: Entry | None) -> int:
    assert entry is not None  # no padding without sequences
    return int(entry.id)


def _responses(batch: Batch) -> Responses:
    rows = [_number(entry) % POOL for entry in batch.entries]
    return Responses({OUTPUT: expected()[rows]})


def _check(answers: Sequence[Answer], expected_numbers: range) -> None:
    """Read every answer as another program would, and compare."""
    numbers = np.empty(len(answers), np.int64)
    values = np.empty((len(answers), expected().shape[1]), np.float32)
    for place, (entry, value, headers) in enumerate(answers):
        assert entry.record.key is not None
        numbers[place], values[place] = _FORMAT.answer(entry.record.key, value, headers)
    if sorted(numbers) != list(expected_numbers) or not is_right(numbers, values).all():
        raise BenchmarkFailed(f"the answers to requests {expected_numbers} are not all right")
