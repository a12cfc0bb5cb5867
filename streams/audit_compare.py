"""Whether two answers to one request are equal: bit for bit, and floats up to rounding (DELIVERY P-16).

Errors are equal when status and reason word are: their sentences may hold a time. The version that answered and the id
do not count, the outputs do. Of values in a claim-check store only the digests are known: the same bytes are equal, and
of others nothing is said. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

import numpy as np
from headrace.schemas.claim_check import claim_of
from headrace.schemas.codec import decode_response
from headrace.schemas.errors import InferError
from headrace.schemas.headers import find_header
from headrace.schemas.record import CONTENT_TYPE, FINAL, REASON, STATUS, Record
from headrace.schemas.tensor import Datatype, Tensor
from headrace.streams.audit_identity import WHOLE, Identity
from headrace.streams.audit_report import Kind
from headrace.streams.audit_tally import PartitionTally
from numpy.typing import NDArray

TOLERANCE = 1e-5
"""Difference of two floats that count as equal, relative to the greater one where that is above 1."""

RECORD_BYTES = 2_000
"""What a record that is kept takes beside its value, rounded up."""


class Unread(Exception):
    """Answers whose values are in the claim-check store and are not the same bytes: rounding, or another answer."""


def difference(one: Record, other: Record) -> str:
    """Return in what two answers to one request differ, ``""`` if they are equal.

    Raises:
        Unread: Nobody can tell without the store.
    """
    for name, unsaid in ((STATUS, b"OK"), (REASON, b""), (FINAL, b"true")):
        first = find_header(one.headers, name) or unsaid
        second = find_header(other.headers, name) or unsaid
        if first != second:
            return f"header '{name}' is {_shown(first)} and {_shown(second)}"
    if (find_header(one.headers, STATUS) or b"OK") != b"OK":
        return ""
    types = [find_header(record.headers, CONTENT_TYPE) for record in (one, other)]
    digests = [_claimed_digest(record) for record in (one, other)]
    if any(digests):
        known = [
            digest or sha256(record.value or b"").hexdigest()
            for digest, record in zip(digests, (one, other), strict=True)
        ]
        if known[0] == known[1] and types[0] == types[1]:
            return ""
        raise Unread
    if one.value == other.value and types[0] == types[1]:
        return ""
    return _difference_of_values(one, other)


def _claimed_digest(record: Record) -> str:
    """Return the digest of a value that is in the claim-check store, ``""`` of one that is in its record."""
    try:
        claim = claim_of(record)
    except InferError:
        return ""
    return "" if claim is None else claim.sha256


def _difference_of_values(one: Record, other: Record) -> str:
    try:
        responses = [decode_response(record.value, record.headers) for record in (one, other)]
    except InferError:
        return "their bytes differ, and are no responses that can be compared"
    before, after = ({tensor.name: tensor for tensor in r.outputs} for r in responses)
    if before.keys() != after.keys():
        return f"outputs are {sorted(before)} and {sorted(after)}"
    if responses[0].parameters != responses[1].parameters:
        return "their parameters differ"
    return next((found for name in before if (found := _apart(before[name], after[name]))), "")


def _apart(one: Tensor, other: Tensor) -> str:
    """Return in what two outputs of one name differ."""
    if (one.datatype, one.shape) != (other.datatype, other.shape):
        return (
            f"output '{one.name}' is {one.datatype} {list(one.shape)} "
            f"and {other.datatype} {list(other.shape)}"
        )
    if bytes(one.data) == bytes(other.data):
        return ""
    first, second = _floats(one), _floats(other)
    if first is None or second is None:
        return f"output '{one.name}' differs"
    with np.errstate(invalid="ignore"):
        scale = np.maximum(1.0, np.maximum(np.abs(first), np.abs(second)))
        close = np.abs(first - second) <= TOLERANCE * scale
    close &= np.isfinite(first) & np.isfinite(second)
    close |= (first == second) | (np.isnan(first) & np.isnan(second))
    if close.all():
        return ""
    place = int(np.argmin(close))
    return f"output '{one.name}' has {first[place]:.9g} and {second[place]:.9g} at element {place}"


def _floats(tensor: Tensor) -> NDArray[np.float64] | None:
    """Return a tensor's elements in FP64, None where they are no floats."""
    if tensor.datatype is Datatype.BF16:
        bits = tensor.numpy().ravel().astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32).astype(np.float64)
    if tensor.datatype in (Datatype.FP16, Datatype.FP32, Datatype.FP64):
        return tensor.numpy().ravel().astype(np.float64)
    return None


def _shown(raw: bytes) -> str:
    return repr(raw[:60])[1:]


class Compared(NamedTuple):
    """A repeat, the answer that it repeats, what that makes of it, and in what they differ."""

    first: Record
    kind: Kind
    difference: str


def _compared(first: Record, record: Record) -> Compared:
    try:
        found = difference(first, record)
    except Unread:
        where = "their values are in the claim-check store, and their digests differ"
        return Compared(first, Kind.UNCOMPARED, where)
    return Compared(first, Kind.DUPLICATED if found else Kind.REPEATED, found)


@dataclass(slots=True)
class _Kept:
    """The first answers of one request, by their index, and how many repeats were compared with them."""

    answers: dict[int, Record]
    compared: int = 0
    size: int = 0


class Comparison:
    """One reading of the answers: compares the repeats of as many requests as fit, and tells whether others wait.

    Attributes:
        deferred: There was no room for some request: read once more.
        kept_bytes: Of first answers that wait for their repeats.
    """

    def __init__(self, max_bytes: int) -> None:
        """Start with nothing kept."""
        self.deferred = False
        self.kept_bytes = 0
        self._max_bytes = max_bytes
        self._kept: dict[tuple[PartitionTally, int], _Kept] = {}

    def take(self, tally: PartitionTally, identity: Identity, record: Record) -> Compared | None:
        """Look at an answer, in the order of the first reading, and count it in the tally.

        Returns:
            None where it is the first of its identity, or is not compared now.
        """
        offset = identity.offset
        kept = self._kept.get((tally, offset))
        if kept is None:
            if not tally.is_doubtful(offset):
                return None
            # Once one had no room, none is begun: room that is made later would find it in the middle of its answers.
            self.deferred = self.deferred or self.kept_bytes >= self._max_bytes
            if self.deferred:
                return None
            kept = self._kept[tally, offset] = _Kept({})
        if not tally.may_repeat(identity):
            return None
        first = kept.answers.get(identity.response)
        if first is None:
            kept.answers[identity.response] = record
            size = RECORD_BYTES + len(record.value or b"")
            kept.size += size
            self.kept_bytes += size
            return None
        found = _compared(first, record)
        if found.kind is not Kind.UNCOMPARED:
            tally.compared(is_equal=found.kind is Kind.REPEATED)
        kept.compared += 1
        if kept.answers.keys() == {WHOLE} and kept.compared + 1 == tally.copies(offset):
            self._drop(tally, offset)
        return found

    def close(self) -> None:
        """End the reading: what is kept has been compared with all there is."""
        for tally, offset in list(self._kept):
            self._drop(tally, offset)

    def _drop(self, tally: PartitionTally, offset: int) -> None:
        tally.set_compared(offset)
        self.kept_bytes -= self._kept.pop((tally, offset)).size
