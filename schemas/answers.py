"""From a batch's column responses to result records.

Prepared once per model version. Columns are split once per batch; the usual answer (Avro, all outputs) is then written
for the whole batch by joining constant pieces with ids and data, which is proven equal to fastavro's writer by
property. Anything else goes through `headrace.schemas.codec`, answer by answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TypeGuard

from headrace.schemas import avro
from headrace.schemas.batch import Batch, Entry, Responses
from headrace.schemas.classification import PARAMETER as CLASSES
from headrace.schemas.classification import classified
from headrace.schemas.codec import encode_error_value, encode_response
from headrace.schemas.errors import InferError, WrongOutput
from headrace.schemas.headers import find_header
from headrace.schemas.infer import InferResponse, Parameter, Parameters
from headrace.schemas.record import (
    AVRO,
    BINARY,
    CONTENT_TYPE,
    HEADER_LENGTH,
    ID,
    JSON,
    MODEL_NAME,
    MODEL_VERSION,
    Header,
    Headers,
)
from headrace.schemas.result_headers import ResultHeaders, decoupled_headers, error_headers
from headrace.schemas.signature import Signature, TensorSpec
from headrace.schemas.split import split_output
from headrace.schemas.tensor import Shape, Tensor
from headrace.schemas.v2json import Binary, all_json

Answer = tuple[Entry, bytes, Headers]
Column = tuple[TensorSpec, list[tuple[Shape, bytes]]]


class ResponseEncoder:
    """Encodes the results of one model version."""

    def __init__(
        self, signature: Signature, labels: Mapping[str, Sequence[str]] = MappingProxyType({})
    ) -> None:
        """Prepare the constant parts; ``labels`` are those of outputs that have some (CL-04)."""
        self._signature = signature
        self._labels = labels
        self._name = signature.model_name
        self._version = str(signature.version)
        self._headers = ResultHeaders(self._name, self._version)
        self._model = avro.text(self._name) + avro.text(self._version)

    def encode(
        self, batch: Batch, responses: Responses, *, response_index: int | None = None
    ) -> list[Answer]:
        """Encode one response for each covered entry that did not fail.

        Args:
            batch: As it was executed.
            responses: Its columns; entries in ``errors`` are left out.
            response_index: Number of this response among a decoupled model's, from 0; then the headers say it and
                whether it is the last (``responses.final``), and a response without outputs is allowed.

        Returns:
            Entry, value and headers in row order. An entry whose format cannot hold its outputs (FP16 in JSON, PB-45)
            gets that error as its answer, and the others their results (FAULTS B41).

        Raises:
            WrongOutput: An output does not fit the batch, is unknown, or is missing though it is wanted; nothing
                is returned then.
        """
        covered, failed = batch, set(responses.errors)
        if responses.members is not None:
            covered = Batch(batch.signature, [batch.entries[i] for i in responses.members])
            failed = {k for k, i in enumerate(responses.members) if i in responses.errors}
        extra = (
            ()
            if response_index is None
            else decoupled_headers(response_index, final=responses.final)
        )
        may_be_empty = response_index is not None and not responses.outputs
        columns = self._columns(covered, responses, may_be_empty=may_be_empty)
        usual = [entry for entry in covered.entries if _is_usual(entry)]
        if len(usual) == len(covered.entries) and not failed:
            return self._usual(usual, columns, (responses.parameters, extra))
        places = [
            k for k, entry in enumerate(covered.entries) if k not in failed and _is_usual(entry)
        ]
        parts = [(spec, [split[k] for k in places]) for spec, split in columns]
        usual = [entry for k in places if (entry := covered.entries[k]) is not None]
        answers = self._usual(usual, parts, (responses.parameters, extra))
        return self._merged(covered, failed, answers, columns, (responses.parameters, extra))

    def _columns(self, batch: Batch, responses: Responses, *, may_be_empty: bool) -> list[Column]:
        """Split every output, in the signature's order (PB-43)."""
        columns = []
        for spec in self._signature.outputs:
            array = responses.outputs.get(spec.name)
            if array is not None:
                columns.append((spec, split_output(batch, spec, array)))
            elif batch.wants(spec.name) and not may_be_empty:
                raise no_output(self._signature, spec)
        if len(columns) < len(responses.outputs):
            refuse_unknown(self._signature, responses)
        return columns

    def _usual(
        self,
        entries: Sequence[Entry],
        columns: Sequence[Column],
        rest: tuple[Parameters, Sequence[Header]],
    ) -> list[Answer]:
        """Encode the answers of entries that want everything in Avro, all at once."""
        parameters, extra = rest
        before = self._model + avro.parameter_map(parameters)
        before += avro.long(len(columns)) if columns else b""
        parts: list[Iterable[bytes]] = [[avro.optional_text(entry.id) for entry in entries]]
        for spec, split in columns:
            parts.append(_heads(before, spec, split))
            parts.append([data for _, data in split])
            before = b""
        last = before + avro.END + avro.NO_ERROR
        parts.append([last] * len(entries))
        values = map(b"".join, zip(*parts, strict=True))
        headers = self._headers.ok_block(entries, AVRO, extra)
        return list(zip(entries, values, headers, strict=True))

    def _merged(
        self,
        batch: Batch,
        failed: set[int],
        usual: list[Answer],
        columns: Sequence[Column],
        rest: tuple[Parameters, Sequence[Header]],
    ) -> list[Answer]:
        """Put the answers that are not usual between those that are, in row order."""
        done = iter(usual)
        upcoming = next(done, None)
        answers: list[Answer] = []
        for k, entry in enumerate(batch.entries):
            if entry is None or k in failed:
                continue
            if upcoming is not None and entry is upcoming[0]:
                answers.append(upcoming)
                upcoming = next(done, None)
            else:
                answers.append(self._one(entry, k, columns, rest))
        return answers

    def _one(
        self,
        entry: Entry,
        place: int,
        columns: Sequence[Column],
        rest: tuple[Parameters, Sequence[Header]],
    ) -> Answer:
        """Encode one answer by the general codec: only the outputs that it wants (PB-35, FAULTS B37)."""
        parameters, extra = rest
        wanted = {output.name: output.parameters.get(CLASSES, 0) for output in entry.outputs}
        try:
            outputs = tuple(
                self._tensor(spec, split[place], wanted.get(spec.name))
                for spec, split in columns
                if not wanted or spec.name in wanted
            )
            response = InferResponse(outputs, entry.id, self._name, self._version, parameters)
            found = encode_response(
                response, entry.accept or entry.content_type, answer_binary(entry)
            )
        except InferError as exc:
            return (entry, *encode_error(entry, exc, self._name, self._version))
        if found.length is not None:
            extra = (*extra, (HEADER_LENGTH, str(found.length).encode()))
        return entry, found.value, self._headers.ok(entry, found.content_type, extra)

    def _tensor(
        self, spec: TensorSpec, part: tuple[Shape, bytes], classes: Parameter | None
    ) -> Tensor:
        """Return an output of one answer: its values, or as many of its classes as are wanted (CL-01)."""
        tensor = Tensor(spec.name, spec.datatype, *part)
        if not isinstance(classes, int) or not classes:
            return tensor
        return classified(tensor, classes, self._labels.get(spec.name, ()), batched=spec.batched)


