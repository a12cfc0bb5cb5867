"""Which requests may share a batch (SEMANTICS DB-12). Pure; used by every batcher that joins requests."""

from __future__ import annotations

from headrace.schemas.batch import Entry
from headrace.schemas.signature import Signature


class Alike:
    """Compares the inputs of two requests of one model version.

    Attributes:
        must_compare: Requests may differ in a way that keeps them apart; else any two fit, and nobody need ask.
    """

    def __init__(self, signature: Signature) -> None:
        """Find out which inputs matter: shapes that vary and are not ragged, shape tensors, absent inputs."""
        self._alike = tuple(
            spec.index
            for spec in signature.inputs
            if not spec.fixed and not spec.ragged and spec.batched
        )
        # A shape tensor has no rows of its own to join: all requests of a batch must carry the same one.
        self._equal = tuple(
            spec.index
            for spec in signature.inputs
            if not spec.batched and signature.max_batch_size > 0
        )
        self.must_compare = bool(self._alike or self._equal or signature.has_optional)

    def fits(self, first: Entry, entry: Entry) -> bool:
        """Tell whether two requests may share a batch: same inputs, same shapes unless ragged."""
        mine, other = first.shapes, entry.shapes
        if mine != other:
            if any(mine[index] != other[index] for index in self._alike):
                return False
            if any((a is None) != (b is None) for a, b in zip(mine, other, strict=True)):
                return False
        return not self._equal or all(
            first.data[index] == entry.data[index] for index in self._equal
        )
