"""Seeded storms of sequences: how a storm is set up, what clients send in it, and the model that folds.

What must come back of it is the business of `sequence_oracle`, playing it that of `sequence_storm`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from deadly_kit import DeadlyPool
from headrace.backends.backend import Instance
from headrace.repository.repository import Repository
from headrace.schemas.batch import Batch, Entry, Responses
from headrace.schemas.codec import encode_request
from headrace.schemas.errors import BackendError, Reason
from headrace.schemas.infer import InferRequest, SequenceId
from headrace.schemas.record import AVRO, JSON, REPLY_TOPIC, Out
from headrace.schemas.tensor import Tensor
from headrace.streams.log import Mode
from headrace.streams.topology import Topology
from sequence_oracle import FACTORS, INITIAL, Asked
from simulated import SimulatedPool

MODEL = "fold"
FAULTS = (
    "rebalance",
    "evict",
    "freeze",
    "crash",
    "leave",
    "produce",
    "produced",
    "commit",
    "committed",
    "hold",
    "compact",
)
TRANSACTION_FAULTS = (
    *FAULTS,
    "start",
    "position",
    "abort",
    "transact",
    "transacted",
    "expire",
    "steal",
    "forget",
    "trap",
)
"""Those of exactly_once."""
ZOMBIES = ("evict", "freeze")
"""Those that leave two workers who both believe to own a partition."""
ALONE, TOGETHER, NOW_AND_THEN = 1 << 40, 1 << 41, 1 << 42
"""Inputs from which on the model fails: with an error of the row, of the whole batch, or only sometimes."""
DEADLY = 1 << 43
"""From here on the worker dies of it."""


@dataclass(frozen=True)
class Scenario:
    """How a storm is set up; fields that a test does not give are drawn from the seed.

    Attributes:
        strategy: ``direct`` or ``oldest``.
        slots: Of each instance.
        rows: ``max_batch_size`` of the oldest strategy; the direct one has as many as slots.
        instances: Of the model, per worker.
        corrid: The model takes CORRID, and all ids are numbers.
        idle_ms: Longest silence of a sequence.
        delay_us: ``max_queue_delay_microseconds``.
        partitions: Of the topics.
        ids: Different sequence ids on each partition.
        records: How many are sent.
        seconds: Within how long.
        workers: How many start.
        faults: How many are injected, spread over the same time.
        faults_of: Which ones.
        commit_interval_ms: Of the log.
        snapshot_every: Of the worker.
        record_answers: Of the model (P-16).
        flaky: Now and then the model fails on a record that it would not fail on again.
        ends: Probability that a step says END.
        lags_s: How long a broker's answer takes, each as likely as another, seconds.
        deadly: Probability that the worker dies of a record.
        mode: The guarantee. In exactly_once ``commit_interval_ms`` is that of its transactions.
    """

    strategy: str = "direct"
    slots: int = 2
    rows: int = 2
    instances: int = 1
    corrid: bool = False
    idle_ms: int = 1000
    delay_us: int = 0
    partitions: int = 1
    ids: int = 3
    records: int = 40
    seconds: float = 1.5
    workers: int = 2
    faults: int = 4
    faults_of: tuple[str, ...] = FAULTS
    commit_interval_ms: int = 0
    snapshot_every: int = 0
    record_answers: bool = False
    flaky: bool = False
    ends: float = 0.15
    lags_s: tuple[float, ...] = (0.0, 0.0, 0.001, 0.01)
    deadly: float = 0.0
    mode: Mode = Mode.AT_LEAST_ONCE

    @classmethod
    def drawn(cls, rng: random.Random, **given: object) -> Scenario:
        """Draw one; ``given`` fields are as they are given."""
        record_answers = rng.random() < 0.25
        flaky = record_answers and rng.random() < 0.5
        drawn = cls(
            strategy=rng.choice(("direct", "oldest")),
            slots=rng.choice((1, 1, 2, 3, 4)),
            rows=rng.choice((1, 2, 4)),
            instances=rng.choice((1, 1, 2)),
            corrid=rng.random() < 0.3,
            idle_ms=rng.choice((150, 500, 10_000)),
            delay_us=rng.choice((0, 0, 3000)),
            partitions=rng.choice((1, 1, 2)),
            ids=rng.choice((1, 2, 3, 5, 8)),
            records=rng.choice((20, 40, 60)),
            seconds=rng.choice((0.3, 1.0, 2.0)),
            workers=rng.choice((1, 2, 2)),
            faults=rng.choice((0, 2, 4, 6)),
            commit_interval_ms=rng.choice((0, 20, 1000)),
            snapshot_every=rng.choice((0, 0, 1, 3)),
            record_answers=record_answers,
            # What a zombie answers nobody has recorded before: there luck may differ (P-16 is for re-delivery).
            flaky=flaky,
            faults_of=tuple(name for name in FAULTS if not flaky or name not in ZOMBIES),
            ends=rng.choice((0.0, 0.15, 0.4)),
            lags_s=rng.choice(((0.0,), (0.0, 0.0, 0.001, 0.01), (0.0, 0.01, 0.1))),
        )
        if given.get("mode") is Mode.EXACTLY_ONCE:
            # One answer is seen whatever luck decides, and states are written in transactions alone.
            drawn = replace(
                drawn,
                snapshot_every=0,
                record_answers=False,
                flaky=record_answers,
                faults_of=TRANSACTION_FAULTS,
            )
        return replace(drawn, **given)  # type: ignore[arg-type]  # fields of this class

    @property
    def topology(self) -> Topology:
        """Names of the topics."""
        return Topology(prefix="h", partitions=self.partitions, reply_partitions=1)

    def config(self) -> str:
        """Return the model's configuration."""
        controls = "".join(
            f'control_input [{{ name: "{kind}" control [{{ kind: CONTROL_SEQUENCE_{kind} '
            "int32_false_true: [0, 1] }] }]\n"
            for kind in ("START", "END", "READY")
        )
        if self.corrid:
            controls += (
                'control_input [{ name: "CORRID" control [{ kind: CONTROL_SEQUENCE_CORRID '
                "data_type: TYPE_UINT64 }] }]\n"
            )
        rows, batching = self.slots, f"direct {{ max_queue_delay_microseconds: {self.delay_us} }}"
        if self.delay_us and self.strategy == "direct":
            batching = batching.replace("}", "minimum_slot_utilization: 0.7 }")
        if self.strategy == "oldest":
            rows = self.rows
            batching = (
                f"oldest {{ max_candidate_sequences: {self.slots} "
                f"max_queue_delay_microseconds: {self.delay_us} }}"
            )
        return f"""
backend: "identity"
max_batch_size: {rows}
version_policy {{ all {{}} }}
input [{{ name: "INPUT" data_type: TYPE_INT64 dims: [1] }}]
output [{{ name: "OUTPUT" data_type: TYPE_INT64 dims: [1] }}]
instance_group [{{ count: {self.instances} kind: KIND_CPU }}]
sequence_batching {{
  max_sequence_idle_microseconds: {self.idle_ms * 1000}
  {batching}
  {controls}
  state [{{
    input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_INT64 dims: [1]
    initial_state {{ name: "first" data_type: TYPE_INT64 dims: [1] data_file: "first" }}
  }}]
}}
parameters {{ key: "accumulate" value {{ string_value: "true" }} }}
parameters {{ key: "record_answers" value {{ string_value: "{str(self.record_answers).lower()}" }} }}
"""


