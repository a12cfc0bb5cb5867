"""What a whole service counts: Triton's metrics to the number, queue policies over HTTP, and names that a linter takes.

Executions stop at a gate that the test opens, so what waits and what runs is known at each look (SEMANTICS MX-34
has the figures for executions of two seconds; here they take as long as the test likes).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import subprocess
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from headrace.consumers.observe import SequenceMetrics
from headrace.schemas.batch import Batch
from headrace.schemas.errors import BackendError
from headrace.streams.counts import Failure
from headrace.streams.log import Log
from headrace.streams.memory import MemoryLog
from headrace.streams.topology import Topology
from prometheus_client import CollectorRegistry, generate_latest
from service_kit import Gate, ScriptedBackend, Service, samples, serving, until, write_models

PENDING = "nv_inference_pending_request_count"
COUNTERS = (
    "nv_inference_request_success",
    "nv_inference_count",
    "nv_inference_exec_count",
    "nv_inference_request_duration_us",
    "nv_inference_queue_duration_us",
    "nv_inference_compute_input_duration_us",
    "nv_inference_compute_infer_duration_us",
    "nv_inference_compute_output_duration_us",
)
"""SEMANTICS MX-01 and MX-03…MX-09."""
FAILURES = "nv_inference_request_failure"


def config(batching: str | None = "", max_batch: int = 4, more: str = "") -> str:
    """Return the configuration of a model that echoes; None is the default scheduler."""
    scheduling = "" if batching is None else f"dynamic_batching {{ {batching} }}"
    return f"""
        backend: "scripted" max_batch_size: {max_batch}
        input [{{ name: "INPUT0" data_type: TYPE_FP32 dims: [1] }}]
        output [{{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [1] }}]
        {scheduling} {more}"""


@dataclass
class Answer:
    """An answer over HTTP, and how long it took."""

    status: int
    body: dict[str, object]
    headers: Mapping[str, str]
    seconds: float


@dataclass
class Asker:
    """Asks a service's one model, each request in a task of its own."""

    service: Service
    backend: ScriptedBackend
    gate: Gate
    tasks: list[asyncio.Task[Answer]] = field(default_factory=list)

    def ask(self, *, rows: int = 1, name: str = "", **parameters: object) -> asyncio.Task[Answer]:
        """Send a request of so many rows now."""
        task = asyncio.create_task(self._ask(rows, name, parameters))
        self.tasks.append(task)
        return task

    async def _ask(self, rows: int, name: str, parameters: Mapping[str, object]) -> Answer:
        body: dict[str, object] = {
            "id": name,
            "parameters": dict(parameters),
            "inputs": [
                {"name": "INPUT0", "datatype": "FP32", "shape": [rows, 1], "data": [1.0] * rows}
            ],
        }
        clock = asyncio.get_running_loop().time
        started = clock()
        async with self.service.session.post("/v2/models/m/infer", json=body) as response:
            found = await response.json()
            return Answer(response.status, found, dict(response.headers), clock() - started)

    async def pending(self, count: int) -> None:
        """Wait until the page shows so many pending requests."""
        shown = -1.0
        async with asyncio.timeout(20):
            while shown != count:
                await asyncio.sleep(0.02)
                shown = await self.service.sample(PENDING, model="m")

    async def shows(self, **wanted: float) -> str:
        """Wait until the page shows these values of the one model; return it."""
        async with asyncio.timeout(20):
            while True:
                page = await self.service.page()
                found = {name: samples(page, name, model="m", version="1") for name in wanted}
                if found == wanted:
                    return page
                await asyncio.sleep(0.02)

    async def statuses(self) -> Counter[int]:
        """Wait for all answers; return how many there are of each status."""
        return Counter([answer.status for answer in await asyncio.gather(*self.tasks)])


@asynccontextmanager
async def asking(
    root: Path, text: str, *, gated: bool = True, log: Log | None = None
) -> AsyncIterator[Asker]:
    """Serve one model whose executions stop at a gate."""
    gate = Gate()
    backend = ScriptedBackend(gate if gated else lambda _: None)
    topology = Topology(prefix=f"q{uuid.uuid4().hex[:8]}", partitions=2, reply_partitions=1)
    write_models(root, {"m": text})
    async with contextlib.AsyncExitStack() as stack:
        opened = log or await stack.enter_async_context(MemoryLog())
        service = await stack.enter_async_context(serving(opened, root, topology, find=backend))
        stack.callback(gate.open, 1_000)  # a failing test must not wait for executions at the gate
        yield Asker(service, backend, gate)


LONG = "max_queue_delay_microseconds: 1000000"


