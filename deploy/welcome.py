"""What a process says when it has started: where it listens, which topics it serves, and what it guarantees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version

from headrace.consumers.delivery_mode import delivery_mode
from headrace.deploy.broker import topology_of
from headrace.deploy.console import out
from headrace.deploy.settings import Settings
from headrace.repository.repository import Repository
from headrace.streams.log import Mode
from headrace.streams.topology import MappedTopics
from rich.table import Table
from rich.text import Text

EMBEDDED = (
    "at least once; the embedded broker holds its data in memory and forgets it when it stops"
)
AT_LEAST_ONCE = (
    "at least once: answers are acknowledged before offsets are committed; a crash may repeat one"
)
EXACTLY_ONCE = "exactly once: answers and offsets are committed together; read with isolation.level=read_committed"


def host_port(address: str, port: int) -> str:
    """Return where something listens, as clients name it; an IPv6 address stands in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def url_of(address: str, port: int, scheme: str = "http") -> str:
    """Return the root of what listens there."""
    return f"{scheme}://{host_port(address, port)}"


@dataclass(slots=True)
class Addresses:
    """Where the parts of a process are, filled in as they start.

    Attributes:
        bootstrap: The broker.
        embedded: It is the embedded one.
        http: Root of the V2 API, or ``""``.
        grpc: Host and port of V2 over gRPC, or ``""``.
        metrics: Of the gateway, or ``""``.
        worker: Root of the worker's port, or ``""``.
        running: Tasks that must not end before the stop.
        is_ready: Asked until all say yes.
        leave: Called when the stop begins: readiness is off from then on.
        stop_by: When everything must have ended, by the loop's clock; 0 before the stop.
    """

    bootstrap: str = ""
    embedded: bool = False
    http: str = ""
    grpc: str = ""
    metrics: str = ""
    worker: str = ""
    running: list[asyncio.Task[None]] = field(default_factory=list)
    is_ready: list[Callable[[], bool]] = field(default_factory=list)
    leave: list[Callable[[], None]] = field(default_factory=list)
    stop_by: float = 0.0


def print_welcome(
    settings: Settings,
    addresses: Addresses,
    repository: Repository | None,
    mapped: Mapping[str, MappedTopics],
) -> None:
    """Print what there is, one line each; ``mapped`` are the topics of mapped models."""
    topology = topology_of(settings, mapped)
    rows = [("Headrace", version("headrace"))]
    kind = " (embedded broker)" if addresses.embedded else ""
    rows.append(("Kafka", addresses.bootstrap + kind))
    models = repository.models if repository is not None else ()
    rows += [("Records", f"{topology.requests(m)} to {topology.results(m)}") for m in models]
    if addresses.http:
        rows.append(("HTTP", f"{addresses.http}/v2"))
    if addresses.grpc:
        rows.append(("gRPC", addresses.grpc))
    if addresses.metrics:
        rows.append(("Metrics", addresses.metrics))
    if addresses.worker:
        rows.append(("Worker", f"{addresses.worker}/metrics, {addresses.worker}/v2/health/ready"))
    if repository is not None:
        modes = {
            name: delivery_mode(model.config, Mode(settings.delivery))
            for name, model in repository.models.items()
        }
        rows += [("Guarantee", text) for text in guarantees(modes, embedded=addresses.embedded)]
    table = Table.grid(padding=(0, 2))
    for name, text in rows:
        table.add_row(Text(name, "bold"), Text(text))
    out.print(table, soft_wrap=False)


def guarantees(modes: Mapping[str, Mode], *, embedded: bool) -> list[str]:
    """Return what is guaranteed, one sentence for each mode that some model has.

    Args:
        modes: Model name → its delivery.
        embedded: The broker is the embedded one.
    """
    if embedded:
        return [EMBEDDED]
    texts = {Mode.AT_LEAST_ONCE: AT_LEAST_ONCE, Mode.EXACTLY_ONCE: EXACTLY_ONCE}
    found = set(modes.values()) or {Mode.AT_LEAST_ONCE}
    if len(found) == 1:
        return [texts[mode] for mode in found]
    return [
        f"{', '.join(name for name, mine in modes.items() if mine is mode)}: {text}"
        for mode, text in texts.items()
    ]
