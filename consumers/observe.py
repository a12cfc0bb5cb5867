"""What a worker counts and times of one model version: Triton's counters, and Headrace's own histograms.

Everything is observed per batch. The distributions are prometheus-client histograms in seconds; no label takes a
client's value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.consumers.batcher import Refusal
from headrace.consumers.encoding import Encoded
from headrace.consumers.execution import Execution
from headrace.consumers.observe_responses import count_responses
from headrace.schemas.batch import Batch
from headrace.schemas.errors import Reason
from headrace.streams.counts import Failure, ModelCounts
from headrace.streams.status import SequenceCounts
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Upper bounds of duration histograms, seconds."""
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Upper bounds of the batch-size histogram, rows."""


class WorkerMetrics:
    """Headrace's own metrics of one worker process, by model and version."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register them."""
        names = ("model", "version")
        self.queue = Histogram(
            "headrace_queue_seconds",
            "Longest wait in the batcher among the requests of a batch.",
            names,
            buckets=SECONDS,
            registry=registry,
        )
        self.compute = Histogram(
            "headrace_compute_seconds",
            "Time that an instance spent on a batch.",
            names,
            buckets=SECONDS,
            registry=registry,
        )
        self.request = Histogram(
            "headrace_request_seconds",
            "Longest time from admission to answer among the requests of a batch.",
            names,
            buckets=SECONDS,
            registry=registry,
        )
        self.rows = Histogram(
            "headrace_batch_rows",
            "Rows of executed batches.",
            names,
            buckets=ROWS,
            registry=registry,
        )
        self.refused = Counter(
            "headrace_refused_requests",
            "Requests answered with an error before they ran, by reason.",
            ("model", "reason"),
            registry=registry,
        )
        self.rebalances = Gauge(
            "headrace_rebalances",
            "Assignments, revocations and losses since the member joined.",
            ("model",),
            registry=registry,
        )
        self.rebalance = Histogram(
            "headrace_rebalance_seconds",
            "Time from giving partitions up in a rebalance until those that are assigned are read.",
            ("model",),
            buckets=SECONDS,
            registry=registry,
        )
        self.in_flight = Gauge(
            "headrace_in_flight_records",
            "Records that were admitted and whose answers are not published yet.",
            ("model",),
            registry=registry,
        )
        self.retries = Counter(
            "headrace_retried_requests",
            "Requests that are tried again after their execution failed.",
            names,
            registry=registry,
        )
        self.timeouts = Counter(
            "headrace_execution_timeouts",
            "Executions that were given up because they did not return in time.",
            names,
            registry=registry,
        )
        self.restarts = Counter(
            "headrace_instance_restarts",
            "Instances that were replaced by new ones.",
            names,
            registry=registry,
        )
        self.abandoned = Gauge(
            "headrace_abandoned_executions",
            "Given-up executions that still hang in their threads.",
            names,
            registry=registry,
        )
        self.ceiling = Gauge(
            "headrace_batch_ceiling_rows",
            "Rows that a batch may have since memory ran out; 0 is as many as the model allows.",
            names,
            registry=registry,
        )
        self.loop_lag = Gauge(
            "headrace_loop_lag_seconds",
            "How late the event loop ran a timer, the longest of the last interval.",
            registry=registry,
        )


