"""The ``identity`` backend: a test double that ships, so that faults can be rehearsed on a real service.

It echoes inputs to outputs, or adds them up over the steps of a sequence, and misbehaves on request. The script is the
model's ``parameters``; conditions look at a request's own content, so that a test picks the culprit by what it sends.
No model file is needed.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
from headrace.backends.backend import Device
from headrace.backends.identity_faults import exit_marked, failure, is_short
from headrace.backends.identity_responses import is_many, respond, walks
from headrace.backends.identity_script import MAX_COUNT, Condition, Script, read_script
from headrace.backends.identity_sums import Sums, check_sums, model_dims
from headrace.schemas.batch import Batch, Responses
from headrace.schemas.errors import BackendError, ConfigError, InferError, OutOfMemory
from headrace.schemas.model_config import ModelConfig, TensorConfig
from headrace.schemas.signature import TensorSpec
from headrace.schemas.tensor import Array, Datatype, split_bytes

EXIT_STATUS = 70
"""Exit status of a process that ``exit_if`` ends; EX_SOFTWARE, so that a test tells it from a signal."""

REMEMBERED = 100_000
"""Executions whose batch sizes `IdentityModel.executions` keeps; the oldest go first."""

POLL_S = 0.005
"""Seconds between two looks for ``block_until_file``."""


class IdentityBackend:
    """Echoes INPUTi to OUTPUTi, in the order of the configuration, after a script.

    Attributes:
        name: Backend name.
        default_filename: None needed.
        default_cpu_count: Instances of a CPU group without a count.
        default_max_batch_size: Not used: nothing is completed.
        supports_decoupled: ``responses`` emits 0..n responses.
    """

    name = "identity"
    default_filename = ""
    default_cpu_count = 1
    supports_decoupled = True

    def __init__(self) -> None:
        """Take the defaults."""
        self.default_max_batch_size = 0

    def gpus(self) -> tuple[int, ...]:
        """Return none: it runs on CPU only."""
        return ()

    def complete(self, config: ModelConfig, path: Path) -> ModelConfig:
        """Return the configuration as it is; there is no model file that could say more.

        Raises:
            ConfigError: Inputs or outputs are not listed, or do not pair up.
        """
        check_pairs(config, str(path))
        return config

    def load(self, config: ModelConfig, path: Path) -> IdentityModel:
        """Read the script.

        Raises:
            ConfigError: Inputs and outputs do not pair up, a parameter is unknown or has no meaning, or
                ``fail_load`` says so.
        """
        check_pairs(config, str(path))
        script = read_script(config)
        if script.accumulate:
            check_sums(config, str(path))
        if script.load_delay_ms:
            threading.Event().wait(script.load_delay_ms / 1_000)
        if script.fail_load:
            raise ConfigError(script.fail_load, file=str(path), field="parameters.fail_load")
        return IdentityModel(config, script)


def check_pairs(config: ModelConfig, file: str) -> None:
    """Check that outputs are echoes: one per input and in its order, then one per ``batch_input`` target or none.

    The states of an accumulator may be listed too (SEMANTICS SB-09), behind them.

    Raises:
        ConfigError: Names the pair and what differs.
    """
    if not config.inputs or not config.outputs:
        raise ConfigError(
            "the identity backend has no model file to read tensors from, expected input and output to be "
            "listed, as many of each",
            file=file,
            field="output" if config.inputs else "input",
        )
    helpers = [name for helper in config.batch_inputs for name in helper.target_names]
    counts = {len(config.inputs), len(config.inputs) + len(helpers)}
    outputs = _echoes(config)
    if len(outputs) not in counts:
        raise ConfigError(
            f"has {len(outputs)} entries, expected {' or '.join(map(str, sorted(counts)))}, one for "
            "each input",
            file=file,
            field="output",
        )
    for source, target in zip(config.inputs, outputs, strict=False):
        for word, one, other in (
            ("data_type", str(source.datatype), str(target.datatype)),
            ("dims", str(list(model_dims(source))), str(list(model_dims(target)))),
        ):
            if one != other:
                raise ConfigError(
                    f"echoes input '{source.name}', expected {one}",
                    file=file,
                    field=f"output.{target.name}.{word}",
                    value=other,
                )


def _echoes(config: ModelConfig) -> list[TensorConfig]:
    """Return the outputs that echo inputs: all but an accumulator's states."""
    sequences = config.sequence_batching
    states: set[str] = set()
    if sequences is not None and config.parameters.get("accumulate") == "true":
        states = {state.output_name for state in sequences.states}
    return [output for output in config.outputs if output.name not in states]


