"""How the parts become a process: broker, log, models, worker and gateway, in the order of start and of stop.

Stopping goes the other way round: readiness is off, for as long as load balancers need to see it; the gateway refuses
new calls and lets the worker answer the open ones, the worker then drains and commits, and the broker ends last.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.consumers.mapped import MappedModel
from headrace.consumers.service import Worker
from headrace.deploy.access import allow_connections, guard_of
from headrace.deploy.broker import (
    embedded_broker,
    embedded_properties,
    is_embedded,
    named_kafka,
    open_log,
    topology_of,
)
from headrace.deploy.claims import claims_of
from headrace.deploy.console import errors, hint
from headrace.deploy.extensions import extensions_of
from headrace.deploy.failure import port_taken
from headrace.deploy.grpc_guard import grpc_guard_of
from headrace.deploy.loading import (
    hint_at_batching,
    load_settings_of,
    print_models,
    refuse_failures,
)
from headrace.deploy.mappings import check_models, mapped_models, read_mappings, topics_of
from headrace.deploy.settings import Settings, option_name
from headrace.deploy.welcome import Addresses, host_port, print_welcome, url_of
from headrace.deploy.worker_bounds import worker_settings
from headrace.deploy.worker_http import Views, WorkerHttp
from headrace.repository.repository import Repository
from headrace.streams.async_table import AsyncBounds
from headrace.streams.claim_objects import FsspecObjects
from headrace.streams.claims import Claims
from headrace.streams.gateway import Gateway, GatewaySettings
from headrace.streams.gateway_metrics import GatewayMetrics
from headrace.streams.grpc_server import GrpcServer
from headrace.streams.http import HttpServer
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import TopicSpec
from headrace.streams.metrics import MetricsServer, metrics_page
from prometheus_client import CollectorRegistry, disable_created_metrics

logger = logging.getLogger(__name__)

LEAVE_S = 10.0
"""Seconds after the exit time-out for taking back status records and closing connections."""

COLLECT_AFTER = 100_000
"""Net allocations before the cycle collector looks. Records make no cycles, and at Python's 700 it walked over
what waits in the queue so often that it took more time than decoding."""

SWITCH_INTERVAL_S = 0.0005
"""How long the loop may keep a model's thread waiting for the interpreter lock. At Python's 5 ms, an instance that has
finished a batch of half a millisecond may wait ten times as long before it can say so."""

READY_POLL_S = 0.05
"""How often a start looks whether all is ready, to say so."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a process holds: ``serve`` both, the other commands one."""

    worker: bool
    gateway: bool


@dataclass(frozen=True, slots=True)
class Working:
    """What a worker needs beside its log: its models, those of them that are mapped, and the store of large values."""

    repository: Repository
    mapped: Mapping[str, MappedModel]
    claims: Claims | None


async def run_process(settings: Settings, paths: Sequence[Path], parts: Parts) -> None:
    """Start the parts, say what there is, and serve until SIGINT or SIGTERM.

    Args:
        settings: Of the process.
        paths: Where models lie; empty for a gateway.
        parts: Which.

    Raises:
        CommandFailed: A port is taken, or a model does not load and the settings ask for all.
        ConfigError: A setting or a repository is wrong.
        LogError: No broker answers, or a topic may not be created.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]  # untyped there; start times double the page
    stop = asyncio.Event()
    _stop_at_signals(stop, settings.stop_delay_secs + settings.exit_timeout_secs)
    _check_ports(settings, parts)
    if parts.gateway:
        guard_of(settings)  # as below: refused before models are loaded
        grpc_guard_of(settings)
        allow_connections(settings.http_max_connections)
    mappings = read_mappings(settings) if parts.worker else {}
    if settings.claim_check_url:
        # A wrong one is refused before models are loaded, which may take minutes.
        FsspecObjects(settings.claim_check_url)
    async with AsyncExitStack() as stack:
        repository = None
        if parts.worker:
            repository = await _load(settings, paths)
            stack.callback(repository.close)
            check_models(mappings, repository)
        addresses = Addresses()
        log = await stack.enter_async_context(_opened_log(settings, addresses))
        claims = claims_of(settings, log.max_record_bytes, cleans=parts.worker)
        if claims is not None:
            await stack.enter_async_context(claims)
        if repository is not None:
            mapped = await stack.enter_async_context(mapped_models(settings, mappings, repository))
            working = Working(repository, mapped, claims)
            await stack.enter_async_context(_working(settings, log, working, addresses))
        if parts.gateway:
            await stack.enter_async_context(_answering(settings, log, addresses, claims))
        print_welcome(settings, addresses, repository, topics_of(mappings))
        _hint_at_containers(settings)
        _calm_collector()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        await _until(stop, addresses)
        await _leave(settings, addresses)
        errors.print("Stopping: what is in flight is finished first.")


def _calm_collector() -> None:
    """Let the cycle collector look seldom, and never again at what was loaded at start."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 20)


