"""What a client's caller puts in and gets out: numpy arrays, answers, results. Nothing here does any I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias, TypedDict

import numpy as np
from headrace.schemas.errors import InferError, InvalidRequest
from headrace.schemas.headers import find_header
from headrace.schemas.infer import InferRequest, InferResponse, Parameters, RequestedOutput
from headrace.schemas.record import SOURCE, STATUS, Header, Record
from headrace.schemas.signature import Signature
from headrace.schemas.tensor import Array, Datatype, Tensor
from headrace.streams.streamed import Place, place_of
from numpy.typing import ArrayLike

Inputs: TypeAlias = Mapping[str, ArrayLike]
"""Input name → array or (nested) list, of the shape that the model takes: with its batch axis, if it has one."""


class Options(TypedDict, total=False):
    """What a call may say beside its inputs.

    Attributes:
        version: Version of the model; without it the highest that is ready.
        outputs: Names of the outputs that are wanted; without them all.
        id: Comes back with the answer.
        parameters: Custom parameters of the request.
        priority: Level in the model's queue, from 1; 0 is its default.
        timeout_s: Seconds that this call may take; without it the client's.
        key: Idempotency key: asked again under it, the model answers as before and does not run again.
        headers: Further record headers; those with the prefix ``x-`` and the trace context come back.
    """

    version: str
    outputs: Sequence[str]
    id: str
    parameters: Parameters
    priority: int
    timeout_s: float
    key: str
    headers: Sequence[Header]


class Answer(Mapping[str, Array]):
    """The outputs of one response, by name, as arrays: read-only views, except for BYTES, which are objects.

    BF16 comes as its bits in uint16.

    Attributes:
        response: The whole response: id, model, version, parameters.
        final: No further response to the same request follows.
        is_replayed: It is the answer to an earlier request with the same idempotency key.
    """

    __slots__ = ("_tensors", "final", "is_replayed", "response")

    def __init__(
        self, response: InferResponse, *, final: bool = True, is_replayed: bool = False
    ) -> None:
        """Keep a response; its tensors become arrays when they are asked for."""
        self.response = response
        self.final = final
        self.is_replayed = is_replayed
        self._tensors = {tensor.name: tensor for tensor in response.outputs}

    def __getitem__(self, name: str) -> Array:
        """Return an output of shape [as the model gave it]; `KeyError` where it is not among them."""
        return self._tensors[name].numpy()

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, in the order of the answer."""
        return iter(self._tensors)

    def __len__(self) -> int:
        """Return the number of outputs."""
        return len(self._tensors)

    def __repr__(self) -> str:
        """Show who answered, and the tensors without their data."""
        who = f"{self.response.model_name} version {self.response.model_version}"
        return f"Answer({who}, {list(self._tensors.values())})"


class Result:
    """One record of a topic of results: an answer or an error, and which request it belongs to.

    Attributes:
        record: As it was read: key, value, headers, partition, offset. A mapped model's value is in its own format.
        source: ``topic/partition/offset`` of the request; ``""`` where the record names none.
        place: Which of 0..n responses it is.
        error: What the request ended with, as the record says; None where it is an answer.
    """

    __slots__ = ("_outcome", "error", "place", "record", "source")

    def __init__(self, record: Record, outcome: InferResponse | InferError) -> None:
        """Keep a record and what was read from it: an error, too, where its value cannot be read here."""
        self.record = record
        self.source = (find_header(record.headers, SOURCE) or b"").decode(errors="replace")
        self.place: Place = place_of(record.headers)
        is_error = (find_header(record.headers, STATUS) or b"OK") != b"OK"
        self.error = outcome if is_error and isinstance(outcome, InferError) else None
        self._outcome = outcome

    def answer(self) -> Answer:
        """Return the answer.

        Raises:
            InferError: It is an error, by its kind; or its value is no V2 response, or could not be fetched.
        """
        if isinstance(self._outcome, InferError):
            raise self._outcome
        return Answer(self._outcome, final=self.place.final)

    def __repr__(self) -> str:
        """Show what it is and whose."""
        return f"Result({self.source}, {self._outcome!r})"


def request_of(signature: Signature, inputs: Inputs, options: Options) -> InferRequest:
    """Make a request of arrays, in the datatypes that the model takes.

    Args:
        signature: Of the model; what it does not know is left to its own check.
        inputs: Names and arrays.
        options: Those of the call.

    Raises:
        InvalidRequest: An array cannot be of its input's datatype.
    """
    tensors = []
    for name, value in inputs.items():
        spec = signature.input(name)
        tensors.append(tensor_of(name, value, None if spec is None else spec.datatype))
    return InferRequest(
        tuple(tensors),
        tuple([RequestedOutput(name) for name in options.get("outputs", ())]),
        id=options.get("id", ""),
        parameters=options.get("parameters", {}),
        priority=options.get("priority", 0),
    )


def nothing_like(request: InferRequest) -> tuple[Tensor, ...]:
    """Return inputs of a request's names, datatypes and shapes that say nothing: zeros, and empty strings."""
    return tuple(
        Tensor(t.name, t.datatype, t.shape, bytes(_blank_size(t))) for t in request.inputs
    )


def _blank_size(tensor: Tensor) -> int:
    # An empty BYTES element is its length, 0, in four bytes.
    return tensor.numpy().size * (tensor.datatype.size or 4)


def tensor_of(name: str, value: ArrayLike, datatype: Datatype | None) -> Tensor:
    """Make a tensor of an array or a list.

    Args:
        name: Of the input.
        value: Any shape. Elements may be of another kind only where nothing is lost but digits: integers that fit,
            integers and wider floats for floats.
        datatype: That the model takes; None is the array's own.

    Raises:
        InvalidRequest: It is no array, or cannot be of this datatype.
    """
    is_bytes = datatype is Datatype.BYTES
    try:
        # numpy's own type for bytes drops zeros at their end.
        array = np.asarray(value, dtype=object if is_bytes else None)
    except (ValueError, TypeError, OverflowError) as exc:
        raise InvalidRequest(f"input '{name}' cannot be made an array: {exc}") from exc
    if datatype is None or is_bytes or datatype.numpy == array.dtype:
        return Tensor.from_numpy(name, array, datatype)
    if datatype is Datatype.BF16:
        array = _cast(name, array, datatype, np.dtype("<f4"))
    else:
        array = _cast(name, array, datatype, datatype.numpy)
    return Tensor.from_numpy(name, array, datatype)


def _cast(name: str, array: Array, datatype: Datatype, wanted: np.dtype[np.generic]) -> Array:
    both_whole = array.dtype.kind in "iu" and wanted.kind in "iu"
    if not (both_whole or not array.size or np.can_cast(array.dtype, wanted, "same_kind")):
        raise InvalidRequest(f"input '{name}' takes {datatype} elements, got {array.dtype}")
    try:
        with np.errstate(over="raise"):
            made = array.astype(wanted)
    except FloatingPointError as exc:
        raise InvalidRequest(
            f"input '{name}' takes {datatype} elements, got {array.dtype} beyond its range"
        ) from exc
    if both_whole and not np.array_equal(made, array):
        raise InvalidRequest(
            f"input '{name}' takes {datatype} elements, got {array.min()} to {array.max()}"
        )
    return made
