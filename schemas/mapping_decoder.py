"""From the records of a mapped topic to entries: the guarded place where other people's values are read (FAULTS B32).

Prepared once per model, called once per block, as `headrace.schemas.requests.RequestDecoder` is. A record whose
content type is Headrace's own Avro is a V2 request, and goes that decoder's way; what other content types say is the
business of whoever owns the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.schemas.batch import Entry
from headrace.schemas.errors import InferError, TooLarge, UndecodableRecord
from headrace.schemas.headers import find_header, read_headers
from headrace.schemas.idempotency_key import Note
from headrace.schemas.infer import RequestedOutput
from headrace.schemas.mapping_check import MappingPlan
from headrace.schemas.mapping_events import read_event_fields
from headrace.schemas.mapping_format import RecordFormat
from headrace.schemas.mapping_inputs import Columns, compile_inputs
from headrace.schemas.mapping_path import Fields
from headrace.schemas.mapping_said import compile_said
from headrace.schemas.record import (
    ATTEMPT,
    AVRO,
    CLAIM_CHECK,
    CONTENT_TYPE,
    CORRELATION_ID,
    DEADLINE_MS,
    IDEMPOTENCY_KEY,
    OPAQUE_PREFIX,
    REPLY_PARTITION,
    REPLY_TOPIC,
    SPRING_CORRELATION_ID,
    SPRING_REPLY_PARTITION,
    SPRING_REPLY_TOPIC,
    TP,
    TRACEPARENT,
    TRACESTATE,
    Headers,
    Record,
)
from headrace.schemas.requests import (
    MAX_RECORD_BYTES,
    Decoded,
    Failure,
    RequestDecoder,
    by_text,
    digested,
    failed,
    find_version,
    unexpected,
)

UNDERSTOOD = frozenset(
    (
        *(
            ATTEMPT,
            CLAIM_CHECK,
            CORRELATION_ID,
            DEADLINE_MS,
            IDEMPOTENCY_KEY,
            TRACEPARENT,
            TRACESTATE,
        ),
        *(REPLY_TOPIC, REPLY_PARTITION),
        *(SPRING_REPLY_TOPIC, SPRING_REPLY_PARTITION, SPRING_CORRELATION_ID),
    )
)
"""Headers of a mapped topic's record that speak to Headrace, beside ``x-``: where the answer goes and what comes back.