class IdentityModel:
    """One loaded version, with the memory of what was executed.

    Attributes:
        repeatable: As the parameter says; never with sums in the instance's own memory.
        sequences: Sequence batcher of an accumulator; None for one that echoes.
        batched: Tensors have a batch axis.
        executions: Rows of each execution that began, over all instances, in order; the last `REMEMBERED`.
    """

    def __init__(self, config: ModelConfig, script: Script) -> None:
        """Pair the tensors."""
        sequences = config.sequence_batching
        self.sequences = sequences if script.accumulate else None
        self.batched = config.max_batch_size > 0
        self.repeatable = script.repeatable and (
            self.sequences is None or bool(self.sequences.states)
        )
        self.executions: deque[int] = deque(maxlen=REMEMBERED)
        self.script = script
        sources = [tensor.name for tensor in config.inputs]
        sources += [name for helper in config.batch_inputs for name in helper.target_names]
        self.pairs = tuple(zip(sources, [t.name for t in _echoes(config)], strict=False))
        self._failures_left = script.fail_times
        self._lock = threading.Lock()

    def began(self, rows: int) -> bool:
        """Note an execution; return whether it is one of the first that must fail."""
        with self._lock:
            self.executions.append(rows)
            fails = self._failures_left > 0
            self._failures_left -= fails
        return fails

    def instance(self, name: str, device: Device) -> IdentityInstance:
        """Make an instance; every device is the CPU."""
        del device
        return IdentityInstance(name, self)

    def close(self) -> None:
        """Nothing to free."""


class IdentityInstance:
    """One instance.

    Attributes:
        name: As the instance group names it.
        concurrency: One batch at a time.
        device: CPU.
    """

    concurrency = 1
    device = "CPU"

    def __init__(self, name: str, model: IdentityModel) -> None:
        """Belong to a model."""
        self.name = name
        self._model = model
        self._is_open = True
        self._sums = (
            None
            if model.sequences is None
            else Sums(model.sequences, model.pairs, batched=model.batched)
        )
        self._pause = threading.Event()  # never set: a wait that frees the interpreter's lock

    def execute(self, batch: Batch, emit: Callable[[Responses], None]) -> None:
        """Play the script on one batch: exit, block, delay, fail, or answer; in this order.

        Raises:
            OutOfMemory: The batch is above ``out_of_memory_above_rows``.
            BackendError: ``fail_times`` or ``fail_if`` says so, ``block_until_file`` never appeared, or the
                instance is closed.
            SystemExit: They say so, and ``fail_as`` is ``death``.
        """
        if not self._is_open:
            raise BackendError(f"instance '{self.name}' is closed")
        script = self._model.script
        fails = self._model.began(batch.rows)
        if script.exit_if and _hits(batch, script.exit_if) and exit_marked(script):
            os._exit(EXIT_STATUS)
        if script.response_at is None:
            self._block(batch, script)
        if script.execute_delay_ms:
            self._pause.wait(script.execute_delay_ms / 1_000)
        if fails:
            raise failure(script, "one of the first fail_times executions")
        limit = script.out_of_memory_above_rows
        if limit is not None and batch.rows > limit and is_short(script):
            raise OutOfMemory(f"scripted memory error: {batch.rows} rows are above {limit}")
        if script.response_at is None:
            self._fail(batch, script)
        self._respond(batch, script, emit)

    def healthy(self) -> bool:
        """Whether it can execute: until it is closed, and for ``healthy_executions`` executions."""
        limit = self._model.script.healthy_executions
        return self._is_open and (limit is None or len(self._model.executions) < limit)

    def close(self) -> None:
        """Execute no more."""
        self._is_open = False

    def _fail(self, batch: Batch, script: Script) -> None:
        if script.fail_if and _hits(batch, script.fail_if):
            raise failure(script, f"{script.fail_if} in the batch")

    def _before(self, batch: Batch, script: Script, turn: int) -> None:
        """Do what the script wants before a response."""
        if script.response_delay_ms:
            self._pause.wait(script.response_delay_ms / 1_000)
        if turn == script.response_at:
            self._block(batch, script)
            self._fail(batch, script)

    def _block(self, batch: Batch, script: Script) -> None:
        if not script.block_until_file or (script.block_if and not _hits(batch, script.block_if)):
            return
        deadline = time.monotonic() + script.block_limit_ms / 1_000
        while not Path(script.block_until_file).exists():
            if time.monotonic() > deadline:
                raise BackendError(
                    f"scripted block: {script.block_until_file} did not appear within "
                    f"{script.block_limit_ms} ms"
                )
            self._pause.wait(POLL_S)

    def _respond(self, batch: Batch, script: Script, emit: Callable[[Responses], None]) -> None:
        errors: dict[int, InferError] = {}
        if script.error_if:
            errors = {
                index: BackendError(f"scripted error: {script.error_if} in the request")
                for index in _hits(batch, script.error_if)
            }
        if self._sums is not None:
            outputs, states = self._sums.step(batch, errors)
            wanted = {
                name: array
                for name, array in outputs.items()
                if batch.signature.output(name) is not None and batch.wants(name)
            }
            emit(
                Responses(
                    {name: _distort(array, script) for name, array in wanted.items()},
                    errors=errors,
                    states=states,
                )
            )
            return
        if not is_many(script):
            emit(Responses(self._echo(batch, script), errors=errors))
            return
        respond(
            batch,
            script,
            _response_counts(batch, script),
            errors,
            echo=lambda piece: self._echo(piece, script),
            walked=self._model.pairs[0][1] if script.responses_each else "",
            before=lambda turn: self._before(batch, script, turn),
            emit=emit,
        )

    def _echo(self, batch: Batch, script: Script) -> dict[str, Array]:
        """Return wanted outputs; an optional input that is absent has no echo."""
        columns = batch.inputs()
        outputs = {
            target: columns[source]
            for source, target in self._model.pairs
            if source in columns and batch.wants(target)
        }
        return {name: _distort(array, script) for name, array in outputs.items()}


