"""The usual layouts of a model's Avro requests, recognised by their constant bytes.

A model's records nearly always differ in nothing but id and tensor data. A `Layout` is learned from a record that
passed the general path; a record whose other bytes are equal has the same meaning, so its data is sliced out and
nothing is decoded or checked again. What this accepts, the general path accepts with the same result (proven by
property). It never raises and never accepts BYTES inputs, whose content needs a check of its own.
"""

from __future__ import annotations

from operator import attrgetter

from headrace.schemas.avro import request_pieces
from headrace.schemas.batch import Entry
from headrace.schemas.infer import InferRequest
from headrace.schemas.signature import Signature
from headrace.schemas.tensor import Buffer, Datatype, Shape

MAX_LAYOUTS = 64
"""Layouts kept per model version: combinations of shapes and requested outputs that occur."""

MAX_PER_LENGTH = 4
"""Layouts of one length: each costs a comparison."""

MAX_CONSTANT_BYTES = 8192
"""Constant bytes of a layout: beyond, something in there is no constant."""

SHORTEST = 5
"""Bytes of the shortest request: no id, no parameters, no inputs, no outputs, no route."""

VIEW_BYTES = 8192
"""Inputs of at least this many bytes are sliced as views: a copy would cost more than the view object."""


class Layout:
    """Everything of a request but its id and data.

    Attributes:
        head: Constant bytes from behind the id to the first data.
        tail: Constant bytes behind the last data.
        gaps: Constant bytes between data, with their place counted from behind the id.
        cuts: Start and end of each input's data, counted from behind the id, in the signature's order; None:
            the input is absent.
        single: The only cut, when there is one input; else None.
        views: Slice without a copy.
        rows, shapes: As in `Entry`.
        fields: What else the value says, attribute and value; none of it has a header.
    """

    __slots__ = (
        "cuts",
        "fields",
        "gaps",
        "head",
        "rows",
        "shapes",
        "single",
        "tail",
        "views",
    )

    head: bytes
    tail: bytes
    gaps: tuple[tuple[int, bytes], ...]
    cuts: tuple[tuple[int, int] | None, ...]
    single: tuple[int, int] | None
    views: bool
    rows: int
    shapes: tuple[Shape | None, ...]
    fields: tuple[tuple[str, object], ...]


class Layouts:
    """The learned layouts of one model version."""

    def __init__(self, signature: Signature) -> None:
        """Begin with none."""
        self._signature = signature
        self._learns = all(spec.datatype is not Datatype.BYTES for spec in signature.inputs)
        self._by_length: dict[int, tuple[Layout, ...]] = {}
        self._order: list[int] = []

    def __len__(self) -> int:
        """Return the number of layouts."""
        return len(self._order)

    def fill(self, entry: Entry, value: bytes) -> bool:
        """Fill an entry from a value if its layout is known; its headers have been read before.

        Returns:
            False: not recognised, the entry is untouched.
        """
        size = len(value)
        if size < SHORTEST:
            return False
        start = 1 if value[0] == 0 else behind_id(value)
        layouts = self._by_length.get(size - start)
        if layouts is None:
            return False
        for layout in layouts:
            if value.startswith(layout.head, start) and value.endswith(layout.tail):
                break
        else:
            return False
        for at, constant in layout.gaps:
            if not value.startswith(constant, start + at):
                return False
        if start > 1 and not _take_id(entry, value, start):
            return False
        if layout.single is not None and not layout.views:
            first, last = layout.single
            entry.data = (value[start + first : start + last],)
        else:
            source = memoryview(value) if layout.views else value
            entry.data = tuple(
                [cut and source[start + cut[0] : start + cut[1]] for cut in layout.cuts]
            )
        entry.rows = layout.rows
        entry.shapes = layout.shapes
        for name, field in layout.fields:
            setattr(entry, name, field)
        return True

    def learn(self, value: bytes, request: InferRequest, entry: Entry) -> None:
        """Remember the layout of a value that the general path made ``request`` and ``entry`` of."""
        if not self._learns:
            return
        pieces = request_pieces(request)
        rest = b"".join(pieces)
        constant_bytes = sum(len(piece) for piece in pieces[::2])
        start = 1 if value[0] == 0 else behind_id(value)
        # All bytes must be those that our writer makes of the request. A value may also be in another legal Avro
        # encoding (blocks with sizes), or hold parameters that became fields: it stays on the general path.
        if constant_bytes > MAX_CONSTANT_BYTES or value[start:] != rest:
            return
        layout = _layout(request, self._signature, pieces)
        layout.rows, layout.shapes = entry.rows, entry.shapes
        key = len(rest)
        known = self._by_length.get(key, ())
        self._by_length[key] = (layout, *known)[:MAX_PER_LENGTH]
        if len(known) < MAX_PER_LENGTH:
            self._order.append(key)
        if len(self._order) > MAX_LAYOUTS:
            self._forget(self._order.pop(0))

    def _forget(self, key: int) -> None:
        left = self._by_length[key][:-1]
        if left:
            self._by_length[key] = left
        else:
            del self._by_length[key]


def request_fields(request: InferRequest) -> tuple[tuple[str, object], ...]:
    """Return what a value says of an entry beside tensors and id; a header that says the same thing wins."""
    values = _values_of(request)
    return tuple([pair for pair in zip(_FIELDS, values, strict=True) if pair[1]])


_FIELDS = (
    "outputs",
    "parameters",
    "sequence_id",
    "sequence_start",
    "sequence_end",
    "priority",
    "timeout_us",
    "binary_data_output",
)
_values_of = attrgetter(*_FIELDS)


def _layout(request: InferRequest, signature: Signature, pieces: list[Buffer]) -> Layout:
    layout = Layout()
    cuts: list[tuple[int, int] | None] = [None] * len(signature.inputs)
    at = len(pieces[0])
    gaps: list[tuple[int, bytes]] = []
    for i, tensor in enumerate(request.inputs):
        spec = signature.input(tensor.name)
        assert spec is not None  # the general path admitted it
        cuts[spec.index] = (at, at + len(tensor.data))
        at += len(tensor.data)
        gaps.append((at, bytes(pieces[2 * i + 2])))
        at += len(pieces[2 * i + 2])
    layout.head = bytes(pieces[0])
    layout.tail = gaps.pop()[1] if gaps else b""
    layout.gaps = tuple(gaps)
    layout.cuts = tuple(cuts)
    layout.single = cuts[0] if len(cuts) == 1 else None
    sizes = [len(tensor.data) for tensor in request.inputs]
    layout.views = max(sizes, default=0) >= VIEW_BYTES
    layout.fields = request_fields(request)
    return layout


def behind_id(value: bytes) -> int:
    """Return where the id of a value ends; beyond the value's end where this path does not know the id's form."""
    length = value[1]
    if value[0] != 2 or length & 1:
        return len(value)
    if length < 0x80:
        return 2 + (length >> 1)
    if value[2] < 0x80:
        return 3 + ((length & 0x7F | value[2] << 7) >> 1)
    return len(value)  # an id of 8 kB and more


def _take_id(entry: Entry, value: bytes, end: int) -> bool:
    """Set the id that ends at ``end``, unless a header said one; False where it is no UTF-8."""
    try:
        name = value[2 if value[1] < 0x80 else 3 : end].decode()
    except UnicodeDecodeError:
        return False
    if name and not entry.id:
        entry.id = name
    return True