class ModelObserver:
    """Counts of one model version.

    Attributes:
        counts: Triton's counters (SEMANTICS MX-01…MX-10).
    """

    def __init__(
        self, model: str, version: int, metrics: WorkerMetrics, *, decoupled: bool = False
    ) -> None:
        """Make the version's series at 0 (MX-30); of a ``decoupled`` model responses are counted too (DC-03)."""
        self.counts = ModelCounts()
        self._decoupled = decoupled
        self._queue = metrics.queue.labels(model, str(version))
        self._compute = metrics.compute.labels(model, str(version))
        self._request = metrics.request.labels(model, str(version))
        self._rows = metrics.rows.labels(model, str(version))
        self._retries = metrics.retries.labels(model, str(version))
        self._timeouts = metrics.timeouts.labels(model, str(version))
        self._restarts = metrics.restarts.labels(model, str(version))
        self._abandoned = metrics.abandoned.labels(model, str(version))
        self._ceiling = metrics.ceiling.labels(model, str(version))

    def executed(
        self,
        batch: Batch,
        execution: Execution,
        encoded: Encoded,
        at_ms: int,
    ) -> None:
        """Count a batch that ran.

        Args:
            batch: The batch.
            execution: What became of it.
            encoded: What is said of it.
            at_ms: Wall clock, ms since the epoch.
        """
        _, failures, output_ns = encoded
        entries = [entry for entry in batch.entries if entry is not None]
        arrived = [entry.admitted_ns for entry in entries]
        started, ended = execution.started_ns, execution.ended_ns
        done = ended + output_ns
        oldest = min(arrived)
        counts = self.counts
        counts.last_inference_ms = at_ms
        self._executed(batch, execution, output_ns)
        if self._decoupled:
            count_responses(counts, execution, encoded)
        if failures:
            gone = sum(failure.error.reason is Reason.CANCELLED for failure in failures)
            counts.failure[Failure.CANCELED] += gone
            counts.failure[Failure.BACKEND] += len(failures) - gone
            counts.fail_ns += sum([done - failure.entry.admitted_ns for failure in failures])
            failed = {id(failure.entry) for failure in failures}
            entries = [entry for entry in entries if id(entry) not in failed]
            arrived = [entry.admitted_ns for entry in entries]
        number, total = len(entries), sum(arrived)
        counts.success += number
        counts.inference_count += sum([entry.rows for entry in entries])
        counts.queue_ns += number * started - total
        counts.request_ns += number * done - total
        # Triton adds a batch's compute time once for each of its requests.
        counts.compute_input_ns += number * (execution.gathered_ns - started)
        counts.compute_infer_ns += number * (ended - execution.gathered_ns)
        counts.compute_output_ns += number * output_ns
        self._queue.observe((started - oldest) / 1e9)
        self._compute.observe((ended - started) / 1e9)
        self._request.observe((done - oldest) / 1e9)
        self._rows.observe(batch.rows)

    def _executed(self, batch: Batch, execution: Execution, output_ns: int) -> None:
        """Count executions by their rows (ST-02).

        Where a batch ran in pieces, each piece is counted, and the whole time as that of the first.
        """
        sizes = execution.sizes or (batch.rows,)
        self.ran(sizes)
        first = self.counts.batch(sizes[0])
        first.compute_input_ns += execution.gathered_ns - execution.started_ns
        first.compute_infer_ns += execution.ended_ns - execution.gathered_ns
        first.compute_output_ns += output_ns

    def refused(self, refusal: Refusal, now_ns: int) -> None:
        """Count a queued request that left without running (MX-02, ST-05)."""
        if refusal.entry.admitted_ns:  # else it never got into the queue
            self.counts.fail_ns += now_ns - refusal.entry.admitted_ns
        match refusal.error.reason:
            case Reason.TIMEOUT_EXPIRED | Reason.DEADLINE_PASSED:
                self.counts.failure[Failure.REJECTED] += 1
            case Reason.CANCELLED:
                self.counts.failure[Failure.CANCELED] += 1
            case (
                Reason.BACKEND_FAILED
                | Reason.INSTANCE_DIED
                | Reason.WORKER_CRASHED
                | Reason.EXECUTION_TIMEOUT
                | Reason.OUT_OF_MEMORY
            ):
                self.counts.failure[Failure.BACKEND] += 1
            case _:
                self.counts.failure[Failure.OTHER] += 1

    # What `headrace.consumers.recovery.Faults` and the instances' supervision tell.

    def retried(self, requests: int) -> None:
        """Count requests that are tried again."""
        self._retries.inc(requests)

    def ran(self, sizes: Sequence[int]) -> None:
        """Count executions by their rows, whatever came of them (MX-04)."""
        self.counts.exec_count += len(sizes)
        for rows in sizes:
            self.counts.batch(rows).count += 1

    def timed_out(self) -> None:
        """Count an execution that was given up."""
        self._timeouts.inc()

    def ceiling(self, rows: int) -> None:
        """Show the rows that a batch may have; 0 is what the model allows."""
        self._ceiling.set(rows)

    def restarted(self) -> None:
        """Count an instance that was replaced."""
        self._restarts.inc()

    def abandoned(self, more: int) -> None:
        """Show that so many more given-up executions hang, or fewer."""
        self._abandoned.inc(more)


