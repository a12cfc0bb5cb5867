"""A model's outputs as the fields of results: a whole batch's column at once, as Python's values. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from headrace.schemas.batch import Batch
from headrace.schemas.classification import check_item, largest
from headrace.schemas.mapping_check import ResultPlan
from headrace.schemas.signature import TensorSpec
from headrace.schemas.split import check_rows, split_output
from headrace.schemas.tensor import Array, Datatype, to_numpy

Make: TypeAlias = Callable[[Array], list[object]]
"""From an output [n, *shape] to n values."""

ResultColumn: TypeAlias = Callable[[Batch, Array], list[object]]
"""From a batch and an output as the model gave it to one value per entry, padding included."""


def compile_result(plan: ResultPlan) -> ResultColumn:
    """Return a function that makes one field of a batch's results.

    It raises `headrace.schemas.errors.WrongOutput` where the output does not fit the batch (FAULTS B36), and
    `InvalidRequest` where an item has too many elements to be sorted (CL-02).
    """
    spec, make = plan.spec, _make(plan)

    def column(batch: Batch, array: Array) -> list[object]:
        if not _is_plain(batch, spec):
            return [make(one)[0] for one in _apart(batch, spec, array)]
        check_rows(batch, spec, array)
        wire = spec.wire_shape(array.shape[1:])
        return make(_readable(spec, array.reshape(array.shape[0], *wire)))

    return column


def _is_plain(batch: Batch, spec: TensorSpec) -> bool:
    """Whether a row of the output is an entry's."""
    return (
        spec.batched
        and batch.rows == len(batch.entries)
        and not any(spec.name in one.target_names for one in batch.signature.batch_outputs)
    )


def _apart(batch: Batch, spec: TensorSpec, array: Array) -> list[Array]:
    """Return each entry's part as [1, *shape], of one with several rows the first."""
    parts = []
    for shape, data in split_output(batch, spec, array):
        whole = to_numpy(spec.name, spec.datatype, shape, data)
        parts.append(_readable(spec, whole[:1] if spec.batched else whole[np.newaxis]))
    return parts


def _readable(spec: TensorSpec, array: Array) -> Array:
    """Return BF16, which numpy does not have, as FP32."""
    if spec.datatype is not Datatype.BF16:
        return array
    return (array.astype("<u4") << np.uint32(16)).view("<f4")


def _make(plan: ResultPlan) -> Make:
    spec, mapping = plan.spec, plan.mapping
    if mapping.top_k:
        return _classes(plan, mapping.top_k)
    if mapping.is_label:
        is_place = plan.is_single and spec.datatype.numpy.kind in "iu"
        return _named_places(plan.labels) if is_place else _best_label(plan)
    if spec.datatype is Datatype.BYTES:
        return _single_texts if plan.is_single else _texts
    return _single_values if plan.is_single else _values


def _single_values(array: Array) -> list[object]:
    found: list[object] = array.reshape(-1).tolist()
    return found


def _values(array: Array) -> list[object]:
    found: list[object] = array.tolist()
    return found


def _text(item: object) -> str:
    return item if isinstance(item, str) else bytes(item).decode()  # type: ignore[call-overload]  # bytes


def _single_texts(array: Array) -> list[object]:
    return [_text(item) for item in array.reshape(-1).tolist()]


def _texts(array: Array) -> list[object]:
    texts = np.empty(array.size, dtype=object)
    texts[:] = _single_texts(array)
    found: list[object] = texts.reshape(array.shape).tolist()
    return found


def _named_places(labels: Sequence[str]) -> Make:
    """Each value is itself a place among the labels."""
    return lambda array: [_label(labels, place) or str(place) for place in _single_values(array)]


def _label(labels: Sequence[str], place: Any) -> str | None:
    return labels[place] or None if 0 <= place < len(labels) else None


def _best_label(plan: ResultPlan) -> Make:
    labels = plan.labels

    def make(array: Array) -> list[object]:
        places = _largest(plan.spec, array, 1)[1]
        return [_label(labels, row[0]) or str(row[0]) if row else None for row in places.tolist()]

    return make


def _classes(plan: ResultPlan, top_k: int) -> Make:
    labels = plan.labels

    def make(array: Array) -> list[object]:
        items, places = _largest(plan.spec, array, top_k)
        scores = np.take_along_axis(items, places, axis=1).astype(np.float64).tolist()
        return [
            [
                {"label": _label(labels, place), "index": place, "score": score}
                for place, score in zip(of_row, row, strict=True)
            ]
            for of_row, row in zip(places.tolist(), scores, strict=True)
        ]

    return make


def _largest(spec: TensorSpec, array: Array, count: int) -> tuple[Any, Any]:
    """Return items [n, size] and the places [n, count] of their largest values."""
    size = math.prod(array.shape[1:])
    check_item(spec.name, size)
    items = array.reshape(array.shape[0], size)
    return items, largest(items, count)
