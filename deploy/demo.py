"""`make demo`: a real model on real files, served from records on the embedded broker, and compared.

Starts ``headrace serve`` as anybody would, sends one record per file with a plain aiokafka producer, reads the
answers from the results topic, and checks each against the model's own library. Ends with a non-zero status when an
answer is missing or differs or too few could be compared, and leaves nothing behind.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import numpy as np
from headrace.deploy.console import out as console
from headrace.deploy.demo_files import FileTypes, choose_files, default_roots
from headrace.deploy.demo_records import Exchange, Job
from headrace.deploy.demo_report import print_report
from headrace.deploy.serving import Service, batch_rows, serving
from headrace.schemas.errors import ConfigError
from headrace.schemas.tensor import Array
from rich.progress import Progress

MODEL = "magika"

LEAST_COMPARED = 1000
"""Answers that must have been compared, unless the user says which or how many files to take: then one will do."""


@dataclass(slots=True)
class Run:
    """What the demo did.

    Attributes:
        least: Answers that must be equal for the run to be good.
        jobs: Files that were sent, by id.
        decided: Files that the library decides without the model.
        gone: Files that went away before they were read.
        seconds: From the first record to the last answer.
        equal, different, changed: Answers against the library's own verdicts; ``changed`` files were written to
            or deleted meanwhile and count as neither.
        equal_in_batch: Of the equal ones, those that equal only what the library says of a file in a batch.
        types: Label → number of files.
        batch_rows: Upper bound of rows → number of batches.
        http_label: What the same model said over HTTP about one of the files.
        http_text: The same as a sentence.
    """

    least: int = LEAST_COMPARED
    jobs: dict[str, Job] = field(default_factory=dict)
    decided: int = 0
    gone: int = 0
    seconds: float = 0.0
    equal: int = 0
    equal_in_batch: int = 0
    different: list[tuple[Path, str, str]] = field(default_factory=list)
    changed: int = 0
    types: Counter[str] = field(default_factory=Counter)
    batch_rows: dict[str, int] = field(default_factory=dict)
    http_label: str = ""
    http_text: str = ""

    @property
    def missing(self) -> int:
        """Records without an answer."""
        return sum(job.latency_s is None for job in self.jobs.values())

    @property
    def is_good(self) -> bool:
        """Whether every record has one answer, equal to the library's, and enough of them were compared."""
        return (
            self.equal >= max(1, self.least)
            and not self.missing
            and not self.different
            and bool(self.http_label)
        )


def main() -> None:
    """Run the demo from the command line."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, help="files to send at most (default 1200)")
    parser.add_argument("--root", type=Path, action="append", help="folder to take files from")
    options = parser.parse_args()
    chosen = options.files is not None or options.root is not None
    run = Run(least=1 if chosen else LEAST_COMPARED)
    try:
        asyncio.run(
            demo(
                run,
                1200 if options.files is None else options.files,
                options.root or default_roots(),
            )
        )
    except ConfigError as exc:
        print(exc, file=sys.stderr)
        sys.exit(1)
    print_report(run)
    sys.exit(0 if run.is_good else 1)


async def demo(run: Run, count: int, roots: Sequence[Path]) -> None:
    """Serve the model, send up to ``count`` files from ``roots``, compare, and stop the service; fills ``run``.

    Raises:
        ConfigError: Magika is not installed, or the service does not start (its last lines are in the sentence).
    """
    types = FileTypes()
    files = choose_files(count, roots)
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        write_repository(Path(folder, "models"), types)
        console.print(f"[bold]headrace serve[/] {folder}/models, on the embedded broker …")
        async with serving(Path(folder, "models"), Path(folder, "serve.log")) as service:
            console.print(
                f"Ready: records on [cyan]{service.bootstrap}[/], HTTP on [cyan]{service.url}[/]"
            )
            exchange = Exchange(service.bootstrap, types, run.jobs)
            await exchange.run(files)
            run.decided, run.gone, run.seconds = exchange.decided, exchange.gone, exchange.seconds
            run.batch_rows = await batch_rows(service.worker_url, MODEL)
            await _ask_over_http(service, types, run)
        _compare(types, run)


def write_repository(repository: Path, types: FileTypes) -> None:
    """Write a model repository with Magika in it: a configuration, its labels and one version."""
    version = repository / MODEL / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(types.model_file.read_bytes())
    (repository / MODEL / "labels.txt").write_text("\n".join(types.labels) + "\n")
    (repository / MODEL / "config.pbtxt").write_text(
        f"""backend: "onnxruntime"
max_batch_size: 8
input [ {{ name: "bytes" data_type: TYPE_INT32 dims: [ 2048 ] }} ]
output [ {{ name: "target_label" data_type: TYPE_FP32 dims: [ {len(types.labels)} ]
           label_filename: "labels.txt" }} ]
dynamic_batching {{ max_queue_delay_microseconds: 1000 }}
instance_group [ {{ kind: KIND_CPU count: {min(4, os.cpu_count() or 1)} }} ]
parameters {{ key: "intra_op_thread_count" value: {{ string_value: "1" }} }}
"""
    )


async def _ask_over_http(service: Service, types: FileTypes, run: Run) -> None:
    """Ask about one of the files once more, over HTTP, and hold the answer against the library's verdict."""
    for job in run.jobs.values():
        try:
            features, verdict = types.features(job.path), types.verdict(job.path)
        except OSError:
            continue
        if features is None or not job.is_unchanged:
            continue  # the next one will do
        run.http_label = await _http_label(service, types, features)
        run.http_text = f"POST /v2/models/{MODEL}/infer for {job.path.name}: {run.http_label}"
        if run.http_label != verdict:
            run.different.append((job.path, f"{run.http_label} (HTTP)", verdict))
        return


async def _http_label(service: Service, types: FileTypes, features: Array) -> str:
    body = {
        "inputs": [
            {
                "name": "bytes",
                "datatype": "INT32",
                "shape": list(features.shape),
                "data": features.ravel().tolist(),
            }
        ]
    }
    url = f"{service.url}/v2/models/{MODEL}/infer"
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
        reply = await answer.json()
    if answer.status != 200:
        raise ConfigError(f"POST {url} answered {answer.status}: {reply.get('error', reply)}")
    scores = reply["outputs"][0]["data"]
    return types.labels[int(np.argmax(scores))]


def _compare(types: FileTypes, run: Run) -> None:
    """Hold each answer against the library's own verdict."""
    with Progress(console=console) as progress:
        jobs = list(run.jobs.values())
        for job in progress.track(jobs, description="Magika's own verdicts"):
            _compare_one(types, run, job)


def _compare_one(types: FileTypes, run: Run, job: Job) -> None:
    try:
        verdict = types.verdict(job.path)
        batched = verdict if job.label == verdict else types.verdict_in_batch(job.path)
    except OSError:
        run.changed += 1
        return
    if not job.is_unchanged:  # looked at last: what was read before is then of the same content
        run.changed += 1
        return
    run.types[verdict] += 1
    if job.latency_s is None:
        return
    if job.label not in (verdict, batched):
        run.different.append((job.path, job.label, verdict))
        return
    run.equal += 1
    run.equal_in_batch += job.label != verdict


if __name__ == "__main__":
    main()