class Repositories:
    """Loaded repositories, one per configuration, as long as a test module runs."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._loaded: dict[str, Repository] = {}

    def of(self, scenario: Scenario) -> Repository:
        """Return the one of a scenario."""
        text = scenario.config()
        if text not in self._loaded:
            root = self._root / f"{len(self._loaded)}"
            for version in FACTORS:
                (root / MODEL / str(version)).mkdir(parents=True)
            (root / MODEL / "initial_state").mkdir()
            first = np.array([INITIAL], "<i8").tobytes()
            (root / MODEL / "initial_state" / "first").write_bytes(first)
            (root / MODEL / "config.pbtxt").write_text(text)
            repository = Repository([root])
            failures = repository.load()
            assert not failures, failures
            self._loaded[text] = repository
        return self._loaded[text]

    def close(self) -> None:
        """Close all."""
        for repository in self._loaded.values():
            repository.close()


class FoldInstance:
    """Folds (see `sequence_oracle`), and checks that controls and states are those of the batch's requests."""

    concurrency = 1

    def __init__(self, name: str, version: int, rng: random.Random) -> None:
        self.name = name
        self._factor = np.int64(FACTORS[version])
        self._rng = rng

    def execute(self, batch: Batch, emit: Callable[[Responses], None]) -> None:
        """Give one response for all rows."""
        inputs = batch.inputs()
        values, states = inputs["INPUT"][:, 0], inputs["STATE_IN"][:, 0]
        errors: dict[int, BackendError] = {}
        for row, entry in enumerate(batch.entries):
            said = [int(inputs[name][row, 0]) for name in ("READY", "START", "END")]
            if entry is None:
                assert said == [0, 0, 0], "a padding row is not ready (SQ-11)"
                continue
            assert said == [1, entry.sequence_start, entry.sequence_end], "controls (SB-06)"
            if "CORRID" in inputs:
                assert inputs["CORRID"][row, 0] == entry.sequence_id, "the id is another's (B87)"
            if entry.sequence_start:
                assert states[row] == INITIAL, "START begins anew (SQ-18)"
            value = int(values[row])
            if value >= NOW_AND_THEN and self._rng.random() < 0.5:
                errors[row] = BackendError("not now")
            elif TOGETHER <= value < NOW_AND_THEN:
                raise ValueError("never")
            elif ALONE <= value < TOGETHER:
                errors[row] = BackendError("never")
        folded = (states * self._factor + values)[:, np.newaxis]
        emit(Responses({"OUTPUT": folded}, errors=errors, states={"STATE_OUT": folded}))

    def healthy(self) -> bool:
        """Always."""
        return True

    def close(self) -> None:
        """Nothing to free."""


