"""Runs one batch on one instance and isolates what fails; called from the instance's own thread.

A batch that raises is bisected until the culprit stands alone, so its neighbours still get results (DESIGN §5,
FAULTS B31, B47); one with the wrong number of output rows or elements is run again entry by entry (B36). Where memory
ran out, no further piece is larger than what may fit (B80). A batch whose backend is unavailable is not taken apart:
no request is to blame. Padding rows are not run again. A model with memory of its own is never run twice: there the
whole batch fails. The one broad ``except`` of the service is here, around `Instance.execute`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeAlias

from headrace.backends.backend import Instance
from headrace.backends.out_of_memory import is_out_of_memory
from headrace.consumers.ceiling import Ceiling
from headrace.consumers.pieces import Waiting, halves, within
from headrace.consumers.retry import piece_of
from headrace.schemas.batch import Batch, Responses
from headrace.schemas.errors import (
    BackendError,
    Code,
    InferError,
    OutOfMemory,
    TooLarge,
    WrongOutput,
)
from headrace.schemas.split import StateOut, check_declared, check_scattered, split_states
from headrace.schemas.tensor import Array

Hear: TypeAlias = Callable[[Batch, Responses], int]
Heard: TypeAlias = Callable[[Batch, Responses], None]
"""Told of what was emitted, and of the piece of the batch that was run for it."""


class Part(NamedTuple):
    """A piece of the batch with its outcome: responses, or the one error of all its entries.

    ``times_ns`` has, of a decoupled model, the monotonic time at which each of the responses was given.
    """

    batch: Batch
    responses: Sequence[Responses]
    error: InferError | None
    times_ns: Sequence[int] = ()


class Execution(NamedTuple):
    """What became of a batch.

    Attributes:
        parts: Together they cover each entry of the batch once.
        executions: How often the model really ran (SEMANTICS MX-04).
        started_ns: Monotonic time at which the instance began.
        gathered_ns: Inputs of the first run were joined by then.
        ended_ns: The last run had ended by then.
        failed: Some part ended with an error.
        ceiling: Rows that fit where more ran out of memory; 0 where memory was not short for the number of rows.
        starved: Nothing succeeded, and a single request ran out of memory.
        sizes: Rows of each run, padding included, in order; empty where it ran once, as it is.
    """

    parts: Sequence[Part]
    executions: int
    started_ns: int
    gathered_ns: int
    ended_ns: int
    failed: bool = False
    ceiling: int = 0
    starved: bool = False
    sizes: Sequence[int] = ()


class Ticket:
    """The right of one execution to be heard, shared by the instance's thread and the loop.

    Attributes:
        began_ns: When the run that is under way began; 0 while none is.
        lock: Held while what an execution leaves behind is written.
        is_void: The execution was given up; whatever it still brings is not heard.
    """

    __slots__ = ("began_ns", "is_void", "lock")

    def __init__(self) -> None:
        """Start before the first run."""
        self.began_ns = 0
        self.is_void = False
        self.lock = threading.Lock()

    def void(self) -> None:
        """Give the execution up; from here on it writes nothing."""
        with self.lock:
            self.is_void = True


class _Memory:
    """What an execution learns about the rows that fit.

    Attributes:
        limit: Rows that the next run may have; 0 is any.
    """

    def __init__(self, limit: int) -> None:
        self.limit = self._given = limit
        self._short: list[Batch] = []

    @property
    def learned(self) -> int:
        """Rows that may fit where more did not; 0 where nothing was learned."""
        return min((max(1, piece.rows // 2) for piece in self._short), default=0)

    def ran_out(self, piece: Batch) -> None:
        """Take note of a run without enough memory.

        One request alone that asks for too much says nothing about rows, nor do the runs that held it.
        """
        if len(piece) == 1:
            self._short = [short for short in self._short if piece.first not in short.entries]
        else:
            self._short.append(piece)
        self.limit = min(filter(None, (self._given, self.learned)), default=0)


def execute(
    instance: Instance,
    batch: Batch,
    *,
    repeatable: bool,
    decoupled: bool,
    now_ns: Callable[[], int] = time.monotonic_ns,
    max_state_bytes: int = 0,
    ceiling: Ceiling | None = None,
    ticket: Ticket | None = None,
    heard: Heard | None = None,
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
        ceiling: Rows that a run may have now; a batch with more runs in pieces, unless the model has memory of its own.
        ticket: Where the beginning of each run is noted; once it is void, nothing further runs.
        heard: Told at once of what a decoupled model emits, in the instance's thread.
    """
    started = now_ns()
    with suppress(Exception):
        # Whatever it is, the instance raises it again when it asks, where it is isolated.
        batch.inputs()
    gathered = now_ns()
    hear = partial(_hear, heard, now_ns) if decoupled else None
    parts: list[Part] = []
    sizes: list[int] = []
    succeeded = 0
    starved = False
    memory = _Memory(ceiling.rows if ceiling is not None and repeatable else 0)
    waiting = Waiting(batch)
    while waiting:
        piece = waiting.pop()
        if 0 < memory.limit < piece.rows and len(piece) > 1:
            waiting.put(within(piece, memory.limit))
            continue
        if ticket is not None:
            if ticket.is_void:
                break
            ticket.began_ns = now_ns()
        sizes.append(piece.rows)
        try:
            parts.append(_run(instance, piece, max_state_bytes, ticket, hear))
            succeeded += 1
            waiting.succeeded(piece)
        except InferError as exc:
            if isinstance(exc, OutOfMemory):
                memory.ran_out(piece)
                starved = starved or len(piece) == 1
            pieces = _pieces(piece, exc) if repeatable else ()
            if not pieces:
                parts.append(Part(piece, (), exc))
            elif isinstance(exc, (OutOfMemory, WrongOutput)):
                waiting.put(pieces)
            else:
                waiting.halve(pieces)
    if ticket is not None:
        ticket.began_ns = 0
    return Execution(
        parts,
        len(sizes),
        started,
        gathered,
        now_ns(),
        failed=succeeded < len(parts),
        ceiling=memory.learned,
        starved=starved and not succeeded,
        sizes=sizes,
    )


