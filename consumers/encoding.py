"""From what a model gave to one answer per request; what cannot be written fails alone (FAULTS B41).

A whole batch is encoded at once, in a thread where that would hold the loop (FAULTS B2). Only when it fails, which
takes a backend that gives what its datatype cannot hold (text that is no Unicode, say), is each request's part of the
columns tried by itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from headrace.consumers.batcher import Refusal
from headrace.consumers.decoupled import cancelled, narrowed, not_gone, not_left, numbered
from headrace.consumers.execution import Execution, Part
from headrace.schemas.batch import Batch, Entry, Responses
from headrace.schemas.classification import PARAMETER as CLASSES
from headrace.schemas.errors import InferError, WrongOutput
from headrace.schemas.record import AVRO, Headers
from headrace.schemas.tensor import Array

Answer: TypeAlias = tuple[Entry, bytes, Headers]


class Encoder(Protocol):
    """Writes answers: `headrace.schemas.answers.ResponseEncoder`, or a mapping of own topics."""

    def encode(
        self, batch: Batch, responses: Responses, *, response_index: int | None = None
    ) -> Sequence[Answer]:
        """Encode one response for each covered entry that did not fail; numbered where decoupled."""


class Encoded(NamedTuple):
    """What is to be said of a batch.

    Attributes:
        answers: Of the entries that did not fail.
        failures: Those that did, with their errors.
        output_ns: Time it took to split and encode.
    """

    answers: list[Answer]
    failures: list[Refusal]
    output_ns: int


class Store(Protocol):
    """Puts away answers that no record can hold: `headrace.consumers.claimed_answers.ClaimedAnswers`."""

    def takes(self, encoded: Encoded) -> bool:
        """Whether there are such answers."""

    async def store(self, encoded: Encoded) -> Encoded:
        """Return the same with something small in their place."""


TEXT_FACTOR = 4
"""Writing a number as text takes about as long as reading so many times its raw bytes as text."""


def holds_the_loop(execution: Execution, limit_bytes: int) -> bool:
    """Whether encoding takes as long as reading ``limit_bytes`` of JSON: then it is no work for the loop.

    Numbers in Avro are only copied. Numbers as text and strings in any format are written one by one. Requests are
    looked at singly only where there is much to write, or strings.
    """
    size = strings = 0
    for array in _columns(execution):
        size += array.nbytes
        if array.dtype.kind in "OSU":
            strings += array.nbytes
    if strings > limit_bytes:
        return True
    if (not strings and size * TEXT_FACTOR <= limit_bytes) or _is_copied(execution):
        return False
    return (size + _characters(execution)) * TEXT_FACTOR > limit_bytes


def _columns(execution: Execution) -> Iterator[Array]:
    """Yield the arrays among the outputs; what a plug-in emitted is not all checked yet."""
    for part in execution.parts:
        for responses in part.responses:
            outputs: object = getattr(responses, "outputs", None)
            if isinstance(outputs, Mapping):
                yield from (array for array in outputs.values() if isinstance(array, np.ndarray))


def _is_copied(execution: Execution) -> bool:
    """Whether every answer is Avro, and of no output the largest values are looked for."""
    return all(
        entry is None
        or (
            (entry.accept or entry.content_type) == AVRO
            and not any(CLASSES in output.parameters for output in entry.outputs)
        )
        for part in execution.parts
        for entry in part.batch.entries
    )


def _characters(execution: Execution) -> int:
    """Count what the strings hold beside their places in the arrays."""
    strings = [array for array in _columns(execution) if array.dtype.kind == "O"]
    return sum(
        len(item) for array in strings for item in array.flat if isinstance(item, (bytes, str))
    )


class Encoding:
    """Encodes batches of one model version, in the order in which they ended: here, or large ones in a thread.

    While one is in the thread those behind it wait, so that with one instance answers leave in the order of execution.
    So they do while large answers are stored.

    Attributes:
        store: Where answers go that are too large for a record; None where no store is configured.
    """

    __slots__ = ("_task", "_waiting", "store")

    def __init__(self) -> None:
        """Start with nothing to do."""
        self.store: Store | None = None
        self._waiting: deque[tuple[Callable[[], Encoded], Callable[[Encoded], None]]] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing waits for the thread or is in it."""
        return not self._waiting

    def run(
        self,
        encode: Callable[[], Encoded],
        done: Callable[[Encoded], None],
        failed: Callable[[BaseException], None],
        *,
        is_long: bool,
    ) -> None:
        """Call ``encode`` and ``done``: here where nothing is before it and it does not take long, else `apart`."""
        if is_long or not self.idle:
            self.apart(encode, done, failed)
            return
        encoded = encode()
        if self.store is not None and self.store.takes(encoded):
            self.apart(lambda: encoded, done, failed)
        else:
            done(encoded)

    def apart(
        self,
        encode: Callable[[], Encoded],
        done: Callable[[Encoded], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Call ``encode`` in a thread and then ``done`` in the loop; ``failed`` where one of them raised."""
        self._waiting.append((encode, done))
        if self._task is None:
            self._task = asyncio.create_task(self._work(failed))

    def close(self) -> None:
        """Wait for nothing any more."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    async def _work(self, failed: Callable[[BaseException], None]) -> None:
        try:
            while self._waiting:
                encode, done = self._waiting[0]
                encoded = await asyncio.to_thread(encode)
                if self.store is not None and self.store.takes(encoded):
                    encoded = await self.store.store(encoded)
                self._waiting.popleft()
                done(encoded)
        except Exception as exc:  # noqa: BLE001  # a task that nobody awaits: nobody else would hear of it (FAULTS B42)
            failed(exc)
        finally:
            self._task = None


def encode_execution(
    encoder: Encoder, execution: Execution, *, decoupled: bool, now_ns: Callable[[], int]
) -> Encoded:
    """Encode what became of a batch; touches nothing that the loop may change meanwhile."""
    begun_ns = now_ns()
    answers: list[Answer] = []
    failures: list[Refusal] = []
    for part in execution.parts:
        encoded, failed = encode_part(encoder, part, decoupled=decoupled)
        answers += encoded
        failures += failed
    return Encoded(answers, failures, now_ns() - begun_ns)


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
        if decoupled:
            _encode_many(encoder, part, answers, failures)
            return answers, failures
        for responses in part.responses:
            _encode_one(encoder, part.batch, (responses, None), answers, failures)
    except InferError as exc:
        # The columns do not fit the configuration: no part of them is trusted.
        return [], [Refusal(entry, exc) for entry in entries if entry is not None]
    return answers, failures


def _encode_many(
    encoder: Encoder, part: Part, answers: list[Answer], failures: list[Refusal]
) -> None:
    """Encode the responses of a decoupled model that have not left yet; a request that fails ends with its error."""
    batch = part.batch
    try:
        left = list(not_left(batch, numbered(batch, part.responses)))
    except Exception as exc:
        raise _unwritable(batch, exc) from exc
    failures += cancelled(batch, left)
    for responses, number in left:
        failed = {id(failure.entry) for failure in failures}
        going = narrowed(batch, responses, lambda entry: id(entry) not in failed)  # noqa: B023  # called at once
        if going is not None:
            _encode_one(encoder, batch, (going, number), answers, failures)


def encode_emitted(
    encoder: Encoder, batch: Batch, parts: Sequence[tuple[Responses, int]]
) -> Encoded:
    """Encode what an execution has emitted while it goes on; what cannot be written is left to its end."""
    answers: list[Answer] = []
    for responses, number in parts:
        try:
            answers += encoder.encode(batch, responses, response_index=number)
        except Exception:  # noqa: BLE001  # whatever a plug-in gave: tried once more when its execution has ended
            not_gone(batch, responses, number)
    return Encoded(answers, [], 0)


def _encode_one(
    encoder: Encoder,
    batch: Batch,
    numbered_responses: tuple[Responses, int | None],
    answers: list[Answer],
    failures: list[Refusal],
) -> None:
    """Encode one response of each covered entry; those whose own part cannot be written fail.

    Raises:
        InferError: The columns do not fit the configuration.
    """
    responses, number = numbered_responses
    try:
        answers += encoder.encode(batch, responses, response_index=number)
    except InferError:
        raise
    except Exception:  # noqa: BLE001  # whatever a plug-in's columns hold: only its own request may fail of it
        _encode_singly(encoder, batch, numbered_responses, answers, failures)
    failures += [
        Refusal(entry, error)
        for index, error in responses.errors.items()
        if (entry := batch.entries[index]) is not None
    ]


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
