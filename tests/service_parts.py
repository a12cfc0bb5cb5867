"""Small builders for tests of the worker: configurations, signatures, entries, a scripted instance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from headrace.schemas.batch import Batch, Entry, Responses
from headrace.schemas.config_text import config_from_message, parse_config
from headrace.schemas.model_config import ModelConfig
from headrace.schemas.record import AVRO, TP, Headers
from headrace.schemas.signature import Signature
from tritonclient.grpc import model_config_pb2

ECHO = """
backend: "identity"
max_batch_size: 8
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [2] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [2] }]
"""


def make_config(text: str = ECHO, name: str = "echo") -> ModelConfig:
    """Parse a configuration as the repository does."""
    message: model_config_pb2.ModelConfig = parse_config(text, "config.pbtxt")
    return config_from_message(message, file="config.pbtxt", directory_name=name)


def make_signature(text: str = ECHO, name: str = "echo", version: int = 1) -> Signature:
    """Compile a configuration."""
    return Signature(make_config(text, name), version)


@dataclass(frozen=True, slots=True)
class PlainRecord:
    """A record as a client hands it out."""

    topic: str = "t"
    partition: int = 0
    offset: int = 0
    timestamp: int = 0
    key: bytes | None = None
    value: bytes | None = b""
    headers: Headers = ()


def make_entry(
    values: Sequence[float] = (0.0, 0.0), *, rows: int = 1, offset: int = 0, epoch: int = 1
) -> Entry:
    """Make an entry of the echo model: ``rows`` items of two floats."""
    entry = Entry()
    entry.tp = TP("t", 0)
    entry.epoch = epoch
    entry.record = PlainRecord(offset=offset)
    entry.rows = rows
    entry.data = (np.array(list(values) * rows, dtype="<f4").tobytes(),)
    entry.shapes = ((2,),)
    entry.content_type = AVRO
    return entry


@dataclass
class ScriptedInstance:
    """A fake runner: echoes, after a script has had its say about the batch."""

    script: Callable[[Batch], Mapping[str, np.ndarray] | None] = lambda _: None
    name: str = "scripted_0"
    concurrency: int = 1
    device: str = "CPU"
    batches: list[list[int]] = field(default_factory=list)

    def execute(self, batch: Batch, emit: Callable[[Responses], None]) -> None:
        """Note the offsets, ask the script, echo."""
        self.batches.append([e.record.offset for e in batch.entries if e is not None])
        outputs = self.script(batch)
        if outputs is None:
            outputs = {"OUTPUT0": batch.inputs()["INPUT0"]}
        emit(Responses(outputs))

    def healthy(self) -> bool:
        """Always."""
        return True

    def close(self) -> None:
        """Nothing to free."""
