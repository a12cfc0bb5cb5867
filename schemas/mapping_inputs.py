"""A record's fields as a model's inputs: compiled once per model version, called once per record. Pure.

A record in which all is well takes the short way: fields are taken out, packed, and that is that. Anything else goes
through `_Careful`, which puts defaults in, and names the field, its value and what was expected.
"""

from __future__ import annotations

import binascii
import math
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import TypeAlias

from headrace.schemas.errors import ConfigError, UndecodableRecord
from headrace.schemas.mapping import NO_DEFAULT, Field
from headrace.schemas.mapping_check import InputPlan, MappingPlan, solved_shape
from headrace.schemas.mapping_elements import NOT_PACKED, Elements, elements_of
from headrace.schemas.mapping_path import MISSING, Fields, Getter, find, getter, shown
from headrace.schemas.tensor import Buffer, Datatype, Shape, join_bytes

Columns: TypeAlias = tuple[tuple[Buffer | None, ...], tuple[Shape | None, ...]]
"""Data and shapes of all inputs, as in `headrace.schemas.batch.Entry`."""

Read: TypeAlias = Callable[[Fields], tuple[Buffer, Shape]]
"""Makes one input of a record."""

_NOT_QUICK = (LookupError, *NOT_PACKED)


def compile_inputs(plan: MappingPlan) -> Callable[[Fields], Columns]:
    """Return a function that makes all inputs of a record; it raises `UndecodableRecord` where one cannot be made.

    Raises:
        ConfigError: A default is no element of its input.
    """
    reads = [None if one is None else compile_input(one, plan.mapping.file) for one in plan.inputs]
    shapes = plan.signature.usual_shapes
    if len(reads) == 1 and (only := reads[0]) is not None:
        if shapes is not None:
            usual = shapes  # one tuple for all records: identity is a quick test of equality
            return lambda record: ((only(record)[0],), usual)

        def read_one(record: Fields) -> Columns:
            data, shape = only(record)
            return (data,), (shape,)

        return read_one

    def read(record: Fields) -> Columns:
        found = [(None, None) if one is None else one(record) for one in reads]
        data, sizes = zip(*found, strict=True) if found else ((), ())
        return data, shapes if sizes == shapes else sizes

    return read


def compile_input(plan: InputPlan, file: str) -> Read:
    """Return a function that makes one input.

    Raises:
        ConfigError: A default is no element of the input.
    """
    careful = _Careful(plan, file)
    encoding = plan.mapping.encoding
    if encoding in ("number", "string"):
        return _several(plan, careful)
    get = getter(plan.mapping.fields[0].path)
    if encoding == "list":
        return _list(plan, careful, get)
    return careful.read


def _several(plan: InputPlan, careful: _Careful) -> Read:
    """One element per field."""
    pack, are_fit, shape = careful.elements.pack, careful.elements.are_fit, plan.shape
    get = _tuple_of(plan.mapping.fields)

    def read(record: Fields) -> tuple[Buffer, Shape]:
        try:
            values = get(record)
            data = pack(values)
            if are_fit(values):
                return data, shape
        except _NOT_QUICK:
            pass
        return careful.read(record)

    return read


def _tuple_of(fields: Sequence[Field]) -> Callable[[Fields], Sequence[object]]:
    if len(fields) > 1 and all(len(field.path.steps) == 1 for field in fields):
        several: Callable[[Fields], Sequence[object]] = itemgetter(*[f.path.name for f in fields])
        return several
    getters = [getter(field.path) for field in fields]
    return lambda record: [get(record) for get in getters]


def _list(plan: InputPlan, careful: _Careful, get: Getter) -> Read:
    """All elements in one list, in order."""
    pack, are_fit, shape = careful.elements.pack, careful.elements.are_fit, plan.shape
    is_fixed, count = plan.is_fixed, math.prod(plan.shape)

    def read(record: Fields) -> tuple[Buffer, Shape]:
        try:
            values = get(record)
            if type(values) is list:
                solved = shape if is_fixed else solved_shape(shape, len(values))
                if solved is not None and (not is_fixed or len(values) == count):
                    data = pack(values)
                    if are_fit(values):
                        return data, solved
        except _NOT_QUICK:
            pass
        return careful.read(record)

    return read


