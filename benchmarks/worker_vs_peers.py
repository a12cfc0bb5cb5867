"""The worker against a Triton bridge, Faust and MLServer, by the peers' own measuring script and raw records.

The worker gets its topics and its record format from a small program (`peer_worker`), as a user with topics of
their own would; scheduler, execution, ledger, settle and commits are the real ones.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks import peers
from benchmarks.brokers import EMBEDDED
from benchmarks.figures import Bar, Figure
from benchmarks.processes import BenchmarkFailed, Skipped

NAME = "worker-vs-peers"
ON_BROKERS = (EMBEDDED,)  # the script starts that broker itself
BARS = {"bridge": 5.0, "faust": 5.0, "mlserver": 10.0}
_MLSERVER = ("--inflight", "1024")  # it keeps no backlog: a burst would lose half of its answers


def measure(kind: str, folder: Path, *, quick: bool) -> Iterator[Figure]:
    """Yield the worker's rate against each peer's."""
    found = peers.find()
    if isinstance(found, str):
        raise Skipped(found)
    rounds: list[dict[str, float]] = []
    with peers.triton(found, folder) as triton:
        bridge = ("--triton", f"127.0.0.1:{triton.grpc_port}")
        contenders = (
            ("custom", 20_000 if quick else 100_000, ()),
            ("bridge", 5_000 if quick else 20_000, bridge),
            ("faust", 5_000 if quick else 20_000, ()),
            ("mlserver", 2_000 if quick else 5_000, _MLSERVER),
        )
        for _ in range(1 if quick else 3):
            rates = {}
            for name, count, options in contenders:
                run = peers.kafka_bench(found, name, count, folder, options=options)
                _check(name, run)
                rates[name] = run["rate"]
            rounds.append(rates)
    for name, bound in BARS.items():
        yield Figure(
            f"{NAME}.{name}",
            kind,
            statistics.median(rates["custom"] for rates in rounds),
            "records/s",
            name,
            statistics.median(rates[name] for rates in rounds),
            Bar("ratio", bound),
            statistics.median(rates["custom"] / rates[name] for rates in rounds),
        )


def _check(name: str, run: Mapping[str, float]) -> None:
    faults = ("wrong",) if name == "mlserver" else ("lost", "wrong", "duplicates")
    found = {fault: run[fault] for fault in faults if run[fault]}
    if found:
        raise BenchmarkFailed(f"{name}: {found} of {run['count']} answers")
