"""From what a model gave to one answer per request; what cannot be written fails alone (FAULTS B41).

A whole batch is encoded at once. Only when that fails, which takes a backend that gives what its datatype cannot hold
(text that is no Unicode, say), is each request's part of the columns tried by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

from headrace.consumers.batcher import Refusal
from headrace.consumers.decoupled import numbered
from headrace.consumers.execution import Part
from headrace.schemas.batch import Batch, Entry, Responses
from headrace.schemas.errors import InferError, WrongOutput
from headrace.schemas.record import Headers
from headrace.schemas.tensor import Array

Answer: TypeAlias = tuple[Entry, bytes, Headers]


class Encoder(Protocol):
    """Writes answers: `headrace.schemas.answers.ResponseEncoder`, or a mapping of own topics."""

    def encode(
        self, batch: Batch, responses: Responses, *, response_index: int | None = None
    ) -> Sequence[Answer]:
        """Encode one response for each covered entry that did not fail; numbered where decoupled."""


def encode_part(
    encoder: Encoder, part: Part, *, decoupled: bool
) -> tuple[list[Answer], list[Refusal]]:
    """Encode what became of a piece of a batch.

    Args:
        encoder: Of the model version.
        part: Responses, or the one error of all its entries.
        decoupled: The model gives 0..n responses per request.

    Returns:
        Answers, and the entries that failed with their errors; together they cover each entry.
    """
    entries = part.batch.entries
    if part.error is not None:
        return [], [Refusal(entry, part.error) for entry in entries if entry is not None]
    answers: list[Answer] = []
    failures: list[Refusal] = []
    try:
        for responses, number in _numbers(part, decoupled=decoupled):
            try:
                answers += encoder.encode(part.batch, responses, response_index=number)
            except InferError:
                raise
            except Exception:  # noqa: BLE001  # whatever a plug-in's columns hold: only its own request may fail of it
                _encode_singly(encoder, part.batch, (responses, number), answers, failures)
            failures += [
                Refusal(entry, error)
                for index, error in responses.errors.items()
                if (entry := entries[index]) is not None
            ]
    except InferError as exc:
        # The columns do not fit the configuration: no part of them is trusted.
        return [], [Refusal(entry, exc) for entry in entries if entry is not None]
    return answers, failures


def _numbers(part: Part, *, decoupled: bool) -> Iterable[tuple[Responses, int | None]]:
    """Return the responses with their numbers, None where there is but one for each request."""
    if not decoupled:
        return [(responses, None) for responses in part.responses]
    try:
        return list(numbered(part.batch, part.responses))
    except Exception as exc:
        raise _unwritable(part.batch, exc) from exc


def _unwritable(batch: Batch, exc: Exception) -> WrongOutput:
    return WrongOutput(
        f"an output of model '{batch.signature.model_name}' cannot be written: "
        f"{type(exc).__name__}: {exc}"
    )


def _encode_singly(
    encoder: Encoder,
    batch: Batch,
    numbered_responses: tuple[Responses, int | None],
    answers: list[Answer],
    failures: list[Refusal],
) -> None:
    """Encode each covered entry's rows by themselves; those that cannot be written fail."""
    responses, number = numbered_responses
    for index, columns in _pieces(batch, responses):
        entry = batch.entries[index]
        if entry is None or index in responses.errors:
            continue
        single = replace(responses, outputs=columns, members=None, errors={})
        try:
            answers += encoder.encode(
                Batch(batch.signature, [entry]), single, response_index=number
            )
        except InferError as exc:
            failures.append(Refusal(entry, exc))
        except Exception as exc:  # noqa: BLE001  # as above
            error = _unwritable(batch, exc)
            error.__cause__ = exc
            failures.append(Refusal(entry, error))


def _pieces(batch: Batch, responses: Responses) -> Iterator[tuple[int, Mapping[str, Array]]]:
    """Yield each covered entry's index and its rows of the columns.

    A ragged output is not cut in rows, so its entries all see the whole column, and fail together.
    """
    signature = batch.signature
    shared = {name for helper in signature.batch_outputs for name in helper.target_names}
    shared |= {spec.name for spec in signature.outputs if not spec.batched}
    row = 0
    for index in range(len(batch)) if responses.members is None else responses.members:
        entry = batch.entries[index]
        end = row + (1 if entry is None else entry.rows)
        yield (
            index,
            {
                name: array if name in shared else array[row:end]
                for name, array in responses.outputs.items()
            },
        )
        row = end