_SEQUENCE_GAUGES = (
    ("live", "headrace_live_sequences", "Sequences that have started and not ended."),
    ("backlogged", "headrace_backlogged_sequences", "Live sequences that wait for a slot."),
)
_SEQUENCE_COUNTERS = (
    ("parked", "headrace_sequences_parked", "Times that a sequence gave up its slot."),
    ("ended", "headrace_sequences_ended", "Sequences that ended by END."),
    ("expired", "headrace_sequences_expired", "Sequences that were silent for too long."),
    ("restored", "headrace_sequences_restored", "Sequences taken over from their snapshots."),
    ("lost", "headrace_sequences_lost", "Sequences that no snapshot could bring back."),
    ("split", "headrace_sequences_split", "Requests whose sequence is live on another partition."),
    ("snapshots", "headrace_snapshots", "Snapshots written."),
    ("snapshot_bytes", "headrace_snapshot_bytes", "Bytes of the snapshots written."),
)
_SNAPSHOT_FAILURES = (
    ("snapshots_corrupt", "corrupt"),
    ("snapshots_shape", "shape"),
    ("snapshots_newer", "newer"),
)


class SequenceMetrics(Collector):
    """Headrace's own metrics of sequences, by model: read from each model's `SequenceCounts` when they are scraped.

    So a step costs an addition to a plain number, and the status topic and the page cannot disagree.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register them."""
        self._counts: dict[str, SequenceCounts] = {}
        self._takeover = Histogram(
            "headrace_takeover_seconds",
            "Time from a partition's assignment until its sequences were restored.",
            ("model",),
            buckets=SECONDS,
            registry=registry,
        )
        registry.register(self)

    def model(self, name: str) -> SequenceCounts:
        """Return the counts of a model, all 0 at first, which are shown from now on (MX-30)."""
        self._takeover.labels(name)
        return self._counts.setdefault(name, SequenceCounts())

    def took_over(self, model: str, seconds: float) -> None:
        """Time a takeover, from the assignment of partitions until their sequences were restored."""
        self._takeover.labels(model).observe(seconds)

    def collect(self) -> Iterable[Metric]:
        """Return what is counted; called at each scrape."""
        for field, name, text in _SEQUENCE_GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=("model",))
            for model, counts in self._counts.items():
                gauge.add_metric((model,), getattr(counts, field))
            yield gauge
        for field, name, text in _SEQUENCE_COUNTERS:
            counter = CounterMetricFamily(name, text, labels=("model",))
            for model, counts in self._counts.items():
                counter.add_metric((model,), getattr(counts, field))
            yield counter
        failures = CounterMetricFamily(
            "headrace_snapshot_failures",
            "Snapshots that could not be read at a takeover, by kind.",
            labels=("model", "kind"),
        )
        for model, counts in self._counts.items():
            for field, kind in _SNAPSHOT_FAILURES:
                failures.add_metric((model, kind), getattr(counts, field))
        yield failures

    def describe(self) -> Iterable[Metric]:
        """Return nothing: names are known at the first scrape."""
        return ()
