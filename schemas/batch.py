"""What travels between batcher and model: entries, batches with columns, column responses.

Nothing here is made per record that could be made per batch: an `Entry` keeps raw buffers, a `Batch` joins
them into one array per input when the model asks, and `Responses` carries whole columns back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from headrace.schemas.errors import InferError
from headrace.schemas.infer import Parameters, RequestedOutput, SequenceId
from headrace.schemas.model_config import BatchInput, BatchInputKind, ControlInput, ControlKind
from headrace.schemas.record import ATTEMPT, TP, Record
from headrace.schemas.sequence import SequenceState
from headrace.schemas.signature import Signature, TensorSpec
from headrace.schemas.tensor import Array, Buffer, Datatype, Shape, to_numpy


class Entry:
    """One accepted request, waiting or executing.

    Most requests carry few headers, so what is rarely set is a class default and costs nothing per record.

    Attributes:
        tp: Input partition.
        epoch: Our epoch of the partition's assignment at admission.
        record: The client's own record: offset, key, headers, original bytes.
        rows: Items along the batch axis; 1 where the model does not batch.
        data: Raw bytes per input, in the signature's order; None: an optional input is absent.
        shapes: Shape per input without the batch axis, in the same order; the usual layout's tuple is shared,
            so identity is a quick test of equality.
        content_type: Of the request; the answer's too unless ``accept`` says otherwise.
        admitted_ns: Monotonic time at which the batcher took it; set by the batcher.
        outputs: Requested outputs, empty is all.
        id: The caller's request id.
        accept: Content type asked for, or ``""``.
        parameters: Custom request parameters.
        priority: Level asked for, 0 is the default.
        timeout_us: Queue timeout asked for, µs.
        deadline_ms: The caller's own deadline, ms since the epoch; 0 is none.
        expires_ns: The same on the batcher's monotonic clock, converted by the worker at admission; 0 is none,
            and a deadline before the clock's own start is negative.
        reply_topic: Where the caller wants the answer, or ``""``.
        reply_partition: Partition there; -1 is the input's partition number, modulo.
        correlation: Headers to send back untouched: correlation ids under their own names, ``x-`` headers, trace; and
            last the attempt, where it is not the first.
        attempt: Which try this is, from 1; raised by `set_attempt`.
        correlation_id: Opaque bytes by which a cancel names the request, or ``b""``.
        idempotency_key: The client's, or ``b""``.
        digest: Of what is asked for, where there is a key (`headrace.schemas.idempotency.request_digest`).
        followers: Repeats that get this request's answer when it has one.
        sequence_id, sequence_start, sequence_end: As in `InferRequest`.
        model_version: As asked for, ``""`` is the highest ready one (MR-07).
        binary_data_output: As in `InferRequest`.
        sequence: The live sequence that the request is a step of (`headrace.consumers.live_sequence`); None for
            models without sequences.
        version: Model version that the step runs on, where it has a sequence.
        error: The answer that this request gets in its turn within its sequence, without running.
        dead_letter: That error's record is kept as a dead letter too.
        state_out: Set by the execution: the state that the model gave, as tensors and shapes; None where it failed.
        after: Set when the step has ended: its sequence as of this request, for the snapshot.
        next: The following queued request of the same sequence.
        streamed: Responses of a decoupled model that have left already, while it ran.
        is_cancelled: Nobody waits any more for what a decoupled model gives, which may look at it while it executes
            (SEMANTICS CX-01); set by the loop.
        passed: Of a record of a mapped topic: its fields that come back in the result, in the mapping's order; None
            of a V2 request.
        awaited: Somebody waits for the reply (a reply topic is named): refused at once when a queue is full.
    """

    tp: TP
    epoch: int
    record: Record
    rows: int
    data: tuple[Buffer | None, ...]
    shapes: tuple[Shape | None, ...]
    content_type: str

    admitted_ns: int = 0
    outputs: tuple[RequestedOutput, ...] = ()
    id: str = ""
    accept: str = ""
    parameters: Parameters = {}  # noqa: RUF012  # shared default, never written to
    priority: int = 0
    timeout_us: int = 0
    deadline_ms: int = 0
    expires_ns: int = 0
    reply_topic: str = ""
    reply_partition: int = -1
    correlation: tuple[tuple[str, bytes], ...] = ()
    attempt: int = 1
    correlation_id: bytes = b""
    idempotency_key: bytes = b""
    digest: bytes = b""
    followers: tuple[Entry, ...] = ()
    sequence_id: SequenceId = 0
    sequence_start: bool = False
    sequence_end: bool = False
    model_version: str = ""
    binary_data_output: bool = False
    sequence: Any = None  # a type of the layer above, whose fields nobody here touches
    version: int = 0
    error: InferError | None = None
    dead_letter: bool = False
    state_out: tuple[tuple[bytes, ...], tuple[Shape, ...]] | None = None
    after: SequenceState | None = None
    next: Entry | None = None
    streamed: int = 0
    is_cancelled: bool = False
    passed: tuple[object, ...] | None = None

    @property
    def awaited(self) -> bool:
        """Whether somebody waits for the reply."""
        return self.reply_topic != ""

    def set_attempt(self, attempt: int) -> None:
        """Say which try this is, from 1; its answer says so too.

        The number joins what comes back untouched, so that the answer to a first try costs no look at it.
        """
        if attempt != self.attempt:
            kept = self.correlation if self.attempt == 1 else self.correlation[:-1]
            self.attempt = attempt
            self.correlation = kept if attempt == 1 else (*kept, (ATTEMPT, b"%d" % attempt))

    def __repr__(self) -> str:
        """Show the coordinates and size."""
        return f"Entry({self.tp.topic}/{self.tp.partition}@{self.record.offset}, rows={self.rows})"


def _share_names() -> None:
    """Give the first entry every attribute that the path of a request sets.

    CPython lets the instances of a class share one table of names, which is as long as the first of them made it. An
    attribute beyond it gives its entry a dict of its own: half a microsecond and a few hundred bytes per record.
    """
    first = Entry()
    for name in (
        *("tp", "epoch", "record", "content_type", "id", "correlation", "rows", "data", "shapes"),
        *("admitted_ns", "sequence_id", "sequence_start", "sequence_end", "sequence", "version"),
        *("next", "state_out", "after", "error", "model_version", "priority", "timeout_us"),
        *(
            "reply_topic",
            "reply_partition",
            "correlation_id",
            "deadline_ms",
            "expires_ns",
            "passed",
        ),
    ):
        setattr(first, name, None)


_share_names()


@dataclass(slots=True)
class Responses:
    """One response for some members of a batch, as columns.

    Attributes:
        outputs: Name → array whose axis 0 runs over the rows of the covered members in order; without a batch
            axis where the model does not batch (one member then).
        members: Indices into the batch's entries that this covers; None is all of them.
        errors: Index into the batch's entries → error instead of outputs. Its rows are still in the columns.
        final: No further responses for the covered members (decoupled models send several).
        parameters: Response parameters, the same for all covered members.
        states: State output name → array like those of ``outputs``, for models with implicit state; a state that
            is missing keeps its value (SEMANTICS SB-10).
    """

    outputs: Mapping[str, Array]
    members: Sequence[int] | None = None
    errors: Mapping[int, InferError] = field(default_factory=dict)
    final: bool = True
    parameters: Parameters = field(default_factory=dict)
    states: Mapping[str, Array] = field(default_factory=dict)


class Batch:
    """Entries that one execution serves, with their inputs as columns.

    Attributes:
        signature: Of the model version that the batch was formed for (reload: a batch keeps its own).
        entries: In row order. A None is a padding row without a request (SQ-11).
        rows: Rows in total.
        states: Of a sequence model: each row's sequence before its step, as the batcher saw it when it formed the
            batch; the initial state at START and for padding rows. Empty for other models.
    """

    __slots__ = ("_inputs", "entries", "rows", "signature", "states")

    def __init__(
        self,
        signature: Signature,
        entries: Sequence[Entry | None],
        states: Sequence[SequenceState] = (),
    ) -> None:
        """Gather entries; nothing is copied until a column is asked for."""
        self.signature = signature
        self.entries = entries
        self.states = states
        # A step of a sequence has one row (SQ-02).
        self.rows = (
            len(entries)
            if states
            else sum([1 if entry is None else entry.rows for entry in entries])
        )
        self._inputs: dict[str, Array] | None = None

    def __len__(self) -> int:
        """Return the number of entries, padding included."""
        return len(self.entries)

    def __repr__(self) -> str:
        """Show the model and the sizes."""
        return f"Batch({self.signature.model_name}, {len(self.entries)} entries, {self.rows} rows)"

    def column(self, index: int) -> Array | None:
        """Join one input over the entries, as the model sees it.

        Args:
            index: Place of the input in the signature.

        Returns:
            Array [rows, *shape] (after ``reshape``, MR-23), without the batch axis where the model does not
            batch; flat [elements] for a ragged input (MR-25); None where the entries leave it out. Read-only
            except for BYTES. The data is copied unless there is one entry.
        """
        spec = self.signature.inputs[index]
        first = self.first
        if first.data[index] is None:
            return None
        entries = self.entries
        # A padding row repeats the first request's data: its shape fits, and nobody reads the result (SQ-11).
        parts = (
            [(first if e is None else e).data[index] for e in entries]
            if spec.batched
            else [
                first.data[index]
            ]  # a shape tensor is the batch's, and equal in all of its requests
        )
        raw = parts[0] if len(parts) == 1 else b"".join(parts)  # type: ignore[arg-type]  # same inputs in all (DB-12)
        shape = first.shapes[index]
        assert raw is not None
        assert shape is not None
        if spec.ragged and spec.batched:
            flat: Shape = (
                sum(
                    (first if e is None else e).rows
                    * math.prod((first if e is None else e).shapes[index] or ())
                    for e in entries
                ),
            )
            return to_numpy(spec.name, spec.datatype, flat, raw)
        whole = spec.model_shape(shape)
        return to_numpy(
            spec.name, spec.datatype, (self.rows, *whole) if spec.batched else whole, raw
        )

    def inputs(self) -> dict[str, Array]:
        """Return every present input by name, with what the server makes itself.

        That is ragged helper tensors (SEMANTICS §1.4), and controls and states of a sequence model (SB-06, SB-07).
        Joined once and kept: whoever asks again gets the same arrays, and must not write to them.
        """
        if self._inputs is not None:
            return self._inputs
        columns: dict[str, Array] = {}
        for spec in self.signature.inputs:
            column = self.column(spec.index)
            if column is not None:
                columns[spec.name] = column
        for helper in self.signature.batch_inputs:
            array = helper_input(helper, self)
            columns.update(dict.fromkeys(helper.target_names, array))
        for control in self.signature.controls:
            columns[control.name] = control_column(control, self)
        for state in self.signature.states:
            columns[state.input.name] = self._state_column(state.input)
        self._inputs = columns
        return columns

    def _state_column(self, spec: TensorSpec) -> Array:
        """Join one state over the rows: [rows, *shape], without the batch axis where the model does not batch.

        All rows have the same state shapes: sequences that differ never share a batch.
        """
        index = spec.index
        parts = [state.tensors[index] for state in self.states]
        raw = parts[0] if len(parts) == 1 else b"".join(parts)
        shape = self.states[0].shapes[index]
        whole = (len(parts), *shape) if spec.batched else shape
        return to_numpy(spec.name, spec.datatype, whole, raw)

    def wants(self, name: str) -> bool:
        """Whether any entry asks for this output."""
        for entry in self.entries:
            if entry is not None and (
                not entry.outputs or any(wanted.name == name for wanted in entry.outputs)
            ):
                return True
        return False

    @property
    def first(self) -> Entry:
        """The first entry that is a request."""
        for entry in self.entries:
            if entry is not None:
                return entry
        raise AssertionError("a batch has at least one request")


def helper_input(helper: BatchInput, batch: Batch) -> Array:
    """Make a helper tensor of a ragged batch (SEMANTICS §1.4).

    Counts are of requests, as in Triton: one that brings several rows has one count, of all of its elements. Only
    the item shapes are of rows. A model that answers per row with a helper of counts therefore fits requests of
    one row only; such an output is refused (FAULTS B36).

    Returns:
        Array over the requests in order: [n] element counts, plain or accumulated ([n + 1] with a leading
        zero); [max count] whose shape alone carries the number; or the item shapes, one per row
        ([rows, rank]: that of a request stands there once for each of its rows), or the same flattened. An
        optional source that is absent has 0 elements, and 0 in each dimension of its item shape.
    """
    spec = batch.signature.input(helper.source_input)
    assert spec is not None  # checked at load
    dtype = helper.datatype.numpy
    present = [entry for entry in batch.entries if entry is not None]
    absent = (0,) * max(1, len(spec.dims))
    found = [entry.shapes[spec.index] for entry in present]
    shapes = [absent if shape is None else shape for shape in found]
    counts = [entry.rows * math.prod(shape) for entry, shape in zip(present, shapes, strict=True)]
    match helper.kind:
        case BatchInputKind.BATCH_ELEMENT_COUNT:
            return np.array(counts, dtype=dtype)
        case BatchInputKind.BATCH_ACCUMULATED_ELEMENT_COUNT:
            return np.cumsum(counts).astype(dtype)
        case BatchInputKind.BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO:
            return np.concatenate(([0], np.cumsum(counts))).astype(dtype)
        case BatchInputKind.BATCH_MAX_ELEMENT_COUNT_AS_SHAPE:
            return np.zeros(max(counts), dtype=dtype)
    rows = [shape for entry, shape in zip(present, shapes, strict=True) for _ in range(entry.rows)]
    items = np.array(rows, dtype=dtype)
    return items.ravel() if helper.kind is BatchInputKind.BATCH_ITEM_SHAPE_FLATTEN else items


def control_column(control: ControlInput, batch: Batch) -> Array:
    """Make a control tensor of a sequence model (SEMANTICS SB-05, SB-06).

    A padding row is not READY, and neither START nor END; its CORRID is 0, or the empty string (SQ-11). A CORRID of
    less than 64 bits is the truncated id, and a signed one its two's complement (SQ-14).

    Returns:
        Array [rows, 1], [1] where the model does not batch. The entries have one row each (SQ-02).
    """
    entries, kind = batch.entries, control.kind
    if kind is ControlKind.CORRID:
        column = _ids(control.datatype, entries)
    else:
        if kind is ControlKind.READY:
            flags = [entry is not None for entry in entries]
        elif kind is ControlKind.START:
            flags = [entry is not None and entry.sequence_start for entry in entries]
        else:
            flags = [entry is not None and entry.sequence_end for entry in entries]
        values = (control.false, control.true)
        column = np.array([values[flag] for flag in flags], dtype=control.datatype.numpy)
    return column.reshape(-1, 1) if batch.signature.max_batch_size > 0 else column


def _ids(datatype: Datatype, entries: Sequence[Entry | None]) -> Array:
    if datatype is Datatype.BYTES:
        texts = np.empty(len(entries), dtype=object)
        texts[:] = [b"" if entry is None else str(entry.sequence_id).encode() for entry in entries]
        return texts
    ids = np.array([0 if entry is None else entry.sequence_id for entry in entries], dtype="<u8")
    return ids.astype(datatype.numpy)