def no_output(signature: Signature, spec: TensorSpec) -> WrongOutput:
    """Return the error of a response that lacks an output."""
    return WrongOutput(
        f"model '{signature.model_name}' returned no output '{spec.name}', expected "
        f"{[wanted.name for wanted in signature.outputs]}"
    )


def refuse_unknown(signature: Signature, responses: Responses) -> None:
    """Refuse a response with an output that the model does not have.

    Raises:
        WrongOutput: There is one; the sentence names the first.
    """
    for name in responses.outputs:
        if signature.output(name) is None:
            raise WrongOutput(
                f"model '{signature.model_name}' returned the unknown output '{name}', expected "
                f"{[wanted.name for wanted in signature.outputs]}"
            )


def encode_error(
    entry: Entry, error: InferError, model_name: str, model_version: str
) -> tuple[bytes, Headers]:
    """Encode the error that answers an entry, in the format that it wants.

    Args:
        entry: Also of a record that could not be decoded: what its headers said is enough.
        error: The answer.
        model_name: Of the topic.
        model_version: ``""`` where it was not known yet.
    """
    content_type = entry.accept or entry.content_type
    found = encode_error_value(entry.id, (model_name, model_version), error, content_type)
    headers = _result_headers(model_name, model_version)
    return found.value, headers.error(entry, found.content_type, error)


def answer_instead(headers: Headers, error: InferError) -> tuple[bytes, Headers]:
    """Encode the error that stands in place of an answer which is encoded already and cannot be delivered.

    Args:
        headers: The answer's, as `ResponseEncoder` or `encode_error` made them.
        error: Why.
    """
    id_, name, version, content_type = (
        (find_header(headers, header) or b"").decode()
        for header in (ID, MODEL_NAME, MODEL_VERSION, CONTENT_TYPE)
    )
    found = encode_error_value(id_, (name, version), error, content_type)
    return found.value, error_headers(headers, found.content_type, error)


@lru_cache(maxsize=256)
def _result_headers(model_name: str, model_version: str) -> ResultHeaders:
    """Keep what is constant for errors; versions are few, but a client may invent some."""
    return ResultHeaders(model_name, model_version)


def _heads(
    before: bytes, spec: TensorSpec, split: Sequence[tuple[Shape, bytes]]
) -> Iterator[bytes]:
    """Yield what stands before each entry's data: nearly always the same bytes, made once."""
    shape: Shape | None = None
    size = -1
    head = b""
    for item, data in split:
        if item is not shape or len(data) != size:
            shape, size = item, len(data)
            head = before + avro.tensor_head(spec.name, spec.datatype, item) + avro.long(size)
        yield head


def _is_usual(entry: Entry | None) -> TypeGuard[Entry]:
    return entry is not None and not entry.outputs and (entry.accept or entry.content_type) == AVRO


def answer_binary(entry: Entry) -> Binary:
    """Return which outputs of an answer in JSON, or JSON with binary tensors, are binary.

    An output that is listed says so itself, ``binary_data_output`` speaks of the others (BN-03, BN-04); what nobody
    speaks of is binary where the answer's content type is. Somebody who accepts JSON by name gets JSON.
    """
    if entry.accept == JSON:
        return all_json
    usual = (entry.accept or entry.content_type) == BINARY
    listed = {
        output.name: output.parameters.get("binary_data", usual) is True
        for output in entry.outputs
    }
    others = usual or entry.binary_data_output
    return lambda name: listed.get(name, others)
