"""`headrace serve`, `headrace worker` and `headrace gateway`."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer
from headrace.deploy.access import ACCESS
from headrace.deploy.broker import named_kafka
from headrace.deploy.claims import CLAIMS
from headrace.deploy.console import hint
from headrace.deploy.extensions import EXTENSIONS
from headrace.deploy.grpc_options import GRPC
from headrace.deploy.loading import repository_paths
from headrace.deploy.options import with_settings
from headrace.deploy.process import Parts, run_process
from headrace.deploy.settings import Settings
from headrace.deploy.variables import misspelt_variables
from headrace.streams.log_settings import LINE, RETRYING_LOGGER

MODELS = (
    "model_repository",
    "model_control_mode",
    "model_config_name",
    "disable_auto_complete_config",
    "default_max_batch_size",
    "model_load_thread_count",
    "model_load_retry_count",
    "exit_on_error",
)
KAFKA = (
    "bootstrap_servers",
    "kafka_config",
    "topic_prefix",
    "partitions",
    "allow_reply_topics",
)
GATEWAY = (
    "allow_http",
    "http_port",
    "reuse_http_port",
    "metrics_port",
    "http_max_input_size",
    "http_timeout_ms",
    "max_pending",
    "gather_ms",
    "max_stream_bytes",
    "async_window_secs",
    "max_async_calls",
    "max_async_bytes",
    *GRPC,
)
WORKER = (
    "mapping",
    "worker_port",
    "worker_advertised_url",
    "worker_id",
    "group_instance_id",
    "max_queued_records",
    "max_queued_bytes",
    "max_partition_span",
    "max_poll_records",
    "settle_interval_ms",
    "settle_backlog_interval_ms",
    "delivery",
    "transaction_interval_ms",
    "commit_interval_ms",
    "revoke_grace_secs",
    "stall_timeout_secs",
    "max_live_sequences",
    "max_backlogged_sequences",
    "max_ended_sequences",
    "ended_ttl_secs",
    "idempotency_window_secs",
    "max_idempotency_keys",
    "max_idempotency_bytes",
    "max_sequence_keys",
    "max_sequence_key_bytes",
    "snapshot_every",
    "sequence_skew_secs",
    "max_attempts",
    "max_crashes",
    "retry_backoff_ms",
    "retry_backoff_max_ms",
    "execution_timeout_ms",
    "max_abandoned_executions",
    "max_starved_executions",
    "memory_ceiling_secs",
)
PROCESS = (
    "strict_readiness",
    "http_address",
    "allow_metrics",
    "status_interval_ms",
    "status_timeout_ms",
    "stop_delay_secs",
    "exit_timeout_secs",
    "log_level",
    "config",
)


@with_settings(
    *MODELS, *KAFKA, "broker_port", *GATEWAY, *EXTENSIONS, *ACCESS, *WORKER, *CLAIMS, *PROCESS
)
def serve(
    settings: Settings,
    path: Annotated[
        Path | None,
        typer.Argument(help="Model repository, model folder, or a single model file (.onnx)."),
    ] = None,
) -> None:
    """Serve models in one process: worker and gateway, and the embedded broker unless a Kafka is named.

    [bold]Examples[/]

      headrace serve my_model.onnx

      headrace serve /path/to/model_repository

      headrace serve /path/to/model_repository --bootstrap-servers kafka-1:9092

      headrace serve --model-repository /a --model-repository /b --exit-on-error=false
    """
    paths = repository_paths(settings, path)
    run(settings, run_process(settings, paths, Parts(worker=True, gateway=True)))


@with_settings(*MODELS, *KAFKA, *WORKER, *CLAIMS, *PROCESS)
def worker(
    settings: Settings,
    path: Annotated[
        Path | None,
        typer.Argument(help="Model repository, model folder, or a single model file (.onnx)."),
    ] = None,
) -> None:
    """Serve models from their request topics. Start as many as there are partitions to share.

    [bold]Examples[/]

      headrace worker /path/to/model_repository --bootstrap-servers kafka-1:9092

      headrace worker --model-repository /models --kafka-config client.properties --worker-id w1
    """
    paths = repository_paths(settings, path)
    named_kafka(settings)
    run(settings, run_process(settings, paths, Parts(worker=True, gateway=False)))


@with_settings(*KAFKA, *GATEWAY, *EXTENSIONS, *ACCESS, *CLAIMS, *PROCESS)
def gateway(settings: Settings) -> None:
    """Answer the V2 protocol over HTTP and gRPC for the models that workers on the same Kafka serve.

    [bold]Examples[/]

      headrace gateway --bootstrap-servers kafka-1:9092

      headrace gateway --kafka-config client.properties --http-address 0.0.0.0 --http-port 8000
    """
    named_kafka(settings)
    run(settings, run_process(settings, [], Parts(worker=False, gateway=True)))


def run(settings: Settings, main: Coroutine[Any, Any, None]) -> None:
    """Run a process's coroutine with logging set up, on uvloop where it exists."""
    logging.basicConfig(
        level=settings.log_level.upper(),
        format=LINE,
    )
    if settings.log_level != "debug":
        logging.getLogger(RETRYING_LOGGER).setLevel(logging.CRITICAL)
    for warning in misspelt_variables():
        hint(warning)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main)


def _loop_factory() -> Any:
    """Return uvloop's event loop where it is installed, else asyncio's own."""
    try:
        return importlib.import_module("uvloop").new_event_loop
    except ImportError:
        return None
