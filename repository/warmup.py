"""Warm-up: the requests that each instance must answer before its version is READY (SEMANTICS MR-41).

Samples are built and validated once per version, as a client's requests would be; `run` then hands them to one
instance after the other. What the model answers is not looked at, only that it answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from headrace.backends.backend import Instance
from headrace.repository.files import inside
from headrace.repository.prepare import Prepared
from headrace.schemas.batch import Batch, Entry, Responses
from headrace.schemas.errors import BackendError, ConfigError, InferError, InvalidRequest
from headrace.schemas.model_config import WarmupInput
from headrace.schemas.record import AVRO, TP, Headers
from headrace.schemas.sequence import Flag, SequenceState
from headrace.schemas.signature import Admitted, Signature
from headrace.schemas.tensor import Buffer, Datatype, Shape, Tensor, join_bytes

FOLDER = "warmup"
RANDOM_SEED = 0
"""Random data are the same at each load, so that a failing sample fails again."""
RANDOM_LIMIT = 100
"""Random integers are 0..99, and so are the numbers in random strings: models index and parse with them."""

_ORIGIN = TP("warm-up", 0)


@dataclass(frozen=True, slots=True)
class _NoRecord:
    """Stands for the client's record: a warm-up request came from no topic."""

    topic: str = _ORIGIN.topic
    partition: int = _ORIGIN.partition
    offset: int = 0
    timestamp: int = 0
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample, ready to run: a batch of equal requests, and how often it is run."""

    name: str
    batch: Batch
    count: int


def build_samples(prepared: Prepared, signature: Signature) -> tuple[Sample, ...]:
    """Make the batches of a version's warm-up samples; those of batch size 0 are skipped.

    Each request to a sequence model is a whole sequence: START, READY and END are true, the correlation id is 1, and
    its state is the initial one. Inputs of a sample that the server makes itself are passed over: Triton's own samples
    have to list the controls.

    Args:
        prepared: The model; data files are in the folder ``warmup`` of its directory.
        signature: Of the version.

    Raises:
        ConfigError: A sample is no valid request for the model, or a data file is not there.
    """
    file, directory = prepared.file, prepared.source.directory
    made = {control.name for control in signature.controls}
    made.update(state.input.name for state in signature.states)
    samples: list[Sample] = []
    for index, sample in enumerate(prepared.config.warmup):
        if sample.batch_size == 0:
            continue
        field = f"model_warmup[{sample.name or index}]"
        tensors = [
            _tensor(name, given, signature, directory, file=file, field=f"{field}.inputs[{name}]")
            for name, given in sample.inputs.items()
            if name not in made
        ]
        try:
            admitted = signature.admit(tensors)
        except InvalidRequest as exc:
            raise ConfigError(
                f"expected a request that the model takes: {exc.detail}", file=file, field=field
            ) from exc
        batch = _batch(signature, admitted, sample.batch_size, prepared.initial_state)
        samples.append(Sample(sample.name, batch, sample.count))
    return tuple(samples)


def _batch(
    signature: Signature,
    admitted: Admitted,
    count: int,
    initial: tuple[tuple[bytes, ...], tuple[Shape, ...]],
) -> Batch:
    """Make a batch of equal requests; the entry is one object, as nobody keeps anything in it."""
    entry = _entry(admitted)
    if not signature.is_sequence:
        return Batch(signature, [entry] * count)
    entry.sequence_id = 1  # which a CORRID of text takes as its digits
    entry.sequence_start = entry.sequence_end = True
    state = SequenceState(0, Flag.LIVE, 0, signature.version, 0, *initial)
    return Batch(signature, [entry] * count, [state] * count)


def run_samples(samples: Sequence[Sample], instance: Instance, *, file: str) -> None:
    """Let one instance answer every sample, one after the other.

    Raises:
        ConfigError: It raised, answered with an error, or did not answer.
    """
    for sample in samples:
        for _ in range(sample.count):
            answers: list[Responses] = []
            try:
                instance.execute(sample.batch, answers.append)
                error = next((e for answer in answers for e in answer.errors.values()), None)
                if error is not None:
                    raise error
                if not any(answer.final for answer in answers):
                    raise BackendError("the instance gave no final response")
            except InferError as exc:
                raise ConfigError(
                    f"failed to run warmup sample '{sample.name}' on instance '{instance.name}': "
                    f"{exc.detail}",
                    file=file,
                    field="model_warmup",
                    value=sample.name,
                ) from exc


def _entry(admitted: Admitted) -> Entry:
    entry = Entry()
    entry.tp = _ORIGIN
    entry.epoch = 0
    entry.record = _NoRecord()
    entry.rows = admitted.rows
    entry.data = admitted.data
    entry.shapes = admitted.shapes
    entry.content_type = AVRO
    return entry


def _tensor(
    name: str,
    given: WarmupInput,
    signature: Signature,
    directory: Path,
    *,
    file: str,
    field: str,
) -> Tensor:
    """Make one input of one item."""
    spec = signature.input(name)
    shape = (1, *given.dims) if spec is not None and spec.batched else given.dims
    if not given.input_data_file:
        try:
            data = _random(given) if given.random_data else _zeros(given)
        except (MemoryError, OverflowError, ValueError) as exc:
            raise ConfigError(
                "expected a shape that fits in memory",
                file=file,
                field=f"{field}.dims",
                value=list(given.dims),
            ) from exc
        return Tensor(name, given.datatype, shape, data)
    at = f"{field}.input_data_file"
    path = inside(directory / FOLDER, given.input_data_file, file=file, field=at)
    try:
        return Tensor(name, given.datatype, shape, path.read_bytes())
    except OSError as exc:
        raise ConfigError(
            f"cannot be read: {exc.strerror}", file=file, field=at, value=given.input_data_file
        ) from exc


def _zeros(given: WarmupInput) -> Buffer:
    """Return zeros; BYTES elements are empty, which is four zero bytes each."""
    return bytes(math.prod(given.dims) * (given.datatype.size or 4))


def _random(given: WarmupInput) -> Buffer:
    rng = np.random.default_rng(RANDOM_SEED)
    count = math.prod(given.dims)
    match given.datatype:
        case Datatype.BYTES:
            return join_bytes(str(n).encode() for n in rng.integers(RANDOM_LIMIT, size=count))
        case Datatype.BOOL:
            return rng.integers(2, size=count).astype(np.bool_).tobytes()
        case Datatype.BF16:
            # The upper half of a float32 is its BF16.
            return (rng.random(count, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
        case Datatype.FP16 | Datatype.FP32 | Datatype.FP64:
            return rng.random(count).astype(given.datatype.numpy).tobytes()
    return rng.integers(RANDOM_LIMIT, size=count).astype(given.datatype.numpy).tobytes()
