"""Fits a mapping to a model version: what it names exists, and can hold what it says. Pure.

All that is wrong is found here, at start: a `ConfigError` names the file, the key, its value, and the nearest name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from headrace.schemas.classification import check_classes
from headrace.schemas.errors import ConfigError, InvalidRequest
from headrace.schemas.mapping import (
    ERROR_FIELD,
    InputMapping,
    ModelMapping,
    PassedField,
    ResultMapping,
    SequenceMapping,
)
from headrace.schemas.mapping_format import ResultField
from headrace.schemas.mapping_tables import nearest
from headrace.schemas.model_config import ControlKind
from headrace.schemas.signature import Signature, TensorSpec
from headrace.schemas.tensor import Datatype, Shape


@dataclass(frozen=True, slots=True)
class InputPlan:
    """How one input is made.

    Attributes:
        spec: The model's input.
        mapping: What the file says, its encoding decided.
        shape: Without the batch axis; -1 is any size.
    """

    spec: TensorSpec
    mapping: InputMapping
    shape: Shape

    @property
    def is_fixed(self) -> bool:
        """Whether every size is known."""
        return all(size >= 0 for size in self.shape)


@dataclass(frozen=True, slots=True)
class ResultPlan:
    """How one field of a result is made.

    Attributes:
        spec: The model's output.
        mapping: What the file says.
        labels: By place; the mapping's own or the model's.
        is_single: The output has one element: its value stands alone, without a list.
    """

    spec: TensorSpec
    mapping: ResultMapping
    labels: Sequence[str]
    is_single: bool


@dataclass(frozen=True, slots=True)
class MappingPlan:
    """A mapping that fits a model version.

    Attributes:
        mapping: What the file says; its ``sequence`` has a type, if there is one.
        signature: Of the version.
        inputs: In the signature's order; None: an optional input that is left out.
        results: Fields of results but those that are passed through; none where results are V2 responses.
    """

    mapping: ModelMapping
    signature: Signature
    inputs: tuple[InputPlan | None, ...]
    results: tuple[ResultPlan, ...]

    @property
    def passed(self) -> tuple[PassedField, ...]:
        """Fields of the record that come back."""
        return self.mapping.results.passed

    def result_fields(self) -> tuple[ResultField, ...]:
        """Return what a result's record has, in order: passed through, outputs, and ``error``."""
        fields = [ResultField(passed.name, None) for passed in self.passed]
        for result in self.results:
            spec, mapping = result.spec, result.mapping
            if mapping.is_label:
                field = ResultField(mapping.name, Datatype.BYTES, is_text=True)
            elif mapping.top_k:
                field = ResultField(mapping.name, None, is_classes=True)
            else:
                is_text = spec.datatype is Datatype.BYTES
                dims = () if result.is_single else spec.dims
                field = ResultField(mapping.name, spec.datatype, dims, is_text=is_text)
            fields.append(field)
        return (*fields, ResultField(ERROR_FIELD, Datatype.BYTES, is_text=True))


def fit_mapping(
    mapping: ModelMapping, signature: Signature, labels: Mapping[str, Sequence[str]]
) -> MappingPlan:
    """Fit a mapping to a model version; not for records in V2, which need none.

    Args:
        mapping: As it was read.
        signature: Of the version.
        labels: Of outputs that have some (CL-04).

    Raises:
        ConfigError: It names an input, an output or a field that does not exist, or one that cannot hold what it says.
    """
    return _Fitting(mapping, signature, labels).plan()


def fit_input(mapping: ModelMapping, signature: Signature, one: InputMapping) -> InputPlan:
    """Fit one input alone; ``mapping`` is whose file errors name.

    Raises:
        ConfigError: It does not exist, or cannot hold what it says.
    """
    return _Fitting(mapping, signature, {}).input(one)