async def test_MX34_ten_requests_in_batches_of_four(tmp_path: Path, logs) -> None:
    """Pending reads 6, 2, 0; ten inferences in three executions. On each log."""
    async with logs.open() as log, asking(tmp_path, config(LONG), log=log) as asker:
        for _ in range(10):
            asker.ask()
        await asker.pending(6)
        assert asker.backend.rows == [4]
        asker.gate.open()
        await asker.pending(2)
        asker.gate.open()
        await asker.pending(0)
        asker.gate.open()
        assert await asker.statuses() == {200: 10}
        assert asker.backend.rows == [4, 4, 2]
        page = await asker.shows(
            nv_inference_count=10, nv_inference_exec_count=3, nv_inference_request_success=10
        )
        assert failures(page) == {}


async def test_MX34_a_full_queue_refuses_exactly_two(tmp_path: Path, logs) -> None:
    """Four run, four wait, two clients see a 503; pending reads 4, 0; eight inferences in two executions."""
    policy = f"{LONG} default_queue_policy {{ max_queue_size: 4 }}"
    async with logs.open() as log, asking(tmp_path, config(policy), log=log) as asker:
        for number in range(10):
            asker.ask(name=f"call-{number}")
        await asker.pending(4)
        refused = [
            task
            for task in asker.tasks
            if (await asyncio.wait([task], timeout=0))[0] and task.result().status != 200
        ]
        asker.gate.open()
        await asker.pending(0)
        asker.gate.open()
        assert await asker.statuses() == {200: 8, 503: 2}
        assert len(refused) == 2, "a full queue is said at once, not when there is room again"
        for task in refused:
            answer = task.result()
            assert answer.headers["Retry-After"] == "1"
            assert re.fullmatch(
                r"\[request id: call-\d\] Exceeds maximum queue size", str(answer.body["error"])
            )
        page = await asker.shows(
            nv_inference_count=8, nv_inference_exec_count=2, nv_inference_request_success=8
        )
        assert failures(page) == {}  # MX-31, QT-01


async def test_MX34_the_default_scheduler_counts_down_one_by_one(tmp_path: Path) -> None:
    """9, 8, … 0: nothing is merged without dynamic batching (DB-33)."""
    async with asking(tmp_path, config(None)) as asker:
        for _ in range(10):
            asker.ask()
        for left in range(9, -1, -1):
            await asker.pending(left)
            assert asker.backend.rows == [1] * (10 - left)
            asker.gate.open()
        assert await asker.statuses() == {200: 10}
        await asker.shows(nv_inference_count=10, nv_inference_exec_count=10)


async def test_MX30_all_series_are_there_at_0_from_the_load(tmp_path: Path) -> None:
    """Before any request; all four failure reasons too (MX-02). They vanish with the worker."""
    async with asking(tmp_path, config(more='metric_tags { key: "team" value: "a" }')) as asker:
        page = await asker.service.page()
        for name in (*COUNTERS, PENDING):
            assert f'{name}{{_team="a",model="m",version="1"}} 0' in page.splitlines()
        for reason in Failure:
            line = f'{FAILURES}{{_team="a",model="m",reason="{reason}",version="1"}} 0'
            assert line in page.splitlines()
        await asker.service.stop_worker()
        async with asyncio.timeout(20):
            while "nv_" in page:
                page = await asker.service.page()


async def test_MX01_to_MX09_what_is_counted_of_requests_that_ran(tmp_path: Path) -> None:
    """Requests, items and executions; times of each request, in microseconds."""
    async with asking(tmp_path, config(LONG)) as asker:
        asker.ask(rows=3)
        await asker.pending(1)
        asker.ask(rows=1)
        await until(lambda: asker.backend.rows == [4])
        asker.gate.open()
        assert await asker.statuses() == {200: 2}
        page = await asker.shows(
            nv_inference_count=4, nv_inference_exec_count=1, nv_inference_request_success=2
        )
        spent = {name: samples(page, name, model="m") for name in COUNTERS[3:]}
        request, queue, *compute = spent.values()
        assert queue > 0
        assert compute[1] > 0
        assert request >= queue + sum(compute) - 2  # each is rounded down once
        assert request < 60_000_000
        own = asker.service.worker_page()
        assert samples(own, "headrace_batch_rows_sum", model="m", version="1") == 4
        assert samples(own, "headrace_batch_rows_count", model="m", version="1") == 1
        for name in ("queue", "compute", "request"):
            assert samples(own, f"headrace_{name}_seconds_count", model="m") == 1


