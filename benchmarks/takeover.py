"""How long a worker takes to go on with 10,000 sequences of another one, beside merely reading what they left.

The state partition holds 20 snapshots of 4 kB of each, written by the worker's own store, and nothing of it is
compacted. A worker joins its group, and the time counts from the assignment of the partition to its first answer's
arrival at an observer: reading and choosing the snapshots, the commit that confirms the assignment, the first
fetch, one step. The answer must continue from the last snapshot. Each round another sequence goes on.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from aiokafka import AIOKafkaConsumer, OffsetAndMetadata, TopicPartition
from headrace.consumers.restore import Restored
from headrace.consumers.state_store import StateStore
from headrace.schemas.model_config import StateConfig
from headrace.schemas.record import TP
from headrace.schemas.sequence import Flag, SequenceState, sequence_key
from headrace.schemas.snapshot import SequenceCodec, StateKind, takeover_nonce
from headrace.schemas.tensor import Datatype
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import Position
from headrace.streams.topology import Topology

from benchmarks import recurrent
from benchmarks.brokers import KAFKA, Broker, broker
from benchmarks.contest import fresh_tag, observed
from benchmarks.figures import Bar, Figure
from benchmarks.formats import FORMATS, Request, steps
from benchmarks.processes import BenchmarkFailed, started, wait_for
from benchmarks.traffic import produce
from benchmarks.workload import POOL, TOLERANCE, Floats, pool

NAME = "takeover"
ON_BROKERS = (KAFKA,)  # the embedded broker does not compact, and keeps all in memory
BAR = Bar("ratio", 3.0, at_most=True)
STATE = 1024
SNAPSHOTS = 20
_STATE = StateConfig("STATE", "STATE_OUT", Datatype.FP32, (STATE,))
_NONCE = takeover_nonce(1, "0123abcd")
_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class _Scene:
    """What an earlier owner left.

    Attributes:
        broker: Where.
        topology: Topics, of one partition each.
        live: Sequences.
        last: Their states [live, 1024].
        folder: For models, logs and stamps.
    """

    broker: Broker
    topology: Topology
    live: int
    last: Floats
    folder: Path


def measure(kind: str, folder: Path, *, quick: bool) -> Iterator[Figure]:
    """Yield the time of a takeover beside that of the bare loop over the same partition."""
    live, rounds = (1000, 2) if quick else (10_000, 3)
    recurrent.write_repository(folder / "models", "oldest", state=STATE)
    with broker(kind, folder) as running:
        scene = _left_behind(running, live, folder)
        pairs = []
        for n in range(rounds):
            loop_s = _loop_s(scene, n)
            pairs.append((loop_s, _takeover_s(scene, n)))
    yield Figure(
        NAME,
        kind,
        statistics.median(takeover_s for _, takeover_s in pairs),
        "s",
        "getmany loop",
        statistics.median(loop_s for loop_s, _ in pairs),
        BAR,
        statistics.median(takeover_s / loop_s for loop_s, takeover_s in pairs),
    )


def _left_behind(running: Broker, live: int, folder: Path) -> _Scene:
    """Make the topics with answered requests, their snapshots and the committed position."""
    topology = Topology(prefix=fresh_tag(), partitions=1)
    asyncio.run(_make_topics(running, topology))
    requests = topology.requests(recurrent.MODEL)
    count = SNAPSHOTS * live
    # Nobody reads them again: they give the snapshots' offsets their records.
    produce(running.bootstrap, requests, (Request(b"", b"answered", []) for _ in range(count)))
    rng = np.random.default_rng(live)
    last = np.empty((live, STATE), np.float32)
    produce(running.bootstrap, topology.state(recurrent.MODEL), _snapshots(topology, rng, last))
    asyncio.run(_commit(running, topology, count))
    return _Scene(running, topology, live, last, folder)


async def _make_topics(running: Broker, topology: Topology) -> None:
    async with KafkaLog({"bootstrap.servers": running.bootstrap}) as log:
        await log.ensure(topology.model_specs(recurrent.MODEL, stateful=True))


async def _commit(running: Broker, topology: Topology, offset: int) -> None:
    tp = TopicPartition(topology.requests(recurrent.MODEL), 0)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=running.bootstrap,
        group_id=topology.group(recurrent.MODEL),
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        consumer.assign([tp])
        await consumer.commit({tp: OffsetAndMetadata(offset, "")})
    finally:
        await consumer.stop()


def _snapshots(topology: Topology, rng: np.random.Generator, last: Floats) -> Iterable[Request]:
    """Write a snapshot of every sequence, again and again; ``last`` gets their final states."""
    tp = TP(topology.requests(recurrent.MODEL), 0)
    live = len(last)
    store = StateStore(
        topology.state(recurrent.MODEL),
        StateKind.SEQUENCE,
        SequenceCodec((_STATE,)),
        max_markers=1,
        wall_ms=lambda: time.time_ns() // 1_000_000,
        on_forgotten=lambda *_: None,
    )
    store.open(tp, Restored(), _NONCE)
    for number in range(SNAPSHOTS):
        last[:] = rng.random(last.shape, dtype=np.float32)
        now_ms = time.time_ns() // 1_000_000
        first = number * live
        states = {
            sequence_key(1 + n): SequenceState(
                first + n, Flag.LIVE, now_ms, 1, number + 1, (state.tobytes(),), (_STATE.dims,)
            )
            for n, state in enumerate(last)
        }
        position = Position(first + live)
        store.stage(tp, states)
        store.begin(tp)
        store.settled(tp, position)
        for outs in store.snapshots(tp, position):
            for out in outs:
                yield Request(out.key or b"", out.value or b"", [])
            store.saved(tp, outs)
        store.committed(tp, position)


def _loop_s(scene: _Scene, n: int) -> float:
    topic = scene.topology.state(recurrent.MODEL)
    log = scene.folder / f"loop-{n}.log"
    argv = [
        *(sys.executable, "-m", "benchmarks.state_loop"),
        *("--bootstrap", scene.broker.bootstrap, "--topic", topic),
    ]
    with started(argv, log) as process:
        if process.wait(_TIMEOUT_S) != 0:
            process.check_alive()
    read = json.loads(log.read_text().splitlines()[-1])
    if read["records"] < SNAPSHOTS * scene.live:
        raise BenchmarkFailed(f"the loop read {read}, expected {SNAPSHOTS * scene.live} records")
    return float(read["seconds"])


def _takeover_s(scene: _Scene, n: int) -> float:
    """Let a worker take over, and sequence n go on; earlier rounds' answers are in the topic before."""
    number = SNAPSHOTS * scene.live + n
    word = steps(scene.live)
    requests, results = (
        scene.topology.requests(recurrent.MODEL),
        scene.topology.results(recurrent.MODEL),
    )
    produce(scene.broker.bootstrap, requests, [FORMATS[word]().request(number)])
    stamp = scene.folder / f"assigned-{n}"
    argv = [
        *(sys.executable, "-m", "benchmarks.takeover_worker"),
        *("--bootstrap", scene.broker.bootstrap),
        *("--model-repository", str(scene.folder / "models")),
        *("--topic-prefix", scene.topology.prefix, "--stamp", str(stamp)),
    ]
    with (
        observed(scene.broker, results, 1, n + 1, word, scene.folder / f"seen-{n}") as eyes,
        started(argv, scene.folder / f"takeover-{n}.log") as process,
    ):
        wait_for(eyes.all.exists, _TIMEOUT_S, "first answer", process, eyes.process)
        seen = eyes.seen()
    (place,) = np.flatnonzero(seen.numbers == number)
    row = pool()[number % POOL]
    right, _ = recurrent.step(row[None], scene.last[n][None])
    if np.abs(seen.answers[place] - right[0]).max() > TOLERANCE:
        raise BenchmarkFailed(f"sequence {n + 1} does not go on from its last snapshot")
    return float(seen.arrivals_s[place]) - float(stamp.read_text())
