"""From a batch's column responses to the results of a mapped topic, in the mapping's own format.

Prepared once per model version. A batch's columns become Python's values at once; per record there is one dict and one
call of the format. Answers to V2 requests that came by the same topic are written as everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace.schemas.answers import (
    Answer,
    ResponseEncoder,
    encode_error,
    no_output,
    refuse_unknown,
)
from headrace.schemas.batch import Batch, Entry, Responses
from headrace.schemas.codec import wire_detail
from headrace.schemas.errors import InferError
from headrace.schemas.mapping import ERROR_FIELD, EventMapping, PassedField
from headrace.schemas.mapping_check import MappingPlan
from headrace.schemas.mapping_events import EventWriter
from headrace.schemas.mapping_format import RecordFormat
from headrace.schemas.mapping_results import compile_result
from headrace.schemas.record import Header, Headers
from headrace.schemas.result_headers import ResultHeaders, decoupled_headers

_NOT_OURS = InferError("answered by the other encoder")


class MappingErrors:
    """Writes the errors that answer the records of a mapped topic: what is passed through, and ``error``."""

    def __init__(
        self,
        passed: Sequence[PassedField],
        record_format: RecordFormat,
        event: EventMapping | None = None,
    ) -> None:
        """Keep the parts; ``event`` says how errors are events."""
        self._names = [field.name for field in passed]
        self._format = record_format
        self._event = None if event is None else EventWriter(event, record_format.content_type)

    def __call__(
        self, entry: Entry, error: InferError, model_name: str, model_version: str
    ) -> tuple[bytes, Headers]:
        """Return value and headers; see `headrace.schemas.answers.encode_error`."""
        if entry.passed is None:
            return encode_error(entry, error, model_name, model_version)
        said = {ERROR_FIELD: wire_detail(error)}
        try:
            # Whatever was too large for a record passes nothing through.
            value = self._format.write(
                {**dict(zip(self._names, entry.passed, strict=False)), **said}
            )
        except InferError:
            value = self._format.write(said)
        content_type = self._format.content_type
        headers = ResultHeaders(model_name, model_version, content_type).error(
            entry, content_type, error
        )
        return (value, headers) if self._event is None else self._event(entry, value, headers)


class MappingEncoder:
    """Encodes the results of one version of a mapped model."""

    def __init__(
        self,
        plan: MappingPlan,
        record_format: RecordFormat,
        errors: MappingErrors,
        requests: ResponseEncoder,
    ) -> None:
        """Prepare.

        Args:
            plan: Of the version; its results are not V2.
            record_format: Of results.
            errors: Writes the errors of answers that the format cannot hold.
            requests: Writes the answers to V2 requests.
        """
        self._signature = plan.signature
        self._version = str(plan.signature.version)
        self._format = record_format
        self._errors = errors
        self._requests = requests
        event = plan.mapping.results.event
        self._event = None if event is None else EventWriter(event, record_format.content_type)
        self._columns = [(result.spec, compile_result(result)) for result in plan.results]
        self._passed = [field.name for field in plan.passed]
        self._names = [result.mapping.name for result in plan.results]
        self._headers = ResultHeaders(
            plan.signature.model_name, self._version, record_format.content_type
        )

    def encode(
        self, batch: Batch, responses: Responses, *, response_index: int | None = None
    ) -> list[Answer]:
        """Encode one response for each covered entry that did not fail.

        See `headrace.schemas.answers.ResponseEncoder.encode`; an answer that the format cannot hold is that error.
        """
        members = range(len(batch)) if responses.members is None else responses.members
        covered = [batch.entries[i] for i in members]
        ours = [
            k
            for k, (i, entry) in enumerate(zip(members, covered, strict=True))
            if entry is not None and entry.passed is not None and i not in responses.errors
        ]
        others: list[Answer] = []
        if any(entry is not None and entry.passed is None for entry in covered):
            left = dict(responses.errors) | {members[k]: _NOT_OURS for k in ours}
            others = self._requests.encode(
                batch, replace(responses, errors=left), response_index=response_index
            )
        extra = (
            ()
            if response_index is None
            else decoupled_headers(response_index, final=responses.final)
        )
        may_be_empty = response_index is not None and not responses.outputs
        part = batch if responses.members is None else Batch(batch.signature, covered)
        columns = [] if may_be_empty else self._values(part, responses)
        answers = self._answers(covered, ours, columns, extra)
        return _in_order(covered, answers, others) if others else answers

    def _values(self, batch: Batch, responses: Responses) -> list[list[object]]:
        refuse_unknown(self._signature, responses)
        columns = []
        for spec, column in self._columns:
            array = responses.outputs.get(spec.name)
            if array is None:
                raise no_output(self._signature, spec)
            columns.append(column(batch, array))
        return columns

    def _answers(
        self,
        covered: Sequence[Entry | None],
        ours: Sequence[int],
        columns: Sequence[Sequence[object]],
        extra: Sequence[Header],
    ) -> list[Answer]:
        entries = [entry for k in ours if (entry := covered[k]) is not None]
        headers = self._headers.ok_block(entries, self._format.content_type, extra)
        names = [*self._passed, *self._names[: len(columns)]]
        rows = list(zip(*columns, strict=True)) if columns else [()] * len(covered)
        if len(ours) < len(covered):
            rows = [rows[k] for k in ours]
        write, event = self._format.write, self._event
        answers: list[Answer] = []
        for entry, row, said in zip(entries, rows, headers, strict=True):
            passed = entry.passed or ()
            try:
                value = write(dict(zip(names, passed + row, strict=True)))
            except InferError as exc:
                answers.append(
                    (entry, *self._errors(entry, exc, self._signature.model_name, self._version))
                )
            else:
                answers.append(
                    (entry, value, said) if event is None else (entry, *event(entry, value, said))
                )
        return answers


def _in_order(
    covered: Sequence[Entry | None], one: Sequence[Answer], other: Sequence[Answer]
) -> list[Answer]:
    """Put answers of both kinds into row order."""
    by_entry = {id(answer[0]): answer for answer in (*one, *other)}
    return [answer for entry in covered if (answer := by_entry.get(id(entry))) is not None]
