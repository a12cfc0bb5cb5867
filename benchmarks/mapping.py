"""A model on people's own topics, by a mapping of 30 fields, against the loop that parses the same by hand."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from headrace.consumers.mapped import MappedModel
from headrace.deploy.mappings import fit_model, mapped_model, read_mapping_file
from headrace.deploy.settings import Settings
from headrace.schemas.answers import ResponseEncoder
from headrace.schemas.batch import Batch, Responses
from headrace.schemas.config_text import parse_config
from headrace.schemas.config_view import config_from_message
from headrace.schemas.record import TP
from headrace.schemas.requests import MAX_RECORD_BYTES
from headrace.schemas.signature import Signature

from benchmarks import business
from benchmarks.brokers import KAFKA, Broker, broker, free_port
from benchmarks.business_loop import json_library
from benchmarks.contest import Contender, Run, backlog
from benchmarks.figures import Bar, Figure

NAME = "mapping"
PARTITIONS = 4
ON_BROKERS = (KAFKA,)
WORDS = ("json", "avro")
BAR = Bar("ratio", 0.8)
BLOCK = 64


@dataclass(frozen=True)
class Loop:
    """The loop of `benchmarks.business_loop`."""

    model: Path
    word: str
    name: str = "loop"

    @property
    def format(self) -> str:
        """How it reads and writes records."""
        return f"business-{self.word}"

    def topics(self, tag: str) -> tuple[str, str]:
        return f"{tag}.in", f"{tag}.out"

    def argv(self, tag: str, broker: Broker) -> Sequence[str]:
        source, target = self.topics(tag)
        return [
            *(sys.executable, "-m", "benchmarks.business_loop", "--bootstrap", broker.bootstrap),
            *("--model", str(self.model), "--input", source, "--output", target),
            *("--group", tag, "--format", self.word),
        ]


@dataclass(frozen=True)
class Mapped:
    """Headrace's worker with a mapping, as its command starts it."""

    folder: Path
    word: str
    name: str = "worker"

    @property
    def format(self) -> str:
        """How it reads and writes records."""
        return f"business-{self.word}"

    def topics(self, tag: str) -> tuple[str, str]:
        return f"{tag}.in", f"{tag}.out"

    def argv(self, tag: str, broker: Broker) -> Sequence[str]:
        path = business.write_mapping(self.folder, *self.topics(tag), self.word)
        return [
            *(sys.executable, "-m", "headrace.deploy.cli", "--debug", "worker"),
            *("--model-repository", str(self.folder / "models")),
            *("--mapping", f"{business.MODEL}={path}"),
            *("--bootstrap-servers", broker.bootstrap, "--topic-prefix", tag),
            *("--kafka-config", str(broker.properties)),
            *("--worker-port", str(free_port()), "--log-level", "warning"),
        ]


def measure(kind: str, folder: Path, *, quick: bool) -> Iterator[Figure]:
    """Yield the cost of a mapping alone, then the worker's rate and CPU time per record beside the loop's."""
    model = business.write_repository(folder / "models")
    for word in WORDS:
        yield from _costs(word, folder, quick=quick)
    with broker(kind, folder) as running:
        for word in WORDS:
            contenders: list[Contender] = [Loop(model, word), Mapped(folder, word)]
            yield from _rates(running, word, contenders, folder, quick=quick)


def _rates(
    running: Broker, word: str, contenders: list[Contender], folder: Path, *, quick: bool
) -> Iterator[Figure]:
    count, rounds = (10_000, 1) if quick else (100_000, 3)
    runs: list[list[Run]] = []
    for n in range(rounds):
        # Turned around each round: whoever goes first has the colder caches.
        order = contenders if n % 2 == 0 else contenders[::-1]
        done = {c.name: backlog(running, c, count, PARTITIONS, folder) for c in order}
        runs.append([done["loop"], done["worker"]])
    against = f"loop with {json_library() if word == 'json' else 'fastavro'}"
    yield Figure(
        f"{NAME}.{word}",
        running.kind,
        statistics.median(worker.rate for _, worker in runs),
        "records/s",
        against,
        statistics.median(loop.rate for loop, _ in runs),
        BAR,
        statistics.median(worker.rate / loop.rate for loop, worker in runs),
    )
    yield Figure(
        f"{NAME}.{word}.cpu",
        running.kind,
        statistics.median(worker.cpu_us for _, worker in runs),
        "µs/record",
        against,
        statistics.median(loop.cpu_us for loop, _ in runs),
        ratio=statistics.median(worker.cpu_us / loop.cpu_us for loop, worker in runs),
    )


@dataclass(frozen=True)
class _Record:
    """A record of the topic."""

    value: bytes
    offset: int
    topic: str = "in"
    partition: int = 0
    timestamp: int = 0
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


def _costs(word: str, folder: Path, *, quick: bool) -> Iterator[Figure]:
    """Yield what reading and writing a record takes by itself, in blocks of 64."""
    mapped, signature = asyncio.run(_mapped(word, folder))
    decoder = mapped.decoder(MAX_RECORD_BYTES)
    assert decoder is not None
    encoder = mapped.encoder(1, ResponseEncoder(signature))
    value = business.json_value if word == "json" else business.avro_value
    records = [_Record(value(number), number) for number in range(BLOCK)]
    tp = TP("in", 0)
    entries = decoder.decode(tp, 1, records).by_version[1]
    batch = Batch(signature, entries)
    responses = Responses({business.OUTPUT: business.expected()[:BLOCK].astype(np.float32)})
    times = 100 if quick else 1000
    for what, call in (
        ("decode", lambda: decoder.decode(tp, 1, records)),
        ("encode", lambda: encoder.encode(batch, responses)),
    ):
        yield Figure(f"{NAME}.{word}.{what}", "", _us(call, times) / BLOCK, "µs/record")


async def _mapped(word: str, folder: Path) -> tuple[MappedModel, Signature]:
    mapping = read_mapping_file(business.write_mapping(folder, "in", "out", word))
    text = (folder / "models" / business.MODEL / "config.pbtxt").read_text()
    message = parse_config(text, file="config.pbtxt")
    config = config_from_message(message, file="config.pbtxt", directory_name=business.MODEL)
    signature = Signature(config, 1)
    plans = {1: fit_model(mapping, signature, {})}
    return await mapped_model(Settings(), mapping, plans, {}), signature


def _us(call: Callable[[], object], times: int) -> float:
    """Return the median time of a call in µs."""
    took = []
    for _ in range(times):
        begun = time.perf_counter_ns()
        call()
        took.append((time.perf_counter_ns() - begun) / 1000)
    return statistics.median(took)
