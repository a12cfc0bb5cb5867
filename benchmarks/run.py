"""Runs the benchmarks: ``python benchmarks/run.py [--only NAME] [--broker kafka|embedded|both] [--quick]``.

Prints one JSON line per figure and then, for people, which bars are met. Ends with a status other than 0 if an
answer is missing or wrong, or something does not start; a missed bar is reported, not an error: machines differ.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import (
    brokers,
    burst,
    exactly_once,
    gateway,
    gateway_memory,
    gateway_steps,
    gateways,
    grpc_gateway,
    isolation,
    latency,
    mapping,
    partitions,
    publish,
    sequence_memory,
    sequence_scale,
    sequences_vs_stateless,
    stall,
    streams,
    takeover,
    worker_steps,
    worker_vs_loop,
    worker_vs_peers,
)
from benchmarks.figures import Figure
from benchmarks.processes import BenchmarkFailed, Skipped

BENCHMARKS = {
    module.NAME: module
    for module in (
        worker_steps,
        worker_vs_loop,
        worker_vs_peers,
        mapping,
        burst,
        latency,
        gateway_steps,
        gateway,
        gateways,
        gateway_memory,
        streams,
        grpc_gateway,
        isolation,
        exactly_once,
        partitions,
        publish,
        stall,
        sequences_vs_stateless,
        takeover,
        sequence_memory,
        sequence_scale,
    )
}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _run(name: str, kinds: list[str], folder: Path, *, quick: bool) -> tuple[list[Figure], int]:
    """Run one benchmark; returns its figures and the number of failures."""
    module = BENCHMARKS[name]
    figures: list[Figure] = []
    failures = 0
    for kind in kinds if module.ON_BROKERS else [""]:
        if kind and kind not in module.ON_BROKERS:
            continue
        started_s = time.monotonic()
        own = folder / f"{name}-{kind}"
        own.mkdir()
        try:
            for figure in module.measure(kind, own, quick=quick):
                print(figure.line(), flush=True)
                figures.append(figure)
        except Skipped as exc:
            _say(f"{name} on {kind or 'no broker'} skipped: {exc}")
        except BenchmarkFailed as exc:
            _say(f"{name} on {kind or 'no broker'} FAILED: {exc}")
            failures += 1
        _say(f"{name} on {kind or 'no broker'}: {time.monotonic() - started_s:.0f} s")
    return figures, failures


def main() -> int:
    """Run what the options name; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(BENCHMARKS), help="one benchmark")
    parser.add_argument(
        "--broker", choices=(brokers.KAFKA, brokers.EMBEDDED, "both"), default="both"
    )
    parser.add_argument("--quick", action="store_true", help="fewer records and rounds")
    args = parser.parse_args()
    # Clients of ours meet topics a moment before their leaders do, and log each retry.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    kinds = [brokers.KAFKA, brokers.EMBEDDED] if args.broker == "both" else [args.broker]
    figures: list[Figure] = []
    failures = 0
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        for name in [args.only] if args.only else BENCHMARKS:
            found, failed = _run(name, kinds, Path(folder), quick=args.quick)
            figures += found
            failures += failed
    for figure in figures:
        if figure.bar is not None:
            _say(figure.verdict())
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