def _hear(
    heard: Heard | None, now_ns: Callable[[], int], batch: Batch, responses: Responses
) -> int:
    at_ns = now_ns()
    if heard is not None:
        heard(batch, responses)  # which may have to wait
    return at_ns


def _run(
    instance: Instance,
    batch: Batch,
    max_state_bytes: int,
    ticket: Ticket | None,
    hear: Hear | None,
) -> Part:
    """Run a piece; ``hear`` is told of each response of a decoupled model, None where each entry has one response."""
    emitted: list[Responses] = []
    times: list[int] = []

    def emit(responses: Responses) -> None:
        assert hear is not None
        emitted.append(responses)
        times.append(hear(batch, responses))

    try:
        instance.execute(batch, emitted.append if hear is None else emit)
        if hear is None:
            # Inside, for what a plug-in emits need not even be arrays.
            _check(instance, batch, emitted)
        _keep_states(batch, emitted, max_state_bytes, ticket)
    except InferError:
        raise
    except (
        Exception
    ) as exc:  # whatever a plug-in raises must end as an answer, not as a dead worker
        if is_out_of_memory(exc):
            raise OutOfMemory(f"instance '{instance.name}' ran out of memory: {exc}") from exc
        raise BackendError(
            f"instance '{instance.name}' failed: {type(exc).__name__}: {exc}"
        ) from exc
    return Part(batch, emitted, None, times)


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


def _keep_states(
    batch: Batch, emitted: Sequence[Responses], max_bytes: int, ticket: Ticket | None
) -> None:
    """Give each step that succeeded the states that its sequence has then (SEMANTICS SB-07, SQ-17).

    Nothing is given before everything was checked: whoever fails keeps the state from before the step. And nothing
    by an execution that was given up: its steps may be running again.
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
    if ticket is None:
        _give_states(batch, made)
        return
    with ticket.lock:
        if not ticket.is_void:
            _give_states(batch, made)


def _give_states(batch: Batch, made: Sequence[StateOut | None]) -> None:
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
    """Return the pieces in which a failed batch is run again; none where it cannot be taken apart any further."""
    rows = [row for row, entry in enumerate(batch.entries) if entry is not None]
    if isinstance(exc, OutOfMemory) and len(batch) > 1:
        return within(batch, max(1, batch.rows // 2))
    if len(rows) == 1 or (exc.retriable and exc.code is Code.UNAVAILABLE):
        return []
    if isinstance(exc, WrongOutput):
        return [piece_of(batch, [row]) for row in rows]
    return halves(batch)
