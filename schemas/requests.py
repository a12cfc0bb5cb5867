"""From records to entries: the one guarded place where foreign bytes are read (FAULTS B32, B33).

Prepared once per model, called once per block. Nothing that a record holds is raised out of `RequestDecoder.decode`: it
becomes a failure that can be answered, and its neighbours are decoded. An `AssertionError` is our own bug and passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from headrace.schemas.batch import Entry
from headrace.schemas.codec import decode_request
from headrace.schemas.errors import InferError, NotFound, Reason, TooLarge, UndecodableRecord
from headrace.schemas.headers import checked_id, read_headers
from headrace.schemas.idempotency import request_digest
from headrace.schemas.idempotency_key import Note
from headrace.schemas.layout import Layouts, request_fields
from headrace.schemas.record import AVRO, TP, Record
from headrace.schemas.signature import Signature

Item = TypeVar("Item")

MAX_RECORD_BYTES = 64 * 1024 * 1024
"""Default limit of a request's value, as for a request over HTTP (SEMANTICS PB-24)."""

MAX_VERSION_CHARS = 20
"""Digits of a version number that could exist, and no more of what a client sends for one."""

MAX_SHOWN_CHARS = 150
"""Characters of a name that an error repeats."""

_DEAD = frozenset(
    (
        Reason.UNDECODABLE,
        Reason.UNKNOWN_SCHEMA,
        Reason.MALFORMED,
        Reason.UNKNOWN_CONTENT_TYPE,
        Reason.INVALID_HEADER,
    )
)


class Failure(NamedTuple):
    """A record that became no request.

    Attributes:
        entry: What could be read of its headers, so that it can be answered; rows 0, no data.
        error: The answer.
        dead_letter: Its bytes cannot be decoded, so they are kept as well.
    """

    entry: Entry
    error: InferError
    dead_letter: bool


class Decoded(NamedTuple):
    """A block's records: entries by model version, each list in record order, and failures in record order.

    ``keyed`` are the entries with an idempotency key, ``skipped`` those that nobody is to answer (null values of a
    mapped topic); both in record order.
    """

    by_version: dict[int, list[Entry]]
    failures: list[Failure]
    keyed: Sequence[Entry] = ()
    skipped: Sequence[Entry] = ()


class _Version:
    """One model version: its signature and the layouts that were learned for it."""

    __slots__ = ("layouts", "number", "signature")

    def __init__(self, number: int, signature: Signature) -> None:
        self.number = number
        self.signature = signature
        self.layouts = Layouts(signature)


