"""Builders for tests of backends: configurations, batches from arrays, and one execution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from headrace.backends.backend import Backend, Device, Instance
from headrace.backends.identity import IdentityBackend, IdentityModel
from headrace.schemas.batch import Batch, Entry, Responses
from headrace.schemas.config_text import config_from_message, parse_config
from headrace.schemas.config_view import resolve
from headrace.schemas.infer import RequestedOutput
from headrace.schemas.model_config import InstanceKind, ModelConfig
from headrace.schemas.record import AVRO, TP
from headrace.schemas.signature import Signature
from headrace.schemas.tensor import Datatype, Tensor
from service_parts import PlainRecord

CPU = Device(InstanceKind.KIND_CPU)

Arrays = Mapping[str, np.ndarray | tuple[Datatype, np.ndarray]]


def parsed(text: str = "", name: str = "model") -> ModelConfig:
    """Parse a configuration as the repository does, before completion."""
    message = parse_config(text, "config.pbtxt")
    return config_from_message(message, file="config.pbtxt", directory_name=name)


def completed(backend: Backend, path: Path, text: str = "", name: str = "model") -> ModelConfig:
    """Parse, complete and resolve a configuration."""
    config = backend.complete(parsed(text, name), path)
    return resolve(
        config,
        backend=backend.name,
        default_cpu_count=backend.default_cpu_count,
        gpus=backend.gpus(),
    )


def entry_of(
    signature: Signature, arrays: Arrays, outputs: Sequence[str] = (), offset: int = 0
) -> Entry:
    """Make an entry of arrays with the batch axis, through the one validation."""
    tensors = [
        Tensor.from_numpy(name, given[1], given[0])
        if isinstance(given, tuple)
        else Tensor.from_numpy(name, given)
        for name, given in arrays.items()
    ]
    wanted = tuple(RequestedOutput(name) for name in outputs)
    admitted = signature.admit(tensors, wanted)
    entry = Entry()
    entry.tp = TP("requests", 0)
    entry.epoch = 1
    entry.record = PlainRecord(offset=offset)
    entry.rows = admitted.rows
    entry.data = admitted.data
    entry.shapes = admitted.shapes
    entry.content_type = AVRO
    entry.outputs = wanted
    return entry


def batch_of(
    config: ModelConfig, *requests: Arrays, outputs: Sequence[Sequence[str]] | None = None
) -> Batch:
    """Make a batch of requests; ``outputs`` names what each of them asks for."""
    signature = Signature(config, 1)
    return Batch(
        signature,
        [
            entry_of(signature, arrays, outputs[i] if outputs else (), i)
            for i, arrays in enumerate(requests)
        ],
    )


def run(instance: Instance, batch: Batch) -> list[Responses]:
    """Execute a batch; return what was emitted."""
    emitted: list[Responses] = []
    instance.execute(batch, emitted.append)
    return emitted


def run_one(instance: Instance, batch: Batch) -> Mapping[str, np.ndarray]:
    """Execute a batch; return the outputs of its one response, which has no errors."""
    (responses,) = run(instance, batch)
    assert not responses.errors
    assert responses.members is None
    assert responses.final
    return responses.outputs


def texts(*items: bytes) -> np.ndarray:
    """Return BYTES elements as an array of objects."""
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


class Listening(IdentityBackend):
    """The identity backend, with a memory of the inputs that each instance executed."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[str, Mapping[str, np.ndarray]]] = []

    def load(self, config: ModelConfig, path: Path) -> IdentityModel:
        model = super().load(config, path)
        make, heard = model.instance, self.heard

        def instance(name, device):
            made = make(name, device)
            execute = made.execute

            def listen(batch, emit):
                heard.append((name, batch.inputs()))
                execute(batch, emit)

            made.execute = listen
            return made

        model.instance = instance
        return model
