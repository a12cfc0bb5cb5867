"""Other systems on the same work, through scripts that are not ours.

`HEADRACE_PEERS` names the folder with the scripts (``setup.sh``, ``start_triton.sh``, ``kafka_bench.py``), `PEER_WORK`
the folder that their ``setup.sh`` has filled. Without them, what needs them is skipped with a notice.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.brokers import free_port
from benchmarks.processes import (
    ROOT,
    SINGLE_THREADED,
    BenchmarkFailed,
    Skipped,
    started,
    wait_for,
)

_RUN_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Peers:
    """Where scripts and what they need are.

    Attributes:
        scripts: Folder of the scripts.
        work: Folder that their set-up has filled.
    """

    scripts: Path
    work: Path


@dataclass(frozen=True)
class Triton:
    """A running Triton.

    Attributes:
        http_port: Of its V2 API.
        grpc_port: Of the same by gRPC.
    """

    http_port: int
    grpc_port: int


TRITON = "vtriton/bin/python"
"""What set-up leaves in its folder where Triton can be started."""


def find(needed: str = "bin/tansu") -> Peers | str:
    """Return where the peers are, or why they cannot be used: a file that set-up would have left is not there."""
    scripts, work = os.environ.get("HEADRACE_PEERS"), os.environ.get("PEER_WORK")
    if not scripts:
        return "HEADRACE_PEERS does not name the folder of the peers' scripts"
    if not work:
        return f"PEER_WORK does not name the folder that {scripts}/setup.sh has filled"
    for path in (Path(scripts) / "kafka_bench.py", Path(work) / needed):
        if not path.exists():
            return f"there is no {path}: has setup.sh been run?"
    return Peers(Path(scripts).resolve(), Path(work).resolve())


@contextlib.contextmanager
def triton(peers: Peers, folder: Path) -> Iterator[Triton]:
    """Run Triton with the peers' models for the time of a block, entered once it is ready."""
    running = Triton(free_port(), free_port())
    env = {
        "PEER_WORK": str(peers.work),
        "TRITON_HTTP_PORT": str(running.http_port),
        "TRITON_GRPC_PORT": str(running.grpc_port),
        "TRITON_METRICS_PORT": str(free_port()),
    }
    argv = ["bash", str(peers.scripts / "start_triton.sh")]
    with started(argv, folder / f"triton-{running.http_port}.log", env) as process:
        ready = f"http://127.0.0.1:{running.http_port}/v2/health/ready"
        wait_for(lambda: answers(ready), 120.0, "ready Triton", process, every_s=0.2)
        yield running


def answers(url: str) -> bool:
    """Whether an address on this machine answers with success."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def kafka_bench(
    peers: Peers,
    peer: str,
    count: int,
    folder: Path,
    *,
    options: tuple[str, ...] = (),
) -> Mapping[str, float]:
    """Let one peer, or our own worker as ``custom``, serve ``count`` raw records; returns the script's figures."""
    custom = (
        f"env PYTHONPATH={ROOT} {sys.executable} -m benchmarks.peer_worker --bootstrap {{bootstrap}} "
        "--input {input} --output {output} --model {model}"
    )
    argv = [
        *(str(peers.work / "vkafka" / "bin" / "python"), str(peers.scripts / "kafka_bench.py")),
        *("--peer", peer, "--count", str(count), "--port", str(free_port())),
        *("--tansu", str(peers.work / "bin" / "tansu"), "--tmp", str(folder)),
        *("--model", str(peers.work / "models" / "mlp.onnx")),
        *("--mlserver-python", str(peers.work / "vmls" / "bin" / "python")),
        *options,
    ]
    run = subprocess.run(
        argv,
        cwd=folder,
        env={**os.environ, **SINGLE_THREADED, "PEER_CUSTOM": custom},
        capture_output=True,
        text=True,
        timeout=_RUN_TIMEOUT_S,
        check=False,
    )
    lines = run.stdout.strip().splitlines()
    if run.returncode != 0 or not lines:
        log = folder / f"worker-{peer}.log"
        tail = log.read_text(errors="replace")[-1500:] if log.exists() else ""
        raise BenchmarkFailed(f"peer {peer}: {run.stdout[-500:]}{run.stderr[-1500:]}\n{tail}")
    figures: dict[str, float] = json.loads(lines[-1])
    return figures


def perf_analyzer(
    peers: Peers, port: int, in_flight: int, folder: Path, protocol: str = "http"
) -> Mapping[str, str]:
    """Run Triton's load generator against a V2 server: batch-1 requests of the MLP over ``http`` or ``grpc``.

    Raises:
        Skipped: It is not there.
    """
    binary = peers.work / "bin" / "perf_analyzer"
    if not binary.exists():
        raise Skipped(f"there is no {binary}")
    table = folder / f"perf-{port}.csv"
    argv = [
        *(str(binary), "-m", "mlp", "-b", "1", "-i", protocol),
        *("-u", f"127.0.0.1:{port}", "--async", "--concurrency-range", str(in_flight)),
        *("-p", "2000", "-s", "999", "-r", "3", "-f", str(table)),
    ]
    run = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    if run.returncode != 0 or not table.exists():
        raise BenchmarkFailed(f"perf_analyzer: {run.stdout[-1500:]}{run.stderr[-500:]}")
    with table.open() as rows:
        return next(csv.DictReader(rows))