class RequestDecoder:
    """Decodes the request records of one model, for the versions that are ready now."""

    def __init__(
        self,
        signatures: Mapping[int, Signature],
        *,
        model_name: str,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        """Prepare; a change of versions needs a new decoder.

        Args:
            signatures: By version number; the highest serves requests that name none (MR-07).
            model_name: The topic's model.
            max_record_bytes: Larger values are refused; 64 MiB by default.
        """
        self.model_name = model_name
        self.max_record_bytes = max_record_bytes
        self._versions = by_text(
            {number: _Version(number, signature) for number, signature in signatures.items()}
        )

    def decode(self, tp: TP, epoch: int, records: Sequence[Record]) -> Decoded:
        """Decode a block.

        Args:
            tp: Its partition.
            epoch: Epoch of the assignment under which it was polled.
            records: In offset order.
        """
        by_version: dict[int, list[Entry]] = {}
        failures: list[Failure] = []
        entries: list[Entry] = []
        keyed: list[Entry] = []
        last: _Version | None = None
        versions, limit = self._versions, self.max_record_bytes
        for record in records:
            entry = Entry()
            entry.tp = tp
            entry.epoch = epoch
            entry.record = record
            try:
                error = read_headers(entry, record.headers)
                if error is not None:
                    if not isinstance(error, Note):
                        raise error  # noqa: TRY301  # one way out for all failures
                    keyed.append(entry)
                version = versions.get(entry.model_version)
                value = record.value
                if not (
                    version is not None
                    and value
                    and len(value) <= limit
                    and entry.content_type == AVRO
                    and version.layouts.fill(entry, value)
                ):
                    version = self._decode(entry, value)
            except InferError as exc:
                failures.append(failed(entry, exc))
            except AssertionError:
                raise
            except Exception as exc:  # noqa: BLE001  # the guarded place: whatever foreign bytes made a parser do
                failures.append(failed(entry, unexpected(entry, exc)))
            else:
                if version is not last:
                    last = version
                    entries = by_version.setdefault(version.number, [])
                entries.append(entry)
        return Decoded(by_version, failures, digested(keyed) if keyed else ())

    def _decode(self, entry: Entry, value: bytes | None) -> _Version:
        """Fill an entry by the general path and learn its layout; return its version."""
        if not value:
            shown = "null" if value is None else "empty"
            raise UndecodableRecord(
                f"the value is {shown}, expected a request in {entry.content_type}"
            )
        if len(value) > self.max_record_bytes:
            raise TooLarge(
                f"the value has {len(value)} bytes, expected at most {self.max_record_bytes} "
                "(max_record_bytes)"
            )
        version = self._find(entry.model_version)
        request = decode_request(
            value, entry.content_type, entry.record.headers, version.signature
        )
        if request.model_name not in ("", self.model_name):
            raise NotFound(
                f"Request for unknown model: '{request.model_name[:MAX_SHOWN_CHARS]}' is not found, the model of this "
                f"topic is '{self.model_name}'"
            )
        if request.model_version and not entry.model_version:
            entry.model_version = request.model_version
            version = self._find(request.model_version)
        admitted = version.signature.admit(request.inputs, request.outputs)
        entry.rows, entry.data, entry.shapes = admitted
        said = entry.__dict__
        for name, field in request_fields(request):
            if name not in said:
                setattr(entry, name, field)
        if request.id and not entry.id:
            entry.id = checked_id(request.id)
        if entry.content_type == AVRO:
            version.layouts.learn(value, request, entry)
        return version

    def _find(self, text: str) -> _Version:
        return find_version(self._versions, text, self.model_name)


def by_text(versions: Mapping[int, Item]) -> dict[str, Item]:
    """Return what there is of each version by its number as text; ``""`` is the highest (MR-07)."""
    found = {str(number): item for number, item in versions.items()}
    if versions:
        found[""] = versions[max(versions)]
    return found


def find_version(versions: Mapping[str, Item], text: str, model_name: str) -> Item:
    """Return what there is of a version that a request asks for.

    Args:
        versions: As `by_text` returned them.
        text: The version, ``""`` is the highest.
        model_name: For errors.

    Raises:
        NotFound: There is none.
    """
    version = versions.get(text)
    if version is None and text.isdecimal() and text.isascii():
        # Version 0 never exists (MR-07); without its zeros it would be ``""``, the highest.
        version = versions.get(text.lstrip("0") or "0")
    if version is not None:
        return version
    if not versions:
        raise NotFound(
            f"Request for unknown model: '{model_name}' has no available versions",
            reason=Reason.UNKNOWN_VERSION,
        )
    raise NotFound(
        f"Request for unknown model: '{model_name}' version {text[:20]} is not found",
        reason=Reason.UNKNOWN_VERSION,
    )


def digested(keyed: Sequence[Entry]) -> list[Entry]:
    """Return those that became requests, with their digests: here, where a large block is in a thread (FAULTS B2)."""
    found = [entry for entry in keyed if entry.rows]
    for entry in found:
        entry.digest = request_digest(entry)
    return found


def failed(entry: Entry, error: InferError) -> Failure:
    """Return the failure of a record that became no request; its entry holds no data any more."""
    entry.rows, entry.data, entry.shapes = 0, (), ()
    if len(entry.model_version) > MAX_VERSION_CHARS:
        entry.model_version = ""  # it comes back in the answer, and no such version exists
    return Failure(entry, error, error.reason in _DEAD)


def unexpected(entry: Entry, cause: Exception) -> UndecodableRecord:
    """Return the error of a record that made a parser raise what no parser should."""
    error = UndecodableRecord(
        f"the value cannot be read as {entry.content_type} ({type(cause).__name__})"
    )
    error.__cause__ = cause
    return error
