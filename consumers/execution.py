"""Runs one batch on one instance and isolates what fails; called from the instance's own thread.

A batch that raises is bisected until the culprit stands alone, so its neighbours still get results (DESIGN §5,
FAULTS B31, B47); one with the wrong number of output rows or elements is run again entry by entry (B36). Padding rows
are not run again. A model with memory of its own is never run twice: there the whole batch fails. The one broad
``except`` of the service is here, around `Instance.execute`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from headrace.backends.backend import Instance
from headrace.schemas.batch import Batch, Responses
from headrace.schemas.errors import (
    BackendError,
    InferError,
    OutOfMemory,
    TooLarge,
    WrongOutput,
)
from headrace.schemas.split import StateOut, check_declared, check_scattered, split_states
from headrace.schemas.tensor import Array


class Part(NamedTuple):
    """A piece of the batch with its outcome: responses, or the one error of all its entries."""

    batch: Batch
    responses: Sequence[Responses]
    error: InferError | None


class Execution(NamedTuple):
    """What became of a batch.

    Attributes:
        parts: Together they cover each entry of the batch once.
        executions: How often the model really ran (SEMANTICS MX-04).
        started_ns: Monotonic time at which the instance began.
        gathered_ns: Inputs of the first run were joined by then.
        ended_ns: The last run had ended by then.
    """

    parts: Sequence[Part]
    executions: int
    started_ns: int
    gathered_ns: int
    ended_ns: int


def execute(
    instance: Instance,
    batch: Batch,
    *,
    repeatable: bool,
    decoupled: bool,
    now_ns: Callable[[], int] = time.monotonic_ns,
    max_state_bytes: int = 0,
) -> Execution:
    """Run a batch; never raises for what the model does.

    Steps of sequences that succeed get their ``state_out``; the others keep None.

    Args:
        instance: A free instance; this call occupies its thread.
        batch: What to run.
        repeatable: The model may see the same request again (`Model.repeatable`).
        decoupled: The model may give 0..n responses; else exactly one for each entry.
        now_ns: Monotonic time.
        max_state_bytes: Largest state of a sequence whose dims vary: it must fit into a record. 0 is any size.
    """
    started = now_ns()
    with suppress(Exception):
        # Whatever it is, the instance raises it again when it asks, where it is isolated.
        batch.inputs()
    gathered = now_ns()
    parts: list[Part] = []
    executions = 0
    waiting = [batch]
    while waiting:
        piece = waiting.pop()
        executions += 1
        try:
            responses = _run(instance, piece, decoupled=decoupled, max_state_bytes=max_state_bytes)
            parts.append(Part(piece, responses, None))
        except InferError as exc:
            if not repeatable or sum(entry is not None for entry in piece.entries) == 1:
                parts.append(Part(piece, (), exc))
            else:
                # Popped from the end, so the order of the entries is kept.
                waiting.extend(reversed(_pieces(piece, exc)))
    return Execution(parts, executions, started, gathered, now_ns())


def _run(
    instance: Instance, batch: Batch, *, decoupled: bool, max_state_bytes: int
) -> list[Responses]:
    emitted: list[Responses] = []
    try:
        instance.execute(batch, emitted.append)
        if not decoupled:
            # Inside, for what a plug-in emits need not even be arrays.
            _check(instance, batch, emitted)
        _keep_states(batch, emitted, max_state_bytes)
    except InferError:
        raise
    except MemoryError as exc:
        raise OutOfMemory(f"instance '{instance.name}' ran out of memory: {exc}") from exc
    except (
        Exception
    ) as exc:  # whatever a plug-in raises must end as an answer, not as a dead worker
        raise BackendError(
            f"instance '{instance.name}' failed: {type(exc).__name__}: {exc}"
        ) from exc
    return emitted


def _check(instance: Instance, batch: Batch, emitted: Sequence[Responses]) -> None:
    """Check that each entry has one response, and each column one row per row of the batch (B36)."""
    answered = [0] * len(batch)
    sources = {
        name: scatter.source_input
        for scatter in batch.signature.batch_outputs
        for name in scatter.target_names
    }
    for responses in emitted:
        members = range(len(batch)) if responses.members is None else responses.members
        rows = 0
        for member in members:
            answered[member] += 1
            entry = batch.entries[member]
            rows += 1 if entry is None else entry.rows
        if batch.signature.max_batch_size == 0:
            continue
        for name, array in responses.outputs.items():
            if (source := sources.get(name)) is not None:
                _check_ragged(batch, members, name, source, array)
                continue
            got = array.shape[0] if array.ndim else None
            if got != rows:
                raise WrongOutput(
                    f"instance '{instance.name}' returned shape {list(array.shape)} for output "
                    f"'{name}', expected {rows} rows"
                )
    requests = [n for n, entry in zip(answered, batch.entries, strict=True) if entry is not None]
    if any(count != 1 for count in requests):
        raise WrongOutput(
            f"instance '{instance.name}' gave {sum(requests)} responses for {len(requests)} requests, "
            "expected one for each"
        )


def _keep_states(batch: Batch, emitted: Sequence[Responses], max_bytes: int) -> None:
    """Give each step that succeeded the states that its sequence has then (SEMANTICS SB-07, SQ-17).

    Nothing is given before everything was checked: whoever fails keeps the state from before the step.
    """
    if not batch.signature.is_sequence:
        for responses in emitted:
            check_declared(batch, responses.states)
        return
    made: list[StateOut | None] = [None] * len(batch)
    for responses in emitted:
        found = split_states(batch, responses)
        if responses.members is None:
            made = list(found)
        else:
            for row, state in zip(responses.members, found, strict=True):
                made[row] = state
        for row in responses.errors:
            made[row] = None
    if max_bytes and any(not state.output.fixed for state in batch.signature.states):
        _check_sizes(batch, made, max_bytes)
    for entry, out in zip(batch.entries, made, strict=True):
        if entry is not None:
            entry.state_out = out


def _check_sizes(batch: Batch, made: Sequence[StateOut | None], max_bytes: int) -> None:
    """Refuse states that have grown beyond what a snapshot can hold; the culprit is found as any other is."""
    for out in made:
        size = 0 if out is None else sum(map(len, out[0]))
        if size > max_bytes:
            raise TooLarge(
                f"the state that model '{batch.signature.model_name}' gave for a sequence has {size} bytes, expected "
                f"at most {max_bytes}, which fit into a record (max.request.size)"
            )


def _check_ragged(
    batch: Batch, members: Sequence[int], name: str, source: str, array: Array
) -> None:
    """Check that a flat output has as many elements as its source's shapes give it."""
    spec = batch.signature.output(name)
    if spec is not None:
        covered = Batch(batch.signature, [batch.entries[member] for member in members])
        check_scattered(covered, spec, source, array)


def _pieces(batch: Batch, exc: InferError) -> list[Batch]:
    rows = [row for row, entry in enumerate(batch.entries) if entry is not None]
    if isinstance(exc, WrongOutput):
        return [_piece(batch, [row]) for row in rows]
    middle = len(rows) // 2
    return [_piece(batch, rows[:middle]), _piece(batch, rows[middle:])]


def _piece(batch: Batch, rows: Sequence[int]) -> Batch:
    states = [batch.states[row] for row in rows] if batch.states else ()
    return Batch(batch.signature, [batch.entries[row] for row in rows], states)