def _distort(array: Array, script: Script) -> Array:
    """Return the echo with ``output_rows`` too many or too few rows, or as a scalar (FAULTS B36)."""
    if script.output_scalar:
        return array.reshape(-1)[:1].reshape(())
    rows = (array.shape[0] if array.ndim else 0) + script.output_rows_delta
    if script.output_rows_delta < 0:
        return array[: max(rows, 0)]
    if script.output_rows_delta > 0:
        return np.concatenate([array, np.repeat(array[:1], script.output_rows_delta, axis=0)])
    return array


def _hits(batch: Batch, condition: Condition) -> list[int]:
    """Return the entries of which any row's first element equals the condition's value."""
    spec = _spec(batch, condition.input)
    return [
        index
        for index, entry in enumerate(batch.entries)
        if entry is not None
        and any(_equals(item, condition.value) for item in _first_elements(batch, spec, index))
    ]


def _response_counts(batch: Batch, script: Script) -> list[int]:
    """Return the responses that each entry gets."""
    if script.responses_each:
        each = walks(batch.column(0))
        return [0 if entry is None else each for entry in batch.entries]
    if script.responses_input:
        spec = _spec(batch, script.responses_input)
        firsts = [
            _first_elements(batch, spec, i) if e is not None else ()
            for i, e in enumerate(batch.entries)
        ]
        return [_bounded(items[0]) if items else 0 for items in firsts]
    return [0 if entry is None else script.responses or 0 for entry in batch.entries]


def _bounded(item: object) -> int:
    """Return a number of responses as the request gives it, at most `MAX_COUNT`; nonsense is none."""
    try:
        asked: int = int(item)  # type: ignore[call-overload]  # a number or the digits of a BYTES element
    except (ValueError, OverflowError):
        return 0
    return max(0, min(asked, MAX_COUNT))


def _spec(batch: Batch, name: str) -> TensorSpec:
    spec = batch.signature.input(name) if name else batch.signature.inputs[0]
    assert spec is not None  # the script was checked against the configuration
    return spec


def _first_elements(batch: Batch, spec: TensorSpec, index: int) -> tuple[object, ...]:
    """Return the first element of each row of an entry's input, as Python values; none where it is empty."""
    entry = batch.entries[index]
    assert entry is not None
    raw = entry.data[spec.index]
    if raw is None or not len(raw):
        return ()
    items: list[object]
    if spec.datatype is Datatype.BYTES:
        items = list(split_bytes(spec.name, raw))
    else:
        items = np.frombuffer(raw, dtype=spec.datatype.numpy).tolist()
    step = max(1, len(items) // max(1, entry.rows))
    return tuple(items[::step])


def _equals(item: object, value: str) -> bool:
    if isinstance(item, bytes):
        return item == value.encode()
    try:
        return float(item) == float(value)  # type: ignore[arg-type]  # a number: BYTES are handled above
    except ValueError:
        return False