def failures(page: str) -> dict[str, float]:
    """Return the failures by reason that are not 0."""
    found = {reason.value: samples(page, FAILURES, model="m", reason=reason) for reason in Failure}
    return {reason: count for reason, count in found.items() if count}


async def failed(asker: Asker, **wanted: float) -> None:
    """Wait until the page shows these failures and no others."""
    found: dict[str, float] = {"": 0}
    async with asyncio.timeout(20):
        while found != wanted:
            await asyncio.sleep(0.02)
            found = failures(await asker.service.page())


async def test_MX02_each_failure_counts_under_its_reason(tmp_path: Path) -> None:
    """REJECTED by the queue's timeout, CANCELED by a closed connection, BACKEND by the model."""
    policy = (
        "default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 5000000 "
        "allow_timeout_override: true }"
    )
    async with asking(tmp_path, config(policy, max_batch=1)) as asker:
        running = asker.ask(name="running")
        await until(lambda: asker.backend.rows)
        rejected = await asker.ask(timeout=20_000)
        assert (rejected.status, "Request timeout expired" in str(rejected.body)) == (503, True)
        await failed(asker, REJECTED=1)
        gone = asker.ask()
        await asker.pending(1)
        gone.cancel()
        await failed(asker, REJECTED=1, CANCELED=1)
        asker.gate.open()
        assert (await running).status == 200

        def kaput(batch: Batch) -> None:
            raise BackendError("kaput")

        asker.backend.play = kaput
        assert (await asker.ask()).status == 500
        await failed(asker, REJECTED=1, CANCELED=1, BACKEND=1)
        page = await asker.shows(nv_inference_request_success=1, nv_inference_count=1)
        assert samples(page, "nv_inference_exec_count", model="m") == 2


async def test_MX02_a_batch_of_which_some_fail_counts_each_once(tmp_path: Path) -> None:
    """Three of four succeed; the executions are those that it took to find the culprit."""

    def kaput(batch: Batch) -> None:
        if any(entry.id == "bad" for entry in batch.entries):
            raise BackendError("kaput")

    async with asking(tmp_path, config(LONG), gated=False) as asker:
        asker.backend.play = kaput
        for name in ("a", "b", "bad", "c"):
            asker.ask(name=name)
        assert await asker.statuses() == {200: 3, 500: 1}
        executions = len(asker.backend.rows)
        page = await asker.shows(
            nv_inference_request_success=3,
            nv_inference_count=3,
            nv_inference_exec_count=executions,
        )
        assert failures(page) == {"BACKEND": 1}


async def test_MX02_an_answer_that_cannot_be_written_is_no_success(tmp_path: Path) -> None:
    """A backend whose output does not fit its configuration: one failure and no success for each request."""

    def wrong(batch: Batch) -> dict[str, np.ndarray]:
        return {"OUTPUT0": np.zeros((batch.rows, 1), np.float64)}

    async with asking(tmp_path, config(LONG), gated=False) as asker:
        asker.backend.play = wrong
        for _ in range(4):
            asker.ask()
        assert await asker.statuses() == {500: 4}
        await failed(asker, BACKEND=4)
        assert asker.service.counts("m").success == 0
        assert asker.service.counts("m").inference_count == 0


async def test_MX31_what_never_gets_into_a_queue_is_no_failure(tmp_path: Path) -> None:
    """Validation, unknown versions and models, refused before or behind the log."""
    async with asking(tmp_path, config(), gated=False) as asker:
        session = asker.service.session
        for path, body, status in (
            ("nope", {}, 404),
            ("m/versions/9", {}, 404),
            ("m", {"inputs": []}, 400),
            ("m", {}, 500),
        ):
            async with session.post(f"/v2/models/{path}/infer", json=body) as response:
                assert response.status == status
        assert (await asker.ask(rows=5)).status == 400
        assert (await asker.ask()).status == 200
        page = await asker.shows(nv_inference_request_success=1)
        assert failures(page) == {}


async def test_MX10_KX11_a_version_of_its_own_counts_for_itself(tmp_path: Path) -> None:
    """Two versions: what is asked of the highest by default, and what waits and expires there, is its own."""
    policy = "default_queue_policy { default_timeout_microseconds: 20000 }"
    text = config(policy, max_batch=1, more="version_policy { all {} }")
    backend = ScriptedBackend(gate := Gate())
    write_models(tmp_path, {"m": text}, versions=(1, 2))
    topology = Topology(prefix="two", partitions=1, reply_partitions=1)
    async with (
        MemoryLog() as log,
        serving(log, tmp_path, topology, find=backend) as service,
        contextlib.AsyncExitStack() as stack,
    ):
        stack.callback(gate.open, 100)
        asker = Asker(service, backend, gate)
        asker.ask()
        await until(lambda: backend.rows)
        rejected = await asker.ask()
        assert rejected.status == 503
        assert service.counts("m", 1).failure[Failure.REJECTED] == 0
        assert service.counts("m", 2).failure[Failure.REJECTED] == 1
        gate.open()
        assert await asker.statuses() == {200: 1, 503: 1}
        assert (service.counts("m", 1).success, service.counts("m", 2).success) == (0, 1)


