"""Numbers a decoupled model's responses per request, and closes those that were left open (SEMANTICS DC-01). Pure.

A request's answers carry ``response-index`` from 0 and ``final`` on the last. A model that gave no response, or
did not mark its last as final, gets an empty final one, so that each request ends in the log as it ends in Triton.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from headrace.schemas.batch import Batch, Responses


def numbered(batch: Batch, emitted: Sequence[Responses]) -> Iterator[tuple[Responses, int]]:
    """Yield responses with the index that all their members share.

    Args:
        batch: As it was executed.
        emitted: In the order of the model. One whose members stand at different indices is split.
    """
    counts = [0] * len(batch)
    is_open = [entry is not None for entry in batch.entries]
    for responses in emitted:
        members = list(range(len(batch)) if responses.members is None else responses.members)
        for index in sorted({counts[member] for member in members}):
            chosen = [member for member in members if counts[member] == index]
            yield _only(batch, responses, members, chosen), index
        for member in members:
            counts[member] += 1
            if responses.final or member in responses.errors:
                is_open[member] = False
    for index in sorted({counts[m] for m in range(len(batch)) if is_open[m]}):
        yield (
            Responses(
                {}, members=[m for m in range(len(batch)) if is_open[m] and counts[m] == index]
            ),
            index,
        )


def _only(
    batch: Batch, responses: Responses, members: Sequence[int], chosen: Sequence[int]
) -> Responses:
    """Return the part of some responses that concerns the chosen members."""
    if len(chosen) == len(members):
        return responses
    keep = np.concatenate(
        [
            np.full(1 if (e := batch.entries[member]) is None else e.rows, member in chosen)
            for member in members
        ]
    )
    return replace(
        responses,
        outputs={name: array[keep] for name, array in responses.outputs.items()},
        members=chosen,
        errors={member: error for member, error in responses.errors.items() if member in chosen},
    )