class FoldPool(SimulatedPool):
    """Fold instances in place of those that the repository has loaded."""

    delays_s = (0.0005, 0.002, 0.02, 0.1)

    def __init__(self, instances: Sequence[Instance], name: str) -> None:
        version = int(name.rpartition("-")[2])
        folds = [FoldInstance(f"{name}-{i}", version, self.rng) for i in range(len(instances))]
        super().__init__(folds, name)


class DeadlyFoldPool(DeadlyPool, FoldPool):
    """Fold instances of which workers die."""


def is_deadly(entry: Entry) -> bool:
    """Whether a worker dies of a request."""
    (raw,) = entry.data
    return raw is not None and int(np.frombuffer(raw, "<i8")[0]) >= DEADLY


class Sending(NamedTuple):
    """A record to send, and what it asks for but for its timestamp."""

    out: Out
    asked: Asked


class Traffic:
    """Seeded records of a scenario, steps of few sequences mostly."""

    def __init__(self, scenario: Scenario, rng: random.Random) -> None:
        self._scenario = scenario
        self._rng = rng
        self._values = itertools.count(1)
        self._begun: set[tuple[int, SequenceId]] = set()
        self._names: list[SequenceId] = list(range(7, 7 + scenario.ids))
        if not scenario.corrid:
            # 7 and "7" are two sequences (SQ-14, KX-12).
            self._names = [
                name if i % 2 else str(7 + i // 2) for i, name in enumerate(self._names)
            ]

    def record(self) -> Sending:
        """Make one."""
        rng, scenario = self._rng, self._scenario
        partition = rng.randrange(scenario.partitions)
        name = rng.choice(self._names)
        begun = (partition, name) in self._begun
        start = rng.random() < (0.08 if begun else 0.85)
        end = rng.random() < scenario.ends
        value = next(self._values)
        draw = rng.random()
        flaky = scenario.flaky and rng.random() < 0.3
        deadly = scenario.deadly > 0 and rng.random() < scenario.deadly
        if deadly:
            value += DEADLY
        elif flaky:
            value += NOW_AND_THEN
        elif draw < 0.05:
            value += ALONE
        elif draw < 0.08:
            value += TOGETHER
        fails = ALONE <= value < NOW_AND_THEN
        version = 1 if start and rng.random() < 0.3 else 0
        asked = Asked(name, value, 0, start, end, None, fails, version, deadly)
        if rng.random() < 0.12:
            return self._bad(partition, asked)
        (self._begun.add if (begun or start) and not end else self._begun.discard)(
            (partition, name)
        )
        return Sending(self._out(partition, asked, [[value]]), asked)

    def _out(
        self,
        partition: int,
        asked: Asked,
        values: list[list[int]],
        *,
        key: bytes = b"",
        content_type: str = "",
    ) -> Out:
        rng, topology = self._rng, self._scenario.topology
        request = InferRequest(
            (Tensor.from_numpy("INPUT", np.array(values, np.int64)),),
            id="r",
            model_version=str(asked.version or ""),
            sequence_id=asked.sequence_id,
            sequence_start=asked.start,
            sequence_end=asked.end,
        )
        content_type = content_type or rng.choice((AVRO, AVRO, AVRO, JSON))
        value, headers = encode_request(request, content_type)
        if rng.random() < 0.1 and asked.value < NOW_AND_THEN:
            headers = [*headers, (REPLY_TOPIC, topology.replies.encode())]
        key = key or str(asked.sequence_id).encode()
        return Out(topology.requests(MODEL), partition, key, value, headers)

    def _bad(self, partition: int, asked: Asked) -> Sending:
        """Make a record that is no step of any sequence, whatever came before."""
        asked = asked._replace(refused=Reason.INVALID_REQUEST)
        values = [[asked.value]]
        match self._rng.choice(("id", "rows", "shape", "key", "bytes")):
            case "id":
                asked = asked._replace(sequence_id=0)
                return Sending(self._out(partition, asked, values, key=b"k"), asked)
            case "rows":
                return Sending(self._out(partition, asked, values * 2), asked)
            case "shape":
                return Sending(self._out(partition, asked, [[asked.value, 1]]), asked)
            case "key":
                asked = asked._replace(refused=Reason.INVALID_HEADER)
                return Sending(self._out(partition, asked, values, key=b"another"), asked)
        out = self._out(partition, asked, values, content_type=AVRO)
        out.value = b"\xff\xff"
        return Sending(out, asked._replace(refused=Reason.UNDECODABLE))
