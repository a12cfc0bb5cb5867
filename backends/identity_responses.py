"""The 0..n responses of the identity backend's decoupled models: how many, what they carry, and how they end.

The script says how many. ``each`` walks over the first input's last axis, as Triton's ``repeat`` backend does: a
response for each element, none for an empty input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.backends.identity_script import MAX_COUNT, Script
from headrace.schemas.batch import Batch, Responses
from headrace.schemas.errors import BackendError, InferError
from headrace.schemas.tensor import Array

Echo = Callable[[Batch], dict[str, Array]]
"""Makes the outputs of a part of a batch."""


def is_many(script: Script) -> bool:
    """Whether the script says anything about the number of responses."""
    return script.responses is not None or bool(script.responses_input) or script.responses_each


def respond(
    batch: Batch,
    script: Script,
    counts: Sequence[int],
    errors: Mapping[int, InferError],
    *,
    echo: Echo,
    walked: str,
    before: Callable[[int], None],
    emit: Callable[[Responses], None],
) -> None:
    """Give each entry its responses, turn by turn; an entry that was cancelled gets no more (SEMANTICS CX-01).

    Args:
        batch: What is executed.
        script: Of the model.
        counts: Responses of each entry.
        errors: Entries whose first response is an error, which ends them.
        echo: Makes the outputs.
        walked: The output whose elements are given one by one; ``""`` gives all of it each time.
        before: Called before each turn, from 0.
        emit: Takes the responses.
    """
    ended = {index for index, entry in enumerate(batch.entries) if entry is None}
    for turn in range(max(counts, default=0)):
        before(turn)
        members = [i for i, n in enumerate(counts) if n > turn and i not in ended]
        members = [i for i in members if not _is_cancelled(batch, i)]
        if not members:
            return
        failed = {i: errors[i] for i in members if i in errors}
        if turn == script.response_error_at:
            failed = {i: BackendError(f"scripted error: response {turn}") for i in members}
        ended |= failed.keys()
        for final in (False, True):
            chosen = [i for i in members if _ends(script, counts[i], turn) is final]
            if chosen:
                piece = Batch(batch.signature, [batch.entries[i] for i in chosen])
                outputs = echo(piece)
                if walked in outputs:
                    outputs[walked] = outputs[walked][..., turn : turn + 1]
                here = {i: failed[i] for i in chosen if i in failed}
                emit(Responses(outputs, members=chosen, errors=here, final=final))


def walks(array: Array | None) -> int:
    """Return how many responses an input's last axis makes, at most `MAX_COUNT`."""
    return 0 if array is None or not array.ndim else min(array.shape[-1], MAX_COUNT)


def _ends(script: Script, count: int, turn: int) -> bool:
    return count == turn + 1 and not script.empty_final


def _is_cancelled(batch: Batch, index: int) -> bool:
    entry = batch.entries[index]
    return entry is None or entry.is_cancelled
