"""The classification extension: an output's largest values with their places and labels (SEMANTICS §2.5).

Pure. The worker applies it where it writes an answer, since label files are there; so whoever asks gets it, by a record
as over HTTP and gRPC, and a gateway passes on what came.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from headrace.schemas.errors import InvalidRequest
from headrace.schemas.tensor import Array, Datatype, Shape, Tensor, join_bytes, to_numpy

PARAMETER = "classification"
"""Of a requested output: how many classes, 0 is none (CL-01, CL-03)."""

MAX_ITEM_ELEMENTS = 1_000_000
"""Elements of one item that are sorted at most. Source: Triton's ``classification.cc`` (CL-02)."""

MAX_CLASSES = 2**32 - 1
"""Triton keeps the number in so many bits."""

_REFUSED = frozenset((Datatype.BYTES, Datatype.BOOL, Datatype.FP16, Datatype.BF16))


def check_classes(output: str, datatype: Datatype, classes: object) -> None:
    """Check that an output can be classified as it is asked for.

    Args:
        output: Its name.
        datatype: Of the output itself.
        classes: The parameter's value, of any type.

    Raises:
        InvalidRequest: It is no number of classes (CL-03), or the datatype has no classes (CL-02).
    """
    if (
        not isinstance(classes, int)
        or isinstance(classes, bool)
        or not 0 <= classes <= MAX_CLASSES
    ):
        raise InvalidRequest(
            f"parameter '{PARAMETER}' of output '{output}' is {classes!r:.60}, expected a whole number from 0 to "
            f"{MAX_CLASSES}"
        )
    if classes and datatype in _REFUSED:
        raise InvalidRequest(
            f"class result not available for output '{output}' due to unsupported type '{datatype}'"
        )


def classified(tensor: Tensor, classes: int, labels: Sequence[str], *, batched: bool) -> Tensor:
    """Return an output's largest values instead of all of them.

    Args:
        tensor: Output, [b, *item] if ``batched``, else one item of any shape.
        classes: How many are wanted, 1 or more.
        labels: By place in the item; places behind the last one, and those with an empty label, have none (CL-04).
        batched: The first axis is the batch's.

    Returns:
        BYTES [b, min(classes, n)], or [min(classes, n)] without a batch axis, of ``value:place[:label]``, the largest
        first, of equal ones the first. Not-a-number comes last.

    Raises:
        InvalidRequest: An item has too many elements (CL-02).
    """
    rows = tensor.shape[:1] if batched else ()
    size = math.prod(tensor.shape[len(rows) :])
    check_item(tensor.name, size)
    items = to_numpy(tensor.name, tensor.datatype, (math.prod(rows), size), tensor.data)
    places = largest(items, classes)
    words = [
        word for item, row in zip(items, places, strict=True) for word in _words(item, row, labels)
    ]
    shape: Shape = (*rows, places.shape[1])
    return Tensor(tensor.name, Datatype.BYTES, shape, join_bytes(words))


def check_item(output: str, size: int) -> None:
    """Check that an item is not too large to be sorted.

    Raises:
        InvalidRequest: It has too many elements (CL-02).
    """
    if size > MAX_ITEM_ELEMENTS:
        raise InvalidRequest(
            f"classification output tensor too large: output '{output}' has {size} elements per item, expected at "
            f"most {MAX_ITEM_ELEMENTS}"
        )


def largest(items: Array, count: int) -> Array:
    """Return the places [n, min(count, size)] of the largest values of items [n, size] (CL-01).

    The largest first, of equal ones the first; not-a-number comes last.
    """
    keys = np.where(np.isnan(items), -np.inf, items) if items.dtype.kind == "f" else items
    # Backwards and sorted stably: of equal values the first place comes out first, so that an answer that is given
    # twice is the same (DELIVERY P-16). There is no negative of an unsigned value to sort by.
    order = np.argsort(keys[:, ::-1], axis=1, kind="stable")[:, ::-1][:, :count]
    places: Array = items.shape[1] - 1 - order
    return places


def _words(item: Array, places: Array, labels: Sequence[str]) -> list[bytes]:
    is_float = item.dtype.kind == "f"
    words: list[bytes] = []
    for place, value in zip(places.tolist(), item[places].tolist(), strict=True):
        # As C++'s to_string writes numbers: floats of any size with six decimals.
        word = f"{value:.6f}:{place}" if is_float else f"{value}:{place}"
        if place < len(labels) and labels[place]:
            word += f":{labels[place]}"
        words.append(word.encode())
    return words
