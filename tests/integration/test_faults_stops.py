"""Gateways that are told to stop, and both roles restarted under calls, on Apache Kafka (FAULTS B67 to B69).

How workers stop is in `test_faults_kills`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from fault_kit import KafkaLogs, Running, Stage, until, write_model
from headrace.streams.log import Mode
from worker_process import Crew, WorkerProcess, gateway_process

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

REFUSED = 503


@dataclass
class Caller:
    """Calls models over HTTP."""

    session: aiohttp.ClientSession

    async def call(self, gateway: WorkerProcess, value: float, model: str = "echo") -> int:
        """Return the status of a call."""
        return (await self.ask(gateway, value, model))[0]

    async def ask(self, gateway: WorkerProcess, value: float, model: str) -> tuple[int, str]:
        """Return status and error of a call; its value must be right where it is 200."""
        tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [value]}
        async with self.session.post(
            f"{gateway.url}/v2/models/{model}/infer", json={"inputs": [tensor]}
        ) as answer:
            body = await answer.json()
            assert answer.status != 200 or body["outputs"][0]["data"] == [value], body
            return answer.status, body.get("error", "")


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    """A caller without a bound on connections."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield Caller(session)


@pytest.fixture
async def blocked(
    kafka_properties, unique, tmp_path
) -> AsyncIterator[tuple[Stage, Running, Path]]:
    """A worker in this process whose executions wait for a gate."""
    gate = tmp_path / "gate"
    repository = write_model(tmp_path / "models", block_until_file=gate, block_limit_ms=120_000)
    async with (
        Stage(KafkaLogs(kafka_properties), unique("stop")) as stage,
        stage.worker(repository) as running,
    ):
        yield stage, running, gate
        gate.touch()


@asynccontextmanager
async def gateway_of(stage: Stage, folder: Path, *options: str) -> AsyncIterator[WorkerProcess]:
    """Run a gateway of a stage."""
    async with gateway_process(
        stage.logs.properties, stage.topology.prefix, folder=folder / "gateway", options=options
    ) as gateway:
        yield gateway


async def test_B68_B69_a_gateway_is_not_ready_then_waits_then_refuses_then_answers_then_ends(
    blocked, caller, tmp_path
):
    """In this order, and with status 0."""
    stage, running, gate = blocked
    async with gateway_of(stage, tmp_path, "--stop-delay-secs", "2") as gateway:
        first = asyncio.create_task(caller.call(gateway, 1))
        await until(lambda: running.in_flight() == 1, "the first call")
        gateway.signal(signal.SIGTERM)
        await gateway.until_readiness(REFUSED)
        # Whoever has not seen it yet is served.
        second = asyncio.create_task(caller.call(gateway, 2))
        await until(lambda: running.in_flight() == 2, "the second call")
        await gateway.until_printed("Stopping: what is in flight is finished first.")
        await until_refused(caller, gateway)
        assert gateway.process.returncode is None
        gate.touch()
        assert await asyncio.gather(first, second) == [200, 200]
        assert await gateway.exited() == 0, gateway.tail()


async def until_refused(caller: Caller, gateway: WorkerProcess) -> None:
    """Call until a call is refused; none is answered otherwise, for the gate is shut."""
    async with asyncio.timeout(30):
        while True:
            try:
                async with asyncio.timeout(0.5):
                    assert await caller.call(gateway, 3) == REFUSED
            except TimeoutError:
                continue  # it was taken before the drain began
            return


async def test_B69_a_call_that_outlasts_a_gateways_drain_is_told_so(blocked, caller, tmp_path):
    """The stop keeps its budget, and its status is 0."""
    stage, running, _ = blocked
    async with gateway_of(stage, tmp_path, "--exit-timeout-secs", "1") as gateway:
        call = asyncio.create_task(caller.call(gateway, 1))
        await until(lambda: running.in_flight() == 1, "the call")
        gateway.signal(signal.SIGTERM)
        assert await call == REFUSED
        assert await gateway.exited() == 0, gateway.tail()


async def test_B69_a_second_signal_ends_a_gateway_at_once(blocked, caller, tmp_path):
    """With its status; the open call is cut."""
    stage, running, _ = blocked
    loop = asyncio.get_running_loop()
    async with gateway_of(stage, tmp_path) as gateway:
        call = asyncio.create_task(caller.call(gateway, 1))
        await until(lambda: running.in_flight() == 1, "the call")
        gateway.signal(signal.SIGTERM)
        await gateway.until_readiness(REFUSED)
        insisted = loop.time()
        gateway.signal(signal.SIGTERM)
        assert await gateway.exited() == 1
        assert loop.time() - insisted < 1, "a second signal waits for nothing"
        with pytest.raises(aiohttp.ClientError):
            await call


