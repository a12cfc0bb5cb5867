"""The bounds of a worker under a process's settings."""

from __future__ import annotations

import os
import socket

from headrace.consumers.settings import WorkerSettings
from headrace.deploy.settings import Settings
from headrace.deploy.welcome import url_of
from headrace.schemas.requests import MAX_RECORD_BYTES
from headrace.streams.log import Mode

EVERY_INTERFACE = ("", "0.0.0.0", "::")  # noqa: S104  # compared, not bound
"""Addresses that say nothing about where others find us."""


def advertised_url(settings: Settings, port: int) -> str:
    """Return where other machines reach the worker's port: as told, else by its address, else by the host's name."""
    if settings.worker_advertised_url:
        return settings.worker_advertised_url
    address = settings.http_address
    return url_of(socket.gethostname() if address in EVERY_INTERFACE else address, port)


def worker_settings(settings: Settings, port: int) -> WorkerSettings:
    """Return the worker's bounds under these settings; ``port`` is the one that it listens on."""
    return WorkerSettings(
        worker_id=settings.worker_id or f"{socket.gethostname()}-{os.getpid()}",
        advertised_url=advertised_url(settings, port),
        max_queued_records=settings.max_queued_records,
        max_queued_bytes=settings.max_queued_bytes,
        max_partition_span=settings.max_partition_span,
        max_record_bytes=max(MAX_RECORD_BYTES, settings.claim_check_max_bytes),
        max_poll_records=settings.max_poll_records,
        settle_interval_s=settings.settle_interval_ms / 1000,
        settle_backlog_interval_s=settings.settle_backlog_interval_ms / 1000,
        delivery=Mode(settings.delivery),
        transaction_interval_s=settings.transaction_interval_ms / 1000,
        revoke_grace_s=settings.revoke_grace_secs,
        exit_timeout_s=settings.exit_timeout_secs,
        stall_timeout_s=settings.stall_timeout_secs,
        status_interval_s=settings.status_interval_ms / 1000,
        status_timeout_s=settings.status_timeout_ms / 1000,
        max_live_sequences=settings.max_live_sequences,
        max_backlogged_sequences=settings.max_backlogged_sequences,
        max_ended_sequences=settings.max_ended_sequences,
        ended_ttl_s=settings.ended_ttl_secs,
        snapshot_every=settings.snapshot_every,
        sequence_skew_s=settings.sequence_skew_secs,
        idempotency_window_s=settings.idempotency_window_secs,
        max_idempotency_keys=settings.max_idempotency_keys,
        max_idempotency_bytes=settings.max_idempotency_bytes,
        max_sequence_keys=settings.max_sequence_keys,
        max_sequence_key_bytes=settings.max_sequence_key_bytes,
        max_attempts=settings.max_attempts,
        max_crashes=settings.max_crashes,
        retry_backoff_s=settings.retry_backoff_ms / 1000,
        retry_backoff_max_s=settings.retry_backoff_max_ms / 1000,
        execution_timeout_s=settings.execution_timeout_ms / 1000,
        max_abandoned_executions=settings.max_abandoned_executions,
        max_starved_executions=settings.max_starved_executions,
        memory_ceiling_s=settings.memory_ceiling_secs,
    )
