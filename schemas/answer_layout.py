"""The usual layouts of Avro answers, recognised by their constant bytes, as `headrace.schemas.layout` does it.

A gateway reads the same models' answers again and again, and they differ in nothing but id and tensor data. A layout is
learned from an answer that the general path has read; of one whose other bytes are equal, the data is sliced out. What
comes of it is what the general path gives (proven by property).
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.schemas import avro
from headrace.schemas.infer import InferResponse, Parameters
from headrace.schemas.layout import (
    MAX_CONSTANT_BYTES,
    MAX_LAYOUTS,
    MAX_PER_LENGTH,
    SHORTEST,
    behind_id,
)
from headrace.schemas.tensor import Datatype, Shape, Tensor


class _Output(NamedTuple):
    """An output: where its data is, counted from behind the id, and the constant bytes behind it."""

    name: str
    datatype: Datatype
    shape: Shape
    start: int
    end: int
    behind: bytes


class _Layout(NamedTuple):
    """An answer but for its id and data; ``head`` are the constant bytes before the first data."""

    head: bytes
    outputs: tuple[_Output, ...]
    model: str
    version: str
    parameters: Parameters


class AnswerLayouts:
    """Reads Avro answers, and learns how they look."""

    def __init__(self) -> None:
        """Begin with none."""
        self._by_length: dict[int, tuple[_Layout, ...]] = {}

    def __len__(self) -> int:
        """Return for how many lengths of an answer some are known."""
        return len(self._by_length)

    def read(self, value: bytes) -> InferResponse:
        """Read an answer.

        Raises:
            InferError: As `headrace.schemas.avro.parse_response`.
        """
        if len(value) < SHORTEST:
            return avro.parse_response(value)
        start = 1 if value[0] == 0 else behind_id(value)
        for layout in self._by_length.get(len(value) - start, ()):
            if value.startswith(layout.head, start):
                found = _sliced(layout, value, start)
                if found is not None:
                    return found
        response = avro.parse_response(value)
        self._learn(value, start, response)
        return response

    def _learn(self, value: bytes, start: int, response: InferResponse) -> None:
        if any(tensor.datatype is Datatype.BYTES for tensor in response.outputs):
            return  # its length varies
        pieces = avro.response_pieces(response)
        # Only what our own writer makes of it: another legal encoding stays on the general path.
        if value[start:] != b"".join(pieces) or sum(map(len, pieces[::2])) > MAX_CONSTANT_BYTES:
            return
        outputs, at = [], len(pieces[0])
        for tensor, data, behind in zip(response.outputs, pieces[1::2], pieces[2::2], strict=True):
            end = at + len(data)
            where = _Output(tensor.name, tensor.datatype, tensor.shape, at, end, bytes(behind))
            outputs.append(where)
            at = end + len(behind)
        names = (response.model_name, response.model_version)
        layout = _Layout(bytes(pieces[0]), tuple(outputs), *names, response.parameters)
        size = len(value) - start
        known = self._by_length.pop(size, ())
        self._by_length[size] = (layout, *known)[:MAX_PER_LENGTH]
        if len(self._by_length) > MAX_LAYOUTS:
            del self._by_length[next(iter(self._by_length))]


def _sliced(layout: _Layout, value: bytes, start: int) -> InferResponse | None:
    """Return the answer of this layout, None where it is another's after all."""
    tensors = []
    for name, datatype, shape, first, last, behind in layout.outputs:
        if not value.startswith(behind, start + last):
            return None
        tensors.append(Tensor(name, datatype, shape, value[start + first : start + last]))
    id_ = ""
    if start > 1:
        try:
            id_ = value[2 if value[1] < 0x80 else 3 : start].decode()
        except UnicodeDecodeError:
            return None
    return InferResponse(tuple(tensors), id_, layout.model, layout.version, layout.parameters)
