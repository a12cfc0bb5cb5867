"""What becomes of answers to requests with an idempotency key: the port between answering and the two kinds (P-17).

Stateless requests are `headrace.consumers.remembered_answers`, steps `headrace.consumers.sequence_keys`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from headrace.consumers.keys import KeyTables
from headrace.schemas.answers import Answer
from headrace.schemas.batch import Entry
from headrace.schemas.remembered import Remembered


class Ended(NamedTuple):
    """What goes out when answers do.

    Attributes:
        answers: These and those of repeats behind them.
        finished: The same of the entries.
        kept: Entry → what the settle stores of its answer.
    """

    answers: Sequence[Answer]
    finished: Sequence[Entry]
    kept: Mapping[Entry, Remembered]


class Keyed(Protocol):
    """Every answer passes here before it is published, while there is a request with a key in flight.

    Attributes:
        keys: What is known of keys; its ``flying`` says whether one is in flight.
    """

    keys: KeyTables

    def ended(
        self,
        answers: Sequence[Answer],
        finished: Sequence[Entry],
        fit: Callable[[Answer], Answer],
    ) -> Ended:
        """Decide what follows from answers: for those who wait for the same, and for those who will ask again.

        Args:
            answers: Going out.
            finished: The entries that they are to.
            fit: Makes an answer fit into a record.
        """