class _Fitting:
    """One mapping and one model version, and the errors that name both."""

    def __init__(
        self, mapping: ModelMapping, signature: Signature, labels: Mapping[str, Sequence[str]]
    ) -> None:
        self._mapping = mapping
        self._signature = signature
        self._labels = labels
        self._model = f"model '{signature.model_name}'"

    def plan(self) -> MappingPlan:
        """Check everything."""
        signature = self._signature
        inputs: list[InputPlan | None] = [None] * len(signature.inputs)
        for mapping in self._mapping.inputs:
            made = self.input(mapping)
            inputs[made.spec.index] = made
        for spec in signature.inputs:
            if inputs[spec.index] is None and not spec.optional:
                self._refuse(
                    f"{self._model} needs the input '{spec.name}' ({_described(spec)}), expected a table "
                    f"[inputs.{spec.name}]",
                    "inputs",
                )
        whole = replace(self._mapping, sequence=self._sequence())
        return MappingPlan(whole, signature, tuple(inputs), self._results())

    def _refuse(self, detail: str, field: str, value: object = "") -> NoReturn:
        raise ConfigError(detail, file=self._mapping.file, field=field, value=value)

    def input(self, mapping: InputMapping) -> InputPlan:
        """Check one input."""
        spec = self._signature.input(mapping.name)
        if spec is None:
            hint = nearest(mapping.name, [known.name for known in self._signature.inputs])
            self._refuse(f"{self._model} has no such input, {hint}", f"inputs.{mapping.name}")
        where = f"inputs.{spec.name}"
        if mapping.datatype not in (None, spec.datatype):
            self._refuse(
                f"{self._model} has {spec.datatype} there", f"{where}.datatype", mapping.datatype
            )
        shape = spec.dims if mapping.shape is None else mapping.shape
        if len(shape) != len(spec.dims) or any(
            dim not in (-1, size) for dim, size in zip(spec.dims, shape, strict=True)
        ):
            self._refuse(
                f"expected a shape that fits dims {list(spec.dims)} of {self._model}, without the batch's",
                f"{where}.shape",
                list(shape),
            )
        encoding = mapping.encoding or _usual_encoding(spec, mapping, shape)
        mapping = replace(mapping, encoding=encoding)
        why_not = _why_not(spec, encoding, shape)
        if why_not:
            self._refuse(why_not, f"{where}.encoding", encoding)
        if encoding in ("number", "string"):
            shape = self._for_fields(spec, mapping, shape)
        return InputPlan(spec, mapping, shape)

    def _for_fields(self, spec: TensorSpec, mapping: InputMapping, shape: Shape) -> Shape:
        """Return the shape that as many elements have as there are fields."""
        count = len(mapping.fields)
        solved = solved_shape(shape, count)
        if solved is None:
            fields = "1 field" if count == 1 else f"{count} fields"
            self._refuse(
                f"{fields} with encoding '{mapping.encoding}' give so many elements, expected "
                f"{_elements(shape)} of {_described(spec)}",
                f"inputs.{spec.name}.fields",
            )
        return solved

    def _sequence(self) -> SequenceMapping | None:
        mapping = self._mapping.sequence
        if mapping is None:
            if self._signature.is_sequence:
                self._refuse(
                    f"{self._model} has sequence_batching, expected a table [sequence] that says which record is a "
                    "step of which sequence",
                    "sequence",
                )
            return None
        if not self._signature.is_sequence:
            self._refuse(
                f"{self._model} has no sequence_batching, expected no such table", "sequence"
            )
        corrid = [c for c in self._signature.controls if c.kind is ControlKind.CORRID]
        taken = "string"
        if corrid and corrid[0].datatype is not Datatype.BYTES:
            taken = "uint64"
        if corrid and mapping.id_type not in ("", taken):
            self._refuse(
                f"expected {taken}, for the control CORRID of {self._model} is {corrid[0].datatype}",
                "sequence.type",
                mapping.id_type,
            )
        return replace(mapping, id_type=mapping.id_type or taken)

    def _results(self) -> tuple[ResultPlan, ...]:
        results = self._mapping.results
        outputs = [spec.name for spec in self._signature.outputs]
        if results.format.word == "v2":
            if results.fields or results.passed:
                self._refuse(
                    "expected none with format 'v2': its responses have the model's outputs",
                    "results.fields" if results.fields else "results.pass",
                )
            return ()
        passed = {field.name for field in results.passed}
        if not results.fields:
            for name in outputs:
                if name in passed or name == ERROR_FIELD:
                    self._refuse(
                        f"the result has '{name}' already, expected a table [results.fields] that names the output "
                        f"'{name}' otherwise",
                        "results",
                    )
        fields = results.fields or tuple([ResultMapping(name, name) for name in outputs])
        return tuple([self._result(field) for field in fields])

    def _result(self, field: ResultMapping) -> ResultPlan:
        spec = self._signature.output(field.output)
        where = f"results.fields.{field.name}"
        if spec is None:
            hint = nearest(field.output, [known.name for known in self._signature.outputs])
            self._refuse(f"{self._model} has no such output, {hint}", where, field.output)
        is_single = spec.fixed and math.prod(spec.dims) == 1
        if field.top_k or (field.is_label and not (is_single and _is_whole(spec.datatype))):
            try:
                check_classes(field.output, spec.datatype, field.top_k or 1)
            except InvalidRequest as exc:
                self._refuse(exc.detail, where)
        labels = field.labels or self._labels.get(field.output, ())
        return ResultPlan(spec, field, labels, is_single)


def _usual_encoding(spec: TensorSpec, mapping: InputMapping, shape: Shape) -> str:
    """Return what an input's values look like where the file does not say it."""
    is_single = -1 not in shape and math.prod(shape) == 1
    if len(mapping.fields) > 1 or is_single:
        return "string" if spec.datatype is Datatype.BYTES else "number"
    return "list" if len(shape) <= 1 else "nested"


def _why_not(spec: TensorSpec, encoding: str, shape: Shape) -> str:
    """Return why an input cannot be encoded so, ``""`` where it can."""
    is_text = spec.datatype is Datatype.BYTES
    unknown = sum(size < 0 for size in shape)
    if is_text and encoding == "number":
        return f"expected string, list, nested, base64 or bytes for {_described(spec)}"
    if not is_text and encoding == "string":
        return f"expected number, list, nested, base64 or bytes for {_described(spec)}"
    if is_text and encoding in ("base64", "bytes") and solved_shape(shape, 1) is None:
        return f"such a field is one element, expected {_elements(shape)} of {_described(spec)}"
    if encoding in ("list", "base64", "bytes") and unknown > 1:
        return f"expected nested, or a shape with one -1 at most, for {_described(spec)}"
    if encoding == "nested" and not shape:
        return f"expected number or string for {_described(spec)}, which has no axis"
    return ""


def solved_shape(shape: Shape, count: int) -> Shape | None:
    """Return the shape with so many elements: its first -1 is solved, further ones are 1; None where none fits."""
    known = math.prod([size for size in shape if size >= 0])
    if -1 not in shape:
        return shape if known == count else None
    if not known or count % known:
        return None
    at = shape.index(-1)
    return tuple(
        [
            count // known if i == at else max(size, 1) if size < 0 else size
            for i, size in enumerate(shape)
        ]
    )


def _is_whole(datatype: Datatype) -> bool:
    return datatype.numpy.kind in "iu" and datatype is not Datatype.BF16


def _elements(shape: Shape) -> str:
    known = math.prod([size for size in shape if size >= 0])
    return f"a multiple of {known}" if -1 in shape else str(known)


def _described(spec: TensorSpec) -> str:
    return f"input '{spec.name}', {spec.datatype} {list(spec.dims)}"