def _stop_at_signals(stop: asyncio.Event, within_s: float) -> None:
    """Let the first signal stop gracefully and the second end the process at once."""
    loop = asyncio.get_running_loop()

    def end(why: str) -> None:
        errors.print(f"{why}; what was in flight is read again at the next start.")
        os._exit(1)  # the embedded broker ends with its parent, however that ends

    def stopping() -> None:
        if stop.is_set():
            end("Stopped at once")
        stop.set()
        logger.info("stopping within %g s; a second signal ends at once", within_s)
        # Each part keeps within its own share; this is for what nobody foresaw, such as a log that hangs.
        loop.call_later(within_s + LEAVE_S, end, "The stop took too long")

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping)


def _check_ports(settings: Settings, parts: Parts) -> None:
    """Refuse a taken port before models are loaded, which may take minutes."""
    address = settings.http_address
    wanted = []
    if parts.gateway:
        grpc_address = settings.grpc_address or address
        wanted += [
            ("http_port", address, settings.allow_http and not settings.reuse_http_port),
            ("grpc_port", grpc_address, settings.allow_grpc and not settings.reuse_grpc_port),
            ("metrics_port", address, settings.allow_metrics),
        ]
    if parts.worker:
        wanted.append(("worker_port", address, True))
    for name, host, is_used in wanted:
        if not is_used:
            continue
        port = getattr(settings, name)
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as exc:
                raise port_taken(exc, option_name(name), host, port) from exc


def _hint_at_containers(settings: Settings) -> None:
    """Say what a container needs, where this seems to be one and nobody outside could connect."""
    in_container = os.getpid() == 1 or Path("/.dockerenv").exists()
    if in_container and settings.http_address in ("127.0.0.1", "localhost", "::1"):
        hint(
            f"listening on {settings.http_address} only, which nothing outside this container "
            f"reaches; give {option_name('http_address')} 0.0.0.0 to change that"
        )


async def _load(settings: Settings, paths: Sequence[Path]) -> Repository:
    repository = Repository(paths, load_settings_of(settings))
    await asyncio.to_thread(repository.load)
    try:
        print_models(repository)
        refuse_failures(settings, repository)
        hint_at_batching(settings, paths, repository)
    except BaseException:
        repository.close()
        raise
    return repository


@asynccontextmanager
async def _opened_log(settings: Settings, addresses: Addresses) -> AsyncIterator[KafkaLog]:
    """Open the log that the settings name, or the embedded broker and its log."""
    if not is_embedded(settings):
        properties = named_kafka(settings)
        addresses.bootstrap = properties["bootstrap.servers"]
        async with open_log(properties, settings) as log:
            yield log
        return
    async with embedded_broker(settings) as broker:
        addresses.bootstrap, addresses.embedded = broker.bootstrap, True
        async with open_log(embedded_properties(broker, settings), settings) as log:
            yield log


@asynccontextmanager
async def _working(
    settings: Settings, log: KafkaLog, working: Working, addresses: Addresses
) -> AsyncIterator[None]:
    """Run the worker, with its port, around the block; drain when the block ends."""
    stop, is_leaving = asyncio.Event(), asyncio.Event()
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(
            WorkerHttp(settings.http_address, settings.worker_port)
        )
        bounds = worker_settings(settings, http.port)
        topics = topics_of({name: model.mapping for name, model in working.mapped.items()})
        if addresses.embedded:  # nobody else can have made them
            await log.ensure([TopicSpec(t.requests, settings.partitions) for t in topics.values()])
        worker = Worker(
            log,
            working.repository,
            topology_of(settings, topics),
            bounds,
            claims=working.claims,
            mapped=working.mapped,
        )
        await stack.enter_async_context(worker)

        def is_ready() -> bool:
            if is_leaving.is_set():
                return False
            if settings.strict_readiness:
                return worker.ready()
            return worker.is_serving()

        def page() -> bytes:
            return metrics_page(worker.series(), worker.registry)

        def troubles() -> Sequence[str]:
            return ["the worker is stopping"] if is_leaving.is_set() else worker.troubles()

        metrics = page if settings.allow_metrics else None
        http.show(Views(is_ready, troubles, worker.sequences, metrics))
        addresses.leave.append(is_leaving.set)
        addresses.worker = url_of(settings.http_address, http.port)
        addresses.is_ready.append(is_ready)
        running = asyncio.create_task(worker.run(stop))
        addresses.running.append(running)
        try:
            yield
        finally:
            if addresses.stop_by:
                worker.exit_by(addresses.stop_by)  # a gateway's calls have had some of the time
            stop.set()
            await running