Others of the contract have names that people use for things of their own, such as ``id`` and ``priority``: what they
would say is said by the mapping.
"""

_OURS = AVRO.encode()


class _Version:
    """One model version: what makes its inputs, and which outputs are wanted, none for all."""

    __slots__ = ("inputs", "number", "outputs")

    def __init__(self, number: int, plan: MappingPlan) -> None:
        self.number = number
        self.inputs: Callable[[Fields], Columns] = compile_inputs(plan)
        wanted = {result.spec.name for result in plan.results}
        every = {spec.name for spec in plan.signature.outputs}
        self.outputs = (
            tuple(
                [
                    RequestedOutput(spec.name)
                    for spec in plan.signature.outputs
                    if spec.name in wanted
                ]
            )
            if wanted and wanted < every
            else ()
        )


class MappingDecoder:
    """Decodes the records of one mapped model, for the versions that are ready now.

    Attributes:
        format: How values are read; where it takes schemas, they are brought before `decode` is called.
    """

    def __init__(
        self,
        plans: Mapping[int, MappingPlan],
        record_format: RecordFormat,
        *,
        content_type: str,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        """Compile; a change of versions needs a new decoder.

        Args:
            plans: The mapping as it fits each version; at least one.
            record_format: Of the source.
            content_type: Of results.
            max_record_bytes: Larger values are refused; 64 MiB by default.

        Raises:
            ConfigError: A default of the mapping does not fit its input.
        """
        plan = plans[max(plans)]
        mapping = plan.mapping
        self.format = record_format
        self._name = plan.signature.model_name
        self._max_bytes = max_record_bytes
        self._content_type = content_type
        self._events = mapping.source.events
        self._skips = mapping.source.tombstones == "skip"
        self._says = compile_said(mapping)
        self._versions = by_text({number: _Version(number, p) for number, p in plans.items()})
        self._nothing = (
            None if mapping.results.format.word == "v2" else (None,) * len(mapping.results.passed)
        )
        self._requests = RequestDecoder(
            {number: one.signature for number, one in plans.items()},
            model_name=self._name,
            max_record_bytes=max_record_bytes,
        )

    def decode(self, tp: TP, epoch: int, records: Sequence[Record]) -> Decoded:
        """Decode a block; see `headrace.schemas.requests.RequestDecoder.decode`."""
        by_version: dict[int, list[Entry]] = {}
        failures: list[Failure] = []
        keyed: list[Entry] = []
        skipped: list[Entry] = []
        requests: list[Record] = []
        entries: list[Entry] = []
        last: _Version | None = None
        for record in records:
            headers = record.headers
            if headers and is_request(headers):
                requests.append(record)
                continue
            entry = Entry()
            entry.tp = tp
            entry.epoch = epoch
            entry.record = record
            entry.content_type = self._content_type
            entry.passed = self._nothing
            if record.value is None and self._skips:
                skipped.append(entry)
                continue
            try:
                if headers and self._read_headers(entry, headers):
                    keyed.append(entry)
                version = self._decode(entry, record)
            except AssertionError:
                raise
            except Exception as exc:  # noqa: BLE001  # the guarded place: whatever foreign bytes made a parser do
                error = exc if isinstance(exc, InferError) else unexpected(entry, exc)
                failures.append(failed(entry, error))
            else:
                if version is not last:
                    last = version
                    entries = by_version.setdefault(version.number, [])
                entries.append(entry)
        decoded = Decoded(by_version, failures, digested(keyed) if keyed else (), skipped)
        if requests:
            return _merged(decoded, self._requests.decode(tp, epoch, requests))
        return decoded

    def _read_headers(self, entry: Entry, headers: Headers) -> bool:
        """Read the headers that speak to Headrace; whether there is an idempotency key."""
        kept = [h for h in headers if h[0] in UNDERSTOOD or h[0].startswith(OPAQUE_PREFIX)]
        if not kept:
            return False
        note = read_headers(entry, kept)
        entry.content_type = self._content_type
        if note is None or isinstance(note, Note):
            return note is not None
        raise note

    def _decode(self, entry: Entry, record: Record) -> _Version:
        """Fill an entry; return its version."""
        value = record.value
        if value is None:
            raise UndecodableRecord("the value is null, expected a record")
        if len(value) > self._max_bytes:
            raise TooLarge(
                f"the value has {len(value)} bytes, expected at most {self._max_bytes} (max_record_bytes)"
            )
        fields = (
            read_event_fields(record, self.format.read)
            if self._events
            else self.format.read(value)
        )
        for say in self._says:
            say(entry, record, fields)
        version = self._versions.get(entry.model_version)
        if version is None:
            version = find_version(self._versions, entry.model_version, self._name)
        entry.data, entry.shapes = version.inputs(fields)
        entry.rows = 1
        if version.outputs:
            entry.outputs = version.outputs
        return version


def is_request(headers: Headers) -> bool:
    """Whether a record says that it is a V2 request in Headrace's own content type."""
    raw = find_header(headers, CONTENT_TYPE)
    return raw is not None and raw.split(b";", 1)[0].strip().lower() == _OURS


def _merged(one: Decoded, other: Decoded) -> Decoded:
    """Put two parts of a block together again, in record order."""

    def place(entry: Entry) -> int:
        return entry.record.offset

    by_version = {
        number: sorted(
            [*one.by_version.get(number, ()), *other.by_version.get(number, ())], key=place
        )
        for number in {**one.by_version, **other.by_version}
    }
    failures = sorted([*one.failures, *other.failures], key=lambda failure: place(failure.entry))
    return Decoded(
        by_version, failures, sorted([*one.keyed, *other.keyed], key=place), one.skipped
    )