class _Careful:
    """Makes one input of any record, or says what is wrong with it.

    Attributes:
        elements: How values are packed.
    """

    def __init__(self, plan: InputPlan, file: str) -> None:
        """Prepare; check the defaults.

        Raises:
            ConfigError: One is no element of the input.
        """
        self._plan = plan
        mapping = plan.mapping
        count = math.prod(plan.shape) if plan.is_fixed else -1
        self.elements: Elements = elements_of(
            plan.spec.datatype, count, allow_nan=mapping.allow_nan
        )
        self._fields = mapping.fields
        self._flat = {
            "list": self._listed,
            "nested": self._nested,
            "base64": self._base64,
            "bytes": self._bytes,
        }.get(mapping.encoding)
        # A default that is not-a-number says that the model knows what to do with it.
        self._any = elements_of(plan.spec.datatype, -1, allow_nan=True)
        for field in self._fields:
            if field.default is not NO_DEFAULT:
                self._check_default(field, file)

    def read(self, record: Fields) -> tuple[Buffer, Shape]:
        """Make the input.

        Raises:
            UndecodableRecord: A field is missing, or has a value that does not fit.
        """
        if self._flat is not None:
            field = self._fields[0]
            return self._flat(field, *self._value(record, field))
        values = []
        for field in self._fields:
            value, elements = self._value(record, field)
            self._check(field.path.text, value, elements)
            values.append(value)
        return self.elements.pack(values), self._plan.shape

    def _check_default(self, field: Field, file: str) -> None:
        try:
            if self._flat is None:
                self._check(field.path.text, field.default, self._any)
            else:
                self._flat(field, field.default, self._any)
        except UndecodableRecord as exc:
            raise ConfigError(
                f"the default does not fit: {exc.detail}",
                file=file,
                field=f"inputs.{self._plan.spec.name}.default",
                value=shown(field.default),
            ) from exc

    def _value(self, record: Fields, field: Field) -> tuple[object, Elements]:
        """Return a field's value, or its default, and what it has to be."""
        value = find(record, field.path)
        if value is not None and value is not MISSING:
            return value, self.elements
        if field.default is not NO_DEFAULT:
            return field.default, self._any
        raise self._wrong(field.path.text, "null" if value is None else "missing")

    def _expected(self) -> str:
        """Return what a field should be."""
        if self._flat is None:
            return self.elements.expected
        encoding, plan = self._plan.mapping.encoding, self._plan
        if encoding in ("list", "nested"):
            sizes = "" if not plan.shape else f" of shape {list(plan.shape)}"
            return f"{'a list' if encoding == 'list' else 'nested lists'}{sizes}, each element {self.elements.expected}"
        text = "base64 text" if encoding == "base64" else "bytes"
        if plan.spec.datatype is Datatype.BYTES:
            return text
        return f"{text} of {plan.spec.datatype} {list(plan.shape)}"

    def _wrong(self, path: str, found: str, expected: str = "") -> UndecodableRecord:
        return UndecodableRecord(
            f"field '{path}' is {found}, expected {expected or self._expected()} for input '{self._plan.spec.name}'"
        )

    def _check(self, path: str, value: object, elements: Elements) -> None:
        if not elements.fits(value):
            raise self._wrong(path, shown(value), elements.expected)

    def _packed(
        self, field: Field, values: Sequence[object], shape: Shape, elements: Elements
    ) -> tuple[Buffer, Shape]:
        """Pack elements; name the first that is none."""
        try:
            data = elements.pack(values)
            if elements.are_fit(values):
                return data, shape
        except NOT_PACKED:
            pass
        for place, value in enumerate(values):
            self._check(field.path.text + _place(place, shape), value, elements)
        return elements.pack(values), shape

    def _listed(self, field: Field, value: object, elements: Elements) -> tuple[Buffer, Shape]:
        if not isinstance(value, list):
            raise self._wrong(field.path.text, shown(value))
        shape = solved_shape(self._plan.shape, len(value))
        if shape is None:
            raise self._wrong(field.path.text, shown(value))
        return self._packed(field, value, shape, elements)

    def _nested(self, field: Field, value: object, elements: Elements) -> tuple[Buffer, Shape]:
        level: list[object] = [value]
        shape: list[int] = []
        for axis, size in enumerate(self._plan.shape):
            for place, item in enumerate(level):
                want = size if size >= 0 or not place else shape[axis]
                if not isinstance(item, list) or (want >= 0 and len(item) != want):
                    path = field.path.text + _place(place, shape[:axis])
                    words = "a list" if want < 0 else f"a list of {want}"
                    raise self._wrong(path, shown(item), words)
                if not place:
                    shape.append(len(item))
            if not level:  # an axis of no elements: what is below it has the sizes that are known
                shape.append(max(size, 0))
            level = list(chain.from_iterable(level))  # type: ignore[arg-type]  # lists, as was seen
        return self._packed(field, level, tuple(shape), elements)

    def _base64(self, field: Field, value: object, _: Elements) -> tuple[Buffer, Shape]:
        if not isinstance(value, (str, bytes)):
            raise self._wrong(field.path.text, shown(value))
        try:
            raw = b64decode(value, validate=True)
        except (binascii.Error, ValueError) as exc:
            raise self._wrong(field.path.text, f"no base64 ({exc})") from exc
        return self._raw(field, raw)

    def _bytes(self, field: Field, value: object, _: Elements) -> tuple[Buffer, Shape]:
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise self._wrong(field.path.text, shown(value))
        return self._raw(field, bytes(value))

    def _raw(self, field: Field, raw: bytes) -> tuple[Buffer, Shape]:
        """Take bytes as they are: one element of BYTES, or the little-endian elements of a whole tensor."""
        plan = self._plan
        if plan.spec.datatype is Datatype.BYTES:
            shape = solved_shape(plan.shape, 1)
            assert shape is not None  # checked when the mapping was fitted
            return join_bytes((raw,)), shape
        size = plan.spec.datatype.size
        solved = None if len(raw) % size else solved_shape(plan.shape, len(raw) // size)
        if solved is None:
            raise self._wrong(field.path.text, f"{len(raw)} bytes")
        return raw, solved


def _place(place: int, shape: Sequence[int]) -> str:
    """Return where an element is, as a path says it: ``[1][2]`` of place 5 in shape [2, 3]."""
    indices: Iterator[int] = _indices(place, shape)
    return "".join([f"[{index}]" for index in indices])


def _indices(place: int, shape: Sequence[int]) -> Iterator[int]:
    for axis in range(len(shape)):
        below = math.prod(shape[axis + 1 :])
        yield place // below
        place %= below