@asynccontextmanager
async def _answering(
    settings: Settings, log: KafkaLog, addresses: Addresses, claims: Claims | None
) -> AsyncIterator[None]:
    """Run the gateway, with its ports, around the block; open calls are answered before it ends."""
    gateway_settings = GatewaySettings(
        max_pending=settings.max_pending,
        timeout_ms=settings.http_timeout_ms,
        gather_ms=settings.gather_ms,
        max_record_bytes=log.max_record_bytes,
        strict_readiness=settings.strict_readiness,
        max_stream_bytes=settings.max_stream_bytes,
        later=AsyncBounds(
            settings.async_window_secs * 1000, settings.max_async_calls, settings.max_async_bytes
        ),
        interval_ms=settings.status_interval_ms,
        status_timeout_ms=settings.status_timeout_ms,
    )
    guard = guard_of(settings)
    grpc_guard = grpc_guard_of(settings)
    registry = CollectorRegistry()
    counts = GatewayMetrics(registry)
    topology = topology_of(settings)
    gateway = Gateway(log, topology, gateway_settings, observer=counts, claims=claims)
    counts.watch(gateway)

    def page() -> bytes:
        return metrics_page(gateway.fleet.series(gateway.now_ms()), registry)

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(gateway)
        if settings.allow_metrics:
            metrics = MetricsServer(
                page, address=settings.http_address, port=settings.metrics_port
            )
            await stack.enter_async_context(metrics)
            addresses.metrics = url_of(settings.http_address, metrics.port) + "/metrics"
        await gateway.wait_started()
        extensions = stack.enter_context(extensions_of(settings))
        if settings.allow_http:
            http = await stack.enter_async_context(
                HttpServer(gateway, guard.http, extensions, access=guard.access, tls=guard.tls)
            )
            scheme = "http" if guard.tls is None else "https"
            addresses.http = url_of(settings.http_address, http.port, scheme)
        if grpc_guard is not None:
            bounds = grpc_guard.settings
            grpc = await stack.enter_async_context(
                GrpcServer(gateway, bounds, extensions, access=grpc_guard.access)
            )
            addresses.grpc = host_port(bounds.address, grpc.port)
        addresses.is_ready.append(gateway.is_ready)
        addresses.leave.append(gateway.leave)
        yield


async def _until(stop: asyncio.Event, addresses: Addresses) -> None:
    """Wait for the stop; a part that ends before it is a failure and passes on its reason."""
    waiting = asyncio.create_task(stop.wait())
    telling = asyncio.create_task(_tell_ready(addresses))
    try:
        await asyncio.wait({waiting, *addresses.running}, return_when=asyncio.FIRST_COMPLETED)
        for task in addresses.running:
            if task.done():
                task.result()
    finally:
        waiting.cancel()
        telling.cancel()


async def _leave(settings: Settings, addresses: Addresses) -> None:
    """Turn readiness off, and go on until load balancers have seen it (FAULTS B69)."""
    for leave in addresses.leave:
        leave()
    if settings.stop_delay_secs:
        errors.print(f"Not ready any more; the stop begins in {settings.stop_delay_secs:g} s.")
        await asyncio.sleep(settings.stop_delay_secs)
    addresses.stop_by = asyncio.get_running_loop().time() + settings.exit_timeout_secs


async def _tell_ready(addresses: Addresses) -> None:
    # Readiness is a state of many parts, some in other processes: there is no event to wait for.
    while not all(is_ready() for is_ready in addresses.is_ready):  # noqa: ASYNC110  # as said above
        await asyncio.sleep(READY_POLL_S)
    errors.print("Ready.", style="green")
