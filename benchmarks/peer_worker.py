"""The real worker on topics and records of another's making: raw floats in, raw floats out, no headers.

Only the two ends of a record's journey are given here, as a mapping of a user's own topics would give them;
intake, batcher, execution, ledger, settle and commits are the worker's.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

import uvloop
from headrace.consumers.answering import Answer, Answering
from headrace.consumers.dynamic import DynamicBatcher
from headrace.consumers.observe import ModelObserver, WorkerMetrics
from headrace.consumers.placement import Placement
from headrace.consumers.pool import Pool
from headrace.consumers.scheduler import Scheduler
from headrace.consumers.settings import Clock, WorkerSettings
from headrace.consumers.version import Version
from headrace.consumers.worker import ModelWorker
from headrace.repository.models import LoadedVersion
from headrace.repository.repository import Repository
from headrace.schemas.batch import Batch, Entry, Responses
from headrace.schemas.errors import InferError, UndecodableRecord
from headrace.schemas.record import TP, Headers, Record
from headrace.schemas.requests import Decoded, Failure
from headrace.schemas.signature import Signature
from headrace.schemas.split import split_output
from headrace.streams.embedded import PROPERTIES
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import TopicSpec
from prometheus_client import CollectorRegistry

from benchmarks.models import configuration
from benchmarks.workload import MODEL

_DEAD_LETTERS = "dead-letters"


class RawDecoder:
    """Takes a record's value as the only input's data, one row a record."""

    def __init__(self, signature: Signature, size: int) -> None:
        """Prepare for values of ``size`` bytes."""
        assert signature.usual_shapes is not None  # the benchmark's model has no free dims
        self._shapes = signature.usual_shapes
        self._size = size

    def decode(self, tp: TP, epoch: int, records: Sequence[Record]) -> Decoded:
        """Make entries; a value of another length is a failure."""
        entries: list[Entry] = []
        failures: list[Failure] = []
        for record in records:
            entry = Entry()
            entry.tp, entry.epoch, entry.record = tp, epoch, record
            entry.content_type = ""
            value = record.value
            if value is not None and len(value) == self._size:
                entry.rows, entry.data, entry.shapes = 1, (value,), self._shapes
                entries.append(entry)
            else:
                entry.rows, entry.data, entry.shapes = 0, (), ()
                error = UndecodableRecord(
                    f"the value is {value!r:.40}, expected {self._size} bytes"
                )
                failures.append(Failure(entry, error, dead_letter=True))
        return Decoded({1: entries} if entries else {}, failures)


class RawEncoder:
    """Writes the only output's data."""

    def __init__(self, signature: Signature) -> None:
        """Prepare."""
        self._output = signature.outputs[0]

    def encode(
        self,
        batch: Batch,
        responses: Responses,
        *,
        response_index: int | None = None,  # noqa: ARG002  # no decoupled model here
    ) -> list[Answer]:
        """Split the column over the entries."""
        split = split_output(batch, self._output, responses.outputs[self._output.name])
        return [
            (entry, data, [])
            for entry, (_, data) in zip(batch.entries, split, strict=True)
            if entry is not None
        ]


def encode_error(
    entry: Entry,  # noqa: ARG001  # an error encoder's shape
    error: InferError,
    model_name: str,  # noqa: ARG001
    model_version: str,  # noqa: ARG001
) -> tuple[bytes, Headers]:
    """Write an error's sentence."""
    return error.detail.encode(), []


async def serve(args: argparse.Namespace, folder: Path) -> None:
    """Load the model and serve until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    repository = Repository([_write_repository(folder, args.model)])
    if failures := await asyncio.to_thread(repository.load):
        raise SystemExit("\n".join(failure.text for failure in failures.values()))
    (loaded,) = repository.models[MODEL].versions.values()
    pool = Pool(loaded.instances, MODEL)
    pool.start()
    properties = {"bootstrap.servers": args.bootstrap, **PROPERTIES}
    async with KafkaLog(properties) as log:
        await log.ensure([TopicSpec(_DEAD_LETTERS, 1)])
        print("ready", flush=True)
        await (await _worker(args, log, loaded, pool)).run(stop)
    await pool.close(1.0)
    repository.close()


async def _worker(
    args: argparse.Namespace, log: KafkaLog, loaded: LoadedVersion, pool: Pool
) -> ModelWorker:
    settings, clock = WorkerSettings("peer"), Clock()
    placement = Placement(
        args.output,
        await log.partitions(args.output) or 1,
        allowed=lambda topic: topic == args.output,
        lookup=log.partitions,
        max_topics=1,
    )
    answering = Answering(
        MODEL,
        placement=placement,
        encode_error=encode_error,
        dead_letters=(_DEAD_LETTERS, 1),
        max_record_bytes=log.max_record_bytes,
        clock=clock,
    )
    signature = loaded.signature
    assert loaded.config.dynamic_batching is not None
    batcher = DynamicBatcher(signature, loaded.config.dynamic_batching)
    answering.versions[1] = Version(
        Scheduler(1, batcher, pool, answering, clock=clock),
        pool,
        RawEncoder(signature),
        ModelObserver(MODEL, 1, WorkerMetrics(CollectorRegistry())),
    )
    values = 1
    for size in signature.inputs[0].dims:
        values *= size
    return ModelWorker(
        MODEL,
        log=log,
        group="peer-worker",
        topic=args.input,
        partition_count=await log.partitions(args.input) or 1,
        decoder=RawDecoder(signature, values * signature.inputs[0].datatype.numpy.itemsize),
        answering=answering,
        placement=placement,
        settings=settings,
        clock=clock,
    )


def _write_repository(folder: Path, model: Path) -> Path:
    version = folder / MODEL / "1"
    version.mkdir(parents=True)
    (folder / MODEL / "config.pbtxt").write_text(configuration())
    shutil.copy(model, version / "model.onnx")
    return folder


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--model", type=Path, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-peer-") as folder:
        uvloop.run(serve(args, Path(folder)))


if __name__ == "__main__":
    main()
