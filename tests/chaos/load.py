"""A steady load: records of a stateless model and of sequences, and calls of a gateway, that go on whatever breaks.

The producer is a customer's: aiokafka's own, idempotent, with the key's partition by its own partitioner. What a record
asks for is found again by the id that it carries, so that what was accepted is read from the log and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Self

import aiohttp
import numpy as np
from aiokafka import AIOKafkaProducer
from headrace.schemas.codec import encode_request
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import ID, Out
from headrace.schemas.tensor import Tensor
from headrace.streams.topology import Topology
from sequence_kit import Step, Traffic, step_record

TICK_S = 0.05
ROWS = 3
"""Stateless requests of a tick: 60 per second."""
STEPS = 8
"""Steps of sequences of a tick: 160 per second."""
IDS = 40
"""Sequences that are live at a time."""
LENGTH = 20
"""Steps of a sequence at most."""
CALLS_EVERY = 2
"""Ticks from one call of the gateway to the next: 10 per second."""
CALL_TIMEOUT_S = 8.0
"""How long a caller lets the gateway wait for the answer."""
CALL_PATIENCE_S = 3 * CALL_TIMEOUT_S
"""After so long a call has hung: the gateway owed its caller a 504 long ago."""
STOP_S = 30.0
"""How long the producer may take to end."""
MAX_CALLS = 256
"""Calls that are open at a time; more are not begun."""
CHEAP_TO_WAIT_BYTES = 1 << 20
"""A batch of the producer: what gathers while a broker is away must fit, or the load would stand still."""


class Outcome:
    """What a call of the gateway came to."""

    ANSWERED = "answered"
    TIMED_OUT = "504"
    REFUSED = "503"
    CUT = "cut"
    """The connection broke: its gateway is dead."""
    WRONG = "wrong"
    HUNG = "hung"


class Load:
    """What is sent to a scene; an async context manager, which connects.

    Attributes:
        steps: Id → the step that was sent under it.
        rows: Id → the value of the stateless request that was sent under it.
        calls: Outcome → calls of the gateway.
        gateway_url: Where calls go; ``""`` makes none.
        failed: Records that the producer gave up; they may lie in the log or not.
    """

    def __init__(
        self, bootstrap: str, topology: Topology, *, rows: str, sequences: str, seed: int = 1
    ) -> None:
        """Begin with nothing sent.

        Args:
            bootstrap: Of the brokers.
            topology: Names of topics.
            rows: The stateless model.
            sequences: The model of sequences.
            seed: Decides what is sent.
        """
        self.topology = topology
        self.steps: dict[str, Step] = {}
        self.rows: dict[str, float] = {}
        self.calls: Counter[str] = Counter()
        self.failed = 0
        self.gateway_url = ""
        self._rows_model = rows
        self._rows_topic = topology.requests(rows)
        self._steps_topic = topology.requests(sequences)
        self._traffic = Traffic(self, seed, ids=IDS, length=LENGTH)  # type: ignore[arg-type]  # it takes what sends
        self._numbers = itertools.count(1)
        self._producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=True,
            linger_ms=5,
            max_batch_size=CHEAP_TO_WAIT_BYTES,
            request_timeout_ms=180_000,  # nothing is given up while no broker is there for a minute
            metadata_max_age_ms=2_000,
        )
        self._session: aiohttp.ClientSession | None = None
        self._open_calls: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Connect."""
        await self._producer.start()
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=CALL_PATIENCE_S),
            connector=aiohttp.TCPConnector(limit=MAX_CALLS),
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close; what is not acknowledged by now never will be."""
        for call in self._open_calls:
            call.cancel()
        await asyncio.gather(*self._open_calls, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
        # An idempotent producer never gives up what it has, and there may be no broker any more.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._producer.stop(), STOP_S)

    async def run(self, stop: asyncio.Event, *, calls: bool) -> None:
        """Send until told to stop, then end every sequence and wait for all acknowledgements and calls."""
        clock = asyncio.get_running_loop().time
        due = clock()
        for tick in itertools.count():
            if stop.is_set():
                break
            for _ in range(ROWS):
                await self._send_row()
            await self._traffic.send(STEPS)
            if calls and tick % CALLS_EVERY == 0:
                self.begin_calls(1)
            due = max(due + TICK_S, clock())
            await asyncio.sleep(due - clock())  # the pace of the load
        await self._traffic.end()
        await self._producer.flush()
        await self.until_no_call()

    def begin_calls(self, count: int) -> None:
        """Call the gateway so often at the same time, if there is one."""
        for _ in range(min(count, MAX_CALLS - len(self._open_calls)) if self.gateway_url else 0):
            call = asyncio.create_task(self._call(float(next(self._numbers))))
            self._open_calls.add(call)
            call.add_done_callback(self._open_calls.discard)

    async def until_no_call(self) -> None:
        """Wait until no call is open."""
        while self._open_calls:
            await asyncio.wait(self._open_calls)

    # What `sequence_kit.Traffic` asks of its stage.

    def record(self, step: Step, partition: int = 0) -> Out:
        """Make a step's record; its partition is the producer's business."""
        return step_record(self._steps_topic, step, partition)

    async def send_steps(self, steps: Sequence[Step], outs: Sequence[Out]) -> None:
        """Send steps, each under an id of its own."""
        for step, out in zip(steps, outs, strict=True):
            name = f"s{next(self._numbers)}"
            self.steps[name] = step
            await self._send(name, out)

    async def _send_row(self) -> None:
        number = next(self._numbers)
        name = f"r{number}"
        tensor = Tensor.from_numpy("INPUT0", np.full((1, 1), number, np.float32))
        value, headers = encode_request(InferRequest((tensor,)))
        self.rows[name] = float(number)
        await self._send(name, Out(self._rows_topic, 0, None, value, headers))

    async def _send(self, name: str, out: Out) -> None:
        headers = [*out.headers, (ID, name.encode())]
        future = await self._producer.send(out.topic, out.value, out.key, headers=headers)
        future.add_done_callback(self._sent)

    def _sent(self, done: asyncio.Future[object]) -> None:
        if done.cancelled() or done.exception() is not None:
            self.failed += 1

    async def _call(self, value: float) -> None:
        assert self._session is not None
        tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [value]}
        try:
            async with self._session.post(
                f"{self.gateway_url}/v2/models/{self._rows_model}/infer",
                json={"inputs": [tensor]},
                headers={"X-Headrace-Timeout-Ms": str(int(CALL_TIMEOUT_S * 1000))},
            ) as answer:
                body = await answer.json()
        except TimeoutError:
            self.calls[Outcome.HUNG] += 1
        except (aiohttp.ClientError, ConnectionError):
            self.calls[Outcome.CUT] += 1
        else:
            self.calls[_outcome(answer.status, body, value)] += 1


def _outcome(status: int, body: Mapping[str, Sequence[Mapping[str, object]]], value: float) -> str:
    if status == 200:
        right = body["outputs"][0]["data"] == [value]
        return Outcome.ANSWERED if right else Outcome.WRONG
    return {504: Outcome.TIMED_OUT, 503: Outcome.REFUSED}.get(status, f"{status}: {body}"[:200])
