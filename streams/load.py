"""How full a model's queue is, as far as a gateway can tell (SEMANTICS KX-02).

Triton counts one process's queue exactly. Here the workers own the queues and the exact count: they refuse an
awaited request at once when theirs is full (QT-01). What a gateway keeps between two status records only spares
a request the way through the log when it is plain that it would be refused, so every doubt is in favour of
sending it.
"""

from __future__ import annotations


class QueueLoad:
    """One priority level's queue over all workers: their last word, and this gateway's own calls since.

    A status record replaces the whole count: what it does not contain yet (a record that is still on its way) is
    forgotten, and the worker decides.
    """

    __slots__ = ("_answered", "_capacity", "_epoch", "_limit", "_opened", "_waiting")

    def __init__(self) -> None:
        """Start without a limit."""
        self._waiting = 0
        self._limit = 0
        self._capacity = 0
        self._opened = 0
        self._answered = 0
        self._epoch = 0

    def __repr__(self) -> str:
        """Show the count and the limit."""
        return f"QueueLoad({self._waiting} - {self._answered} + {self._opened} of {self._limit})"

    def reset(self, *, waiting: int, limit: int, capacity: int) -> None:
        """Take in what the workers say now.

        Args:
            waiting: Requests that wait in all live workers together.
            limit: Sum of their ``max_queue_size``; 0 where any is unlimited.
            capacity: Requests that may execute at once; they do not count as waiting.
        """
        self._waiting = waiting
        self._limit = limit
        self._capacity = capacity
        self._opened = 0
        self._answered = 0
        self._epoch += 1

    @property
    def is_full(self) -> bool:
        """Whether one more request would surely be refused.

        So it is when the queues were full and no call of ours has ended since, or when our own calls since then
        fill them with all instances busy.
        """
        if self._limit == 0:
            return False
        waiting = self._waiting - self._answered
        return waiting >= self._limit or waiting + self._opened >= self._limit + self._capacity

    def opened(self) -> int:
        """Count a call that was sent; returns the token for `closed`."""
        self._opened += 1
        return self._epoch

    def closed(self, token: int) -> None:
        """Count a call that ended, however it did."""
        if token == self._epoch:
            self._opened -= 1
        else:
            # It was waiting, or executing, when the workers last spoke.
            self._answered += 1