# Queue policies over HTTP (SEMANTICS §5.6).


async def test_QT01_of_ten_attempts_on_a_queue_of_eight_two_are_rejected(tmp_path: Path) -> None:
    """One request of 8 rows executes."""
    policy = "default_queue_policy { max_queue_size: 8 }"
    async with asking(tmp_path, config(policy, max_batch=8)) as asker:
        asker.ask(rows=8)
        await until(lambda: asker.backend.rows == [8])
        for _ in range(10):
            asker.ask()
        await asker.pending(8)
        asker.gate.open(2)
        assert await asker.statuses() == {200: 9, 503: 2}
        assert asker.backend.rows == [8, 8]


POLICY = (
    "preferred_batch_size: [4] max_queue_delay_microseconds: 1500000 default_queue_policy "
    "{{ timeout_action: {} default_timeout_microseconds: 100000 }}"
)


async def timed_out_then_a_full_batch(asker: Asker) -> tuple[Answer, list[Answer]]:
    """Send one request, and two of two rows when its timeout has passed; return all answers."""
    first = asker.ask()
    await until(lambda: queued(asker) == 1)
    clock = asyncio.get_running_loop().time
    past = clock() + 0.2
    await until(lambda: clock() > past)
    later = [asker.ask(rows=2), asker.ask(rows=2)]
    return await first, list(await asyncio.gather(*later))


async def test_QT04_reject_answers_what_waited_too_long(tmp_path: Path) -> None:
    """One "Request timeout expired", long before the batch's delay; the others run at once."""
    async with asking(tmp_path, config(POLICY.format("REJECT")), gated=False) as asker:
        first, later = await timed_out_then_a_full_batch(asker)
        assert first.status == 503
        assert "Request timeout expired" in str(first.body["error"])
        assert first.headers["Retry-After"] == "1"
        assert first.seconds < 1.2
        assert [answer.status for answer in later] == [200, 200]
        assert max(answer.seconds for answer in later) < 1.2
        assert asker.backend.rows == [4]
        await failed(asker, REJECTED=1)


async def test_QT05_delay_serves_it_behind_the_others_and_rejects_nobody(tmp_path: Path) -> None:
    """The two later ones make the preferred four and run at once; the first waits out its delay."""
    async with asking(tmp_path, config(POLICY.format("DELAY")), gated=False) as asker:
        first, later = await timed_out_then_a_full_batch(asker)
        assert [answer.status for answer in later] == [200, 200]
        assert max(answer.seconds for answer in later) < 1.2
        assert first.status == 200
        assert first.seconds >= 1.4
        assert asker.backend.rows == [4, 1]
        await asker.shows(nv_inference_request_success=3)
        assert failures(await asker.service.page()) == {}


@pytest.mark.parametrize("levels", [2, 2**64 - 1])
async def test_DB04_level_1_overtakes(tmp_path: Path, levels: int) -> None:
    """Requests name their level by the parameter ``priority``; the default is 2."""
    policy = f"priority_levels: {levels} default_priority_level: 2"
    async with asking(tmp_path, config(policy, max_batch=1)) as asker:
        asker.ask(name="running")
        await until(lambda: asker.backend.rows)
        wanted = (("a", 0), ("b", 2), ("c", 9 if levels == 2 else 0))
        for number, (name, priority) in enumerate(wanted, start=1):
            asker.ask(name=name, priority=priority)
            await until(lambda n=number: queued(asker) == n)
        asker.ask(name="first", priority=1)
        await until(lambda: queued(asker) == 4)
        asker.gate.open(5)
        assert await asker.statuses() == {200: 5}
        assert asker.backend.executions == [["running"], ["first"], ["a"], ["b"], ["c"]]


def queued(asker: Asker) -> int:
    """Return how many requests wait in the batcher."""
    return len(asker.service.version("m").scheduler.batcher)


# B78: names, units and labels.

UNITS = {"milliseconds": "seconds", "ms": "seconds", "microseconds": "seconds", "us": "seconds"}


