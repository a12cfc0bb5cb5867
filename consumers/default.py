"""The default scheduler: a model without ``dynamic_batching`` never merges requests (SEMANTICS DB-33). Pure."""

from __future__ import annotations

from headrace.consumers.queues import EntryQueue
from headrace.schemas.batch import Batch
from headrace.schemas.signature import Signature


class DefaultBatcher(EntryQueue):
    """One request per execution, first in, first out, over all instances; itself maybe a batch of several rows.

    There is no queue policy: no priorities, no queue timeout, no ``max_queue_size``. A caller's own deadline
    and cancels count as everywhere.
    """

    def __init__(self, signature: Signature) -> None:
        """Start empty, for one model version."""
        super().__init__()
        self._signature = signature

    def take(self, instance: int, now_ns: int, *, flush: bool = False) -> Batch | None:  # noqa: ARG002  # the port's; nothing is ever held back
        """Return the oldest request as a batch of its own, or None if none waits."""
        self.sweep(now_ns)
        return Batch(self._signature, self.pop(1)) if len(self) else None
