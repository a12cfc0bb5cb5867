"""The gateway's resident memory after many calls, beside that after a quarter of them: nothing of a call stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.brokers import KAFKA, broker
from benchmarks.calls import drive, serving
from benchmarks.contest import Worker
from benchmarks.figures import Bar, Figure
from benchmarks.models import write_repository

NAME = "gateway-memory"
ON_BROKERS = (KAFKA,)
IN_FLIGHT = 256
BAR = Bar("ratio", 1.05, at_most=True)


def measure(kind: str, folder: Path, *, quick: bool) -> Iterator[Figure]:
    """Yield the resident memory after 200,000 calls, beside that after 50,000."""
    write_repository(folder / "models")
    few, many = (5_000, 20_000) if quick else (50_000, 200_000)
    with (
        broker(kind, folder) as running,
        serving(running, Worker(folder / "models"), folder) as service,
    ):
        gateway = service.gateway
        answered, resident = 0.0, []
        for total in (few, many):
            left = str(int(total - answered))
            answered += drive(gateway.http_port, 0.0, IN_FLIGHT, "--count", left)["answered"]
            resident.append(gateway.process.rss_bytes() / 1e6)
    after_few, after_many = resident
    yield Figure(
        NAME, kind, after_many, "MB", f"{few} calls", after_few, BAR, after_many / after_few
    )