SUFFIXES = ("_count", "_sum", "_bucket")


def lint(page: str, prefix: str = "headrace_") -> list[str]:
    """Return what promtool's linter would say of one's own metrics, and that there is one prefix."""
    found: list[str] = []
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
    helps = set(re.findall(r"^# HELP (\S+) \S", page, re.MULTILINE))
    for name, kind in types.items():
        if name.startswith("nv_"):
            continue  # Triton's names and units are what dashboards match on (MX-01…MX-10)
        words = name.split("_")
        complaints = {
            "another prefix": not name.startswith(prefix),
            "no help": name not in helps,
            "not lower case with underscores": not re.fullmatch(r"[a-z][a-z0-9_]*", name),
            "its type is in its name": {"gauge", "counter", "histogram", "summary"} & set(words),
            "a counter ends in _total": kind == "counter" and not name.endswith("_total"),
            "only a counter ends in _total": kind != "counter" and name.endswith("_total"),
            "a histogram's own suffix": kind == "histogram" and name.endswith(SUFFIXES),
            "a duration is in seconds": {"duration", "latency", "lag", "delay"} & set(words)
            and "seconds" not in words,
        }
        found += [f"{name}: {text}" for text, is_so in complaints.items() if is_so]
        found += [f"{name}: use {UNITS[word]}" for word in words if word in UNITS]
    return found


def by_promtool(page: str) -> list[str]:
    """Return what promtool itself says of the page's own metrics, nothing where it is not installed."""
    promtool = shutil.which("promtool")
    if promtool is None:
        return []
    own = [line for line in page.splitlines() if "nv_" not in line]
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input="\n".join(own) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    return (done.stdout + done.stderr).splitlines()


async def test_B78_names_and_units_pass_the_linter_and_labels_hold_no_clients_words(
    tmp_path: Path,
) -> None:
    """After every kind of request, on the gateway's page and on the worker's."""
    word = "fromaclient"
    async with asking(tmp_path, config(), gated=False) as asker:
        session = asker.service.session
        assert (await asker.ask(name=word, **{word: word})).status == 200
        for path in (word, f"m/versions/9/{word}", f"{word}/versions/1", f"m%22{word}"):
            async with session.post(
                f"/v2/models/{path}/infer", json={}, headers={"x-" + word: word}
            ) as response:
                assert response.status == 404
        body = {"inputs": [{"name": word, "shape": [1], "datatype": word, "data": [1]}]}
        async with session.post("/v2/models/m/infer", json=body) as response:
            assert response.status == 400
        pages = [await asker.service.page(), asker.service.worker_page()]
    for page in pages:
        assert lint(page) == []
        assert by_promtool(page) == []
        assert word not in page
    own = {name for page in pages for name in re.findall(r"# TYPE (\S+)", page)}
    assert {"headrace_gateway_call_duration_seconds", "headrace_queue_seconds"} <= own


def test_B78_the_metrics_of_sequences_pass_the_linter() -> None:
    """All of them, with a model's series."""
    registry = CollectorRegistry()
    SequenceMetrics(registry).model("m")
    page = generate_latest(registry).decode()
    assert lint(page) == []
    assert by_promtool(page) == []
    own = set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))
    assert {"headrace_live_sequences", "headrace_snapshot_failures_total"} <= own


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        (
            "# HELP headrace_wait_ms x\n# TYPE headrace_wait_ms gauge\nheadrace_wait_ms 1\n",
            "use seconds",
        ),
        ("# HELP other_calls x\n# TYPE other_calls gauge\nother_calls 1\n", "another prefix"),
        ("# TYPE headrace_calls gauge\nheadrace_calls 1\n", "no help"),
        (
            "# HELP headrace_calls x\n# TYPE headrace_calls counter\nheadrace_calls 1\n",
            "ends in _total",
        ),
        (
            "# HELP headrace_x_total x\n# TYPE headrace_x_total gauge\nheadrace_x_total 1\n",
            "only a counter",
        ),
        (
            "# HELP headrace_call_duration x\n# TYPE headrace_call_duration gauge\nheadrace_call_duration 1\n",
            "in seconds",
        ),
        ("# HELP headrace_Calls x\n# TYPE headrace_Calls gauge\nheadrace_Calls 1\n", "lower case"),
        (
            "# HELP headrace_calls_gauge x\n# TYPE headrace_calls_gauge gauge\nheadrace_calls_gauge 1\n",
            "its type",
        ),
    ],
)
def test_B78_the_linter_finds_what_is_wrong(page: str, complaint: str) -> None:
    assert any(complaint in line for line in lint(page))
