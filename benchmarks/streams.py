"""A thousand gRPC streams that are open at once, each with answers; again and again, and nothing of them stays."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from benchmarks.brokers import KAFKA, broker
from benchmarks.calls import Endpoint, serving
from benchmarks.contest import Worker
from benchmarks.figures import Bar, Figure
from benchmarks.models import write_repository
from benchmarks.processes import ROOT, BenchmarkFailed, wait_for

NAME = "streams"
ON_BROKERS = (KAFKA,)
STREAMS = 1_000
EACH = 3
BAR = Bar("ratio", 1.05, at_most=True)
_OPEN = re.compile(r"^headrace_gateway_open_calls(?:\{.*\})? (\S+)$", re.MULTILINE)


def measure(kind: str, folder: Path, *, quick: bool) -> Iterator[Figure]:
    """Yield how long the streams of a round take, and the gateway's memory after the last round beside the first."""
    write_repository(folder / "models")
    rounds = 3 if quick else 6
    with (
        broker(kind, folder) as running,
        serving(running, Worker(folder / "models"), folder) as service,
    ):
        gateway = service.gateway
        took_s, resident = [], []
        for _ in range(rounds):
            took_s.append(_round(gateway.grpc_port))
            wait_for(lambda: _open_calls(gateway) == 0, 30.0, "end of all calls", gateway.process)
            resident.append(gateway.process.rss_bytes() / 1e6)
    yield Figure(NAME, kind, STREAMS * EACH / min(took_s), "answers/s")
    # What the first round leaves are pools that the next ones use.
    yield Figure(
        f"{NAME}.memory",
        kind,
        resident[-1],
        "MB",
        "second round",
        resident[1],
        BAR,
        resident[-1] / resident[1],
    )


def _round(port: int) -> float:
    argv = [
        *(sys.executable, "-m", "benchmarks.stream_client", "--port", str(port)),
        *("--streams", str(STREAMS), "--each", str(EACH)),
    ]
    run = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
    if run.returncode != 0:
        raise BenchmarkFailed(f"the streams' client failed: {run.stderr[-1500:]}")
    found: dict[str, float] = json.loads(run.stdout)
    if found["wrong"] or found["answered"] != STREAMS * EACH:
        raise BenchmarkFailed(f"of {STREAMS * EACH} requests on streams: {found}")
    return found["took_s"]


def _open_calls(gateway: Endpoint) -> float:
    with urllib.request.urlopen(
        f"http://127.0.0.1:{gateway.metrics_port}/metrics", timeout=5
    ) as response:
        text = response.read().decode()
    found = _OPEN.search(text)
    if found is None:
        raise BenchmarkFailed("the gateway's metrics do not tell its open calls")
    return float(found[1])
