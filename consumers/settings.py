"""The worker's bounds, each with its reason; the command line fills them in."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.streams.log import Mode


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Bounds of one worker process.

    Attributes:
        worker_id: Name in status records and results' metrics; unique in the fleet.
        advertised_url: Where others reach this worker's own port; status records say it, ``""`` is nowhere.
        max_queued_records: Records of a model that may be admitted and unanswered; above, polling pauses.
        max_queued_bytes: The same in bytes of their values.
        max_partition_span: Offsets between the lowest unfinished and the newest admitted one (DELIVERY P-1: the
            finished ones between travel in each commit's metadata). Where a model keeps memory of its own, above
            ``max_poll_records``: else a sequence that waits for a slot would stop its partition.
        max_record_bytes: A request's value may have at most this many bytes.
        max_poll_records: Records of one poll: bounds how long decoding holds the loop.
        max_inline_bytes: A poll's records of one partition with more bytes are decoded in a thread: 1 MiB of JSON
            holds the loop for 30 ms (FAULTS B2). So are answers that take as long to write encoded in a thread.
        settle_interval_s: How long answers gather before they are published, seconds (DESIGN §5).
        settle_awaited_interval_s: The same where somebody waits for one of them and more is in flight, seconds.
        settle_backlog_interval_s: The same while more waits than the instances can take at once, seconds.
        delivery: The guarantee of answers. A model's parameter ``delivery`` goes before it.
        transaction_interval_s: How long answers that nobody awaits gather for a transaction of exactly_once, seconds:
            each hides what is behind it from readers until it ends (P-12).
        revoke_grace_s: How long a revocation waits for executing batches, seconds (P-5).
        exit_timeout_s: Budget of a graceful stop, seconds (Triton's ``--exit-timeout-secs``).
        status_interval_s: Heartbeat of status records, seconds.
        status_timeout_s: How long gateways take this worker for alive after its last one, seconds.
        topic_check_interval_s: How often the topics' existence is checked, seconds (FAULTS B104).
        settle_retry_s: How long answers that cannot be published are tried again before the group member starts
            anew, seconds.
        stall_timeout_s: How long a partition may have records and hand out none before it is fetched again and the
            worker is not ready; after three times as long the process ends, seconds. The same until readiness falls
            where the log does not tell where partitions end, or the group not which are ours.
        restart_backoff_s: Longest pause before a failed consumer is started again, or a broken instance is replaced,
            seconds.
        max_reply_topics: Reply topics whose partition counts are remembered.
        max_cancels: Cancels remembered that came before their request.
        max_backlogged_sequences: Sequences of a partition that may wait for a slot where the model keeps memory of
            its own, so that nobody can be parked for them; above, a START is answered ``queue_full`` (DESIGN §7).
        max_live_sequences: Sequences of a model that have started and not ended; above, a START is answered
            ``queue_full``: their states are in memory.
        snapshot_every: Steps after which a sequence is snapshotted though no commit is due; 0: on commit only (P-3).
            A model's parameter ``snapshot_every`` goes before it.
        ended_ttl_s: How long the marker of an ended or expired sequence is kept, seconds: it must outlive zombies
            (P-2).
        max_ended_sequences: Such markers of a partition; above, the oldest one goes early.
        sequence_skew_s: How far our clock and the broker's may differ, seconds: silence alone frees a sequence only
            this much after its idle limit (P-15).
        idempotency_window_s: For how long answers are remembered under their requests' idempotency keys, seconds; 0
            remembers none, and refuses requests with a key. A model's parameter ``idempotency_window_ms`` goes before
            it (P-17).
        max_idempotency_keys: Keys that are remembered of a partition; above, the oldest are forgotten.
        max_idempotency_bytes: The same in bytes of the answers.
        max_sequence_keys: Keys that are remembered of a sequence; above, the oldest are forgotten.
        max_sequence_key_bytes: The same in bytes of the answers: they travel in every snapshot of the sequence.
        max_attempts: Tries of a request whose execution fails in a way that may pass, the first included; then it is
            answered with the error and kept as a dead letter.
        max_crashes: Times that the process may end while nothing but one record runs; then that record is answered
            with the error and kept as a dead letter (P-14).
        suspect_bound_s: How long such a record waits for what executes beside it, others wait for it, and its partition
            waits where it finds no slot, each in seconds.
        retry_backoff_s: Pause before the second try, seconds; it doubles with each further one.
        retry_backoff_max_s: Longest such pause, seconds.
        execution_timeout_s: One execution of a model may take so long, seconds; then it is given up and its instance
            replaced. 0 is any time. A model's parameter ``execution_timeout_ms`` goes before it.
        max_abandoned_executions: Threads of a model version that may hang in given-up executions while their instances
            are replaced; above, they are not any more, and readiness falls.
        max_starved_executions: Single requests in a row that run out of memory before their instance counts as
            broken and is replaced.
        memory_ceiling_s: How long batches stay smaller after memory ran out, seconds; then they grow in steps of so
            long, doubling, to what the model allows.
    """

    worker_id: str
    advertised_url: str = ""
    max_queued_records: int = 4096
    max_queued_bytes: int = 256 * 1024 * 1024
    max_partition_span: int = 10_000
    max_record_bytes: int = 64 * 1024 * 1024
    max_poll_records: int = 512
    max_inline_bytes: int = 1024 * 1024
    settle_interval_s: float = 0.005
    settle_awaited_interval_s: float = 0.001
    settle_backlog_interval_s: float = 0.025
    delivery: Mode = Mode.AT_LEAST_ONCE
    transaction_interval_s: float = 0.1
    revoke_grace_s: float = 10.0
    exit_timeout_s: float = 30.0
    status_interval_s: float = 1.0
    status_timeout_s: float = 10.0
    topic_check_interval_s: float = 5.0
    settle_retry_s: float = 60.0
    stall_timeout_s: float = 20.0
    restart_backoff_s: float = 10.0
    max_reply_topics: int = 10_000
    max_cancels: int = 10_000
    max_backlogged_sequences: int = 1024
    max_live_sequences: int = 200_000
    snapshot_every: int = 0
    ended_ttl_s: float = 3600.0
    max_ended_sequences: int = 50_000
    sequence_skew_s: float = 5.0
    idempotency_window_s: float = 3600.0
    max_idempotency_keys: int = 10_000
    max_idempotency_bytes: int = 16 * 1024 * 1024
    max_sequence_keys: int = 8
    max_sequence_key_bytes: int = 64 * 1024
    max_attempts: int = 3
    max_crashes: int = 3
    suspect_bound_s: float = 10.0
    retry_backoff_s: float = 0.1
    retry_backoff_max_s: float = 5.0
    execution_timeout_s: float = 0.0
    max_abandoned_executions: int = 4
    max_starved_executions: int = 5
    memory_ceiling_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Clock:
    """Where time comes from: the machine, or a test that moves it by hand.

    Attributes:
        now_ns: Monotonic nanoseconds.
        wall_ms: Milliseconds since the epoch.
    """

    now_ns: Callable[[], int] = time.monotonic_ns
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
