"""Faust workers as processes, beside a real worker of models: the example as it is printed, and an agent that asks."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from headrace.schemas.record import Out
from headrace.schemas.result_headers import STATUS
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import TopicSpec
from headrace.streams.topology import Topology, partition_for_key
from service_kit import Producer, Tap, loaded, until, working

pytest.importorskip("faust")

TESTS = Path(__file__).parents[1]
EXAMPLES = TESTS.parent / "examples"
EXAMPLE = EXAMPLES / "faust_alerts.py"
READINGS = (10, 60, 30, 50, 200, 200)
"""Of a meter: whatever the minute is in which each result comes, one of them grows by more than the limit in it."""

START_S = 60.0
"""Until a Faust worker has done its first work: imports, and the join of its group, on a busy machine."""

BLOCKED = """
backend: "identity"
input [{ name: "x" data_type: TYPE_FP32 dims: [1] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [1] }]
parameters { key: "block_if" value { string_value: "7" } }
parameters { key: "block_until_file" value { string_value: "%s" } }
"""


class Process:
    """A Faust program that runs.

    Attributes:
        log: File with what it prints.
    """

    def __init__(self, child: asyncio.subprocess.Process, log: Path) -> None:
        self._child = child
        self.log = log

    async def ended(self) -> int:
        """Wait for its end and return the exit status."""
        async with asyncio.timeout(START_S):
            return await self._child.wait()

    async def stopped(self) -> int:
        """Stop it as an operator does."""
        self._child.send_signal(signal.SIGTERM)
        return await self.ended()

    def check(self) -> None:
        """Fail if it ended by itself."""
        assert self._child.returncode is None, self.log.read_text()[-3000:]


@asynccontextmanager
async def program(
    script: Path, folder: Path, bootstrap: str, *arguments: str, **environment: str
) -> AsyncIterator[Process]:
    """Run a Faust program."""
    log = folder / f"{arguments[0]}.log"
    with log.open("wb") as out:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, str(script), "--datadir", str(folder / "data"), *arguments),
            cwd=folder,
            stdout=out,
            stderr=out,
            env={**os.environ, "HEADRACE_BOOTSTRAP_SERVERS": bootstrap, **environment},
        )
    try:
        yield Process(child, log)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


def alerts_due(results, meter: str) -> list[dict]:
    """Return the alerts that the results of a meter must raise: by values, and minutes of timestamps."""
    totals = itertools.accumulate(READINGS)
    due, first, raised = [], {}, set()
    for record, total in zip([r for r in results if r.key == meter.encode()], totals, strict=True):
        minute = record.timestamp // 60_000
        grown = total - first.setdefault(minute, total)
        if grown > 100 and minute not in raised:
            raised.add(minute)
            due.append({"meter": meter, "grown": grown, "total": total})
    return due


@pytest.mark.parametrize(
    "broker",
    [
        pytest.param("embedded", marks=pytest.mark.embedded),
        pytest.param("kafka", marks=pytest.mark.kafka),
    ],
)
async def test_the_example_raises_the_alerts_that_its_results_are_due(request, broker, tmp_path):
    """With an error and a record that nobody can read among the results; SIGTERM ends it well."""
    properties = request.getfixturevalue(f"{broker}_properties")
    bootstrap, meter = properties["bootstrap.servers"], f"meter-{uuid.uuid4().hex[:8]}"
    topology = Topology()
    async with (
        KafkaLog(properties) as log,
        loaded(EXAMPLES / "models") as repository,
        working(log, repository, topology),
        program(EXAMPLE, tmp_path, bootstrap, "worker", "--without-web") as worker,
    ):
        await log.ensure([TopicSpec("meter-alerts", 4, {}, 1)])
        place = partition_for_key(meter.encode(), 4)
        await Producer(log, properties).send(
            [
                Out(topology.results("total"), place, meter[:-1].encode(), b"\xff", ()),
                Out(topology.requests("total"), place, meter[:-1].encode(), b"", ()),
            ]
        )
        async with program(
            EXAMPLE, tmp_path, bootstrap, "feed", meter, *map(str, READINGS)
        ) as feed:
            assert await feed.ended() == 0, feed.log.read_text()
        async with (
            Tap(log, topology.results("total")) as results,
            Tap(log, "meter-alerts") as alerts,
        ):
            mine = meter.encode()
            await until(lambda: sum(r.key == mine for r in results.records) == len(READINGS))
            due = alerts_due(results.records, meter)
            assert due
            await until(
                lambda: worker.check() or sum(r.key == mine for r in alerts.records) >= len(due),
                timeout_s=START_S,
            )
            assert any(dict(r.headers).get(STATUS) == b"INVALID_ARG" for r in results.records)
            assert await worker.stopped() == 0
            raised = [json.loads(r.value) for r in alerts.records if r.key == mine]
    assert [{name: one[name] for name in ("meter", "grown", "total")} for one in raised] == due
    assert f"{meter} has grown by {due[0]['grown']}" in worker.log.read_text()


@pytest.mark.embedded
async def test_an_agent_asks_models_and_every_call_ends_within_its_bounds(
    embedded_properties, tmp_path
):
    """An answer or a typed error each (B63: late replies are counted), and nothing stays behind when the app stops."""
    bootstrap, prefix = embedded_properties["bootstrap.servers"], f"q{uuid.uuid4().hex[:8]}"
    topology = Topology(prefix=prefix, partitions=1)
    opened = tmp_path / "open"
    for name, text in {
        "echo": (EXAMPLES / "models" / "echo" / "config.pbtxt").read_text(),
        "slow": BLOCKED % opened,
    }.items():
        (tmp_path / "models" / name / "1").mkdir(parents=True)
        (tmp_path / "models" / name / "config.pbtxt").write_text(text)
    script, numbers = TESTS / "faust_questions.py", itertools.count()
    async with (
        KafkaLog(embedded_properties) as log,
        loaded(tmp_path / "models") as repository,
        working(log, repository, topology),
        program(script, tmp_path, bootstrap, "worker", "--without-web", PREFIX=prefix) as worker,
    ):
        names = [f"{prefix}.questions", f"{prefix}.told"]
        await log.ensure([TopicSpec(name, 1, {}, 1) for name in names])
        producer = Producer(log, embedded_properties)
        async with Tap(log, names[1]) as told:

            async def ask(model: str, x: object, timeout_s: float = 30.0) -> dict:
                number = next(numbers)
                question = {"number": number, "model": model, "x": x, "timeout_s": timeout_s}
                await producer.send([Out(names[0], 0, None, json.dumps(question).encode(), ())])
                found: dict[int, dict] = {}

                def is_told() -> bool:
                    worker.check()
                    found.update(
                        {(one := json.loads(r.value))["number"]: one for r in told.records}
                    )
                    return number in found

                await until(is_told, timeout_s=START_S)
                return found[number]

            assert (await ask("echo", [[1, 2]]))["y"] == [[1, 2]]
            assert (await ask("nobody", [[1]]))["reason"] == "unknown_model"
            assert (await ask("echo", ["a"]))["reason"] == "invalid_request"
            # Long enough for the model to have begun, or the worker would refuse it at the same moment.
            assert (await ask("slow", [7], timeout_s=2.0))["reason"] == "deadline_passed"
            opened.touch()
            async with asyncio.timeout(START_S):
                while not (await ask("echo", [[3]]))["late"]:
                    pass
        assert await worker.stopped() == 0, worker.log.read_text()
        async with Tap(log, topology.status) as status:
            await until(
                lambda: any(r.value is None and b"client-" in r.key for r in status.records)
            )