# B67: each role is restarted while calls come.

CALLS_PER_S = 50
BASELINE_S = 3.0
PAUSE_S = 5.0
"""What a rebalance may cost (FAULTS B10)."""
DELAY = ("--stop-delay-secs", "3")
"""On a busy machine the balancer looks late."""


@dataclass
class Balancer:
    """Sends calls to gateways that were ready when it looked last, as a load balancer does.

    Attributes:
        gateways: Name → the process; set from outside.
        took: Beginning and duration of each call that was answered, seconds.
        lost: What became of the others.
    """

    caller: Caller
    gateways: dict[str, WorkerProcess] = field(default_factory=dict)
    took: list[tuple[float, float]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    _ready: list[WorkerProcess] = field(default_factory=list)

    async def look(self) -> None:
        """Ask each for its readiness, for ever."""
        while True:
            asked = list(self.gateways.values())
            statuses = await asyncio.gather(*[gateway.readiness() for gateway in asked])
            self._ready = [g for g, s in zip(asked, statuses, strict=True) if s == 200]
            await asyncio.sleep(0.1)

    async def send(self, models: Sequence[str]) -> None:
        """Call models in turn at the rate, until cancelled; then wait for the open calls."""
        loop = asyncio.get_running_loop()
        rng, due = random.Random(1), loop.time()
        async with asyncio.TaskGroup() as calls:
            try:
                for number, model in enumerate(itertools.cycle(models)):
                    if self._ready:
                        calls.create_task(self._call(rng.choice(self._ready), number, model))
                    due = max(due + 1 / CALLS_PER_S, loop.time())
                    await asyncio.sleep(due - loop.time())  # the pace of the calls
            except asyncio.CancelledError:
                pass

    async def _call(self, gateway: WorkerProcess, number: int, model: str) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            status, error = await self.caller.ask(gateway, float(number), model)
        except (aiohttp.ClientError, OSError) as exc:
            self.lost.append(repr(exc))
            return
        if status == 200:
            self.took.append((begun, loop.time() - begun))
        else:
            self.lost.append(f"{status}: {error}")


def p99(durations: Sequence[float]) -> float:
    """Return the time that one call in a hundred takes at least."""
    return sorted(durations)[int(len(durations) * 0.99)]


async def test_B67_a_rolling_restart_of_each_role_loses_no_call(
    kafka_properties, unique, tmp_path, caller
):
    """A model in each mode, two workers and two gateways, one after the other."""
    models = tmp_path / "models"
    for mode in Mode:
        write_model(models, name=mode, batch=8, delay_us=0, delivery=mode)
    prefix, loop = unique("b67"), asyncio.get_running_loop()
    balancer = Balancer(caller)
    async with (
        Crew(models, kafka_properties, prefix, folder=tmp_path / "crew") as crew,
        AsyncExitStack() as stack,
    ):
        await crew.start("w1", "w2")

        async def start(name: str) -> None:
            context = gateway_process(
                kafka_properties, prefix, folder=tmp_path / name, options=DELAY
            )
            balancer.gateways[name] = await stack.enter_async_context(context)

        await asyncio.gather(start("g1"), start("g2"))
        tasks = [asyncio.create_task(balancer.look()), asyncio.create_task(balancer.send([*Mode]))]
        stack.callback(lambda: [task.cancel() for task in tasks])
        await until(lambda: balancer.took, "the first answer")
        begun = loop.time()
        await until(lambda: loop.time() > begun + BASELINE_S, "the baseline")
        rolled = loop.time()
        for name in ("w1", "w2"):
            crew.workers[name].signal(signal.SIGTERM)
            assert await crew.workers[name].exited() == 0, crew.workers[name].tail()
            await crew.end(name)
            await crew.start(name)
        for name in ("g1", "g2"):
            gateway = balancer.gateways[name]
            gateway.signal(signal.SIGTERM)
            assert await gateway.exited() == 0, gateway.tail()
            del balancer.gateways[name]
            await start(name)
        tasks[1].cancel()
        await tasks[1]
    assert not balancer.lost, f"{len(balancer.lost)} lost, the first: {balancer.lost[:5]}"
    baseline = [s for at, s in balancer.took if begun < at < rolled]
    during = [s for at, s in balancer.took if at >= rolled]
    assert len(during) > CALLS_PER_S
    assert p99(during) < 2 * p99(baseline) + PAUSE_S
