"""Request headers: from a record into an entry, and from a client onto a record.

Names are spelled in `headrace.schemas.record`. Values are UTF-8 text, except correlation values, ``x-`` headers and the
trace context, which are opaque and come back untouched (DESIGN §4, FAULTS R10). Reading goes on after a
bad header, so that the error still finds its way to the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from headrace.schemas.batch import Entry
from headrace.schemas.claim_check import claimed, read_claim
from headrace.schemas.errors import InferError, InvalidRequest, Reason, Unsupported
from headrace.schemas.idempotency_key import Note, checked_key
from headrace.schemas.infer import InferRequest, SequenceId
from headrace.schemas.record import (
    ACCEPT,
    ATTEMPT,
    AVRO,
    CLAIM_CHECK,
    CONTENT_TYPE,
    CONTENT_TYPES,
    CORRELATION_ID,
    DEADLINE_MS,
    HEADER_LENGTH,
    ID,
    IDEMPOTENCY_KEY,
    MODEL_VERSION,
    OPAQUE_PREFIX,
    PRIORITY,
    REPLY_PARTITION,
    REPLY_TOPIC,
    SEQUENCE_END,
    SEQUENCE_ID,
    SEQUENCE_ID_TYPE,
    SEQUENCE_START,
    SPRING_CORRELATION_ID,
    SPRING_REPLY_PARTITION,
    SPRING_REPLY_TOPIC,
    TIMEOUT_US,
    TRACEPARENT,
    TRACESTATE,
    Header,
    Headers,
)

MAX_UINT64 = 2**64 - 1
MAX_INT64 = 2**63 - 1
MAX_PARTITION = 2**31 - 1
MAX_ATTEMPT = 2**31 - 1
MAX_ID_BYTES = 8 * 1024
"""Bytes of a request's id: it stands in its answer twice, and an answer must fit into a record."""
MAX_ECHO_BYTES = 32 * 1024
"""Bytes of the names and values of all headers that come back untouched, for the same reason."""
_SHOWN_BYTES = 60
_MEDIA_TYPES = {name.encode(): name for name in CONTENT_TYPES}


def _invalid(name: str, raw: bytes | None, expected: str) -> InvalidRequest:
    """Build the error of a header: its name, the value (escaped, shortened) and what was expected."""
    shown = "null"
    if raw is not None:
        shown = repr(raw[:_SHOWN_BYTES])[1:] + ("…" if len(raw) > _SHOWN_BYTES else "")
    return InvalidRequest(
        f"header '{name}' is {shown}, expected {expected}", reason=Reason.INVALID_HEADER
    )


def text_of(name: str, raw: bytes | None) -> str:
    """Return a header's value as text.

    Raises:
        InvalidRequest: It is null or not UTF-8.
    """
    try:
        return raw.decode()  # type: ignore[union-attr]  # None is met below
    except (AttributeError, UnicodeDecodeError):
        raise _invalid(name, raw, "UTF-8 text") from None


def checked_id(text: str) -> str:
    """Return a request's id as it is.

    Raises:
        InvalidRequest: It is longer than an answer can hold.
    """
    if len(text) > MAX_ID_BYTES // 4 and len(text.encode()) > MAX_ID_BYTES:
        raise InvalidRequest(
            f"the id has {len(text)} characters, expected at most {MAX_ID_BYTES} bytes",
            reason=Reason.INVALID_HEADER,
        )
    return text


def number_of(name: str, raw: bytes | None, top: int) -> int:
    """Return a header's value as a whole number from 0 to ``top``: ASCII digits and nothing else.

    Raises:
        InvalidRequest: It is anything else.
    """
    if raw is not None and raw.isdigit() and len(raw) <= len(str(top)):
        number = int(raw)
        if number <= top:
            return number
    raise _invalid(name, raw, f"a whole number from 0 to {top}")


def media_type(name: str, raw: bytes | None) -> str:
    """Return the content type that a header names, without its parameters, in our spelling.

    Raises:
        InvalidRequest: No such content type here.
        Unsupported: It asks for a framing, which is not offered.
    """
    known = _MEDIA_TYPES.get(raw)  # type: ignore[arg-type]  # None is met below
    if known is not None:
        return known
    first, *parameters = text_of(name, raw).lower().split(";")
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "framing":
            raise Unsupported(
                f"header '{name}' asks for framing {value.strip()[:_SHOWN_BYTES]!r}, which is not "
                "supported yet, expected a value without framing",
                reason=Reason.UNSUPPORTED_FRAMING,
            )
    media = first.strip()
    if media in CONTENT_TYPES:
        return media
    error = _invalid(name, raw, "one of " + ", ".join(CONTENT_TYPES))
    error.reason = Reason.UNKNOWN_CONTENT_TYPE
    raise error


def _content_type(entry: Entry, raw: bytes | None) -> None:
    entry.content_type = media_type(CONTENT_TYPE, raw)


def _accept(entry: Entry, raw: bytes | None) -> None:
    if raw not in (b"", b"*/*"):
        entry.accept = media_type(ACCEPT, raw)


def _spring_partition(entry: Entry, raw: bytes | None) -> None:
    if raw is None or len(raw) != 4 or raw[0] > 127:
        raise _invalid(SPRING_REPLY_PARTITION, raw, "4 bytes, a big-endian partition number")
    entry.reply_partition = int.from_bytes(raw, "big")


def _attempt(entry: Entry, raw: bytes | None) -> None:
    number = number_of(ATTEMPT, raw, MAX_ATTEMPT)
    if not number:
        raise _invalid(ATTEMPT, raw, f"a whole number from 1 to {MAX_ATTEMPT}")
    entry.set_attempt(number)


def _claim_check(_entry: Entry, raw: bytes | None) -> None:
    read_claim(raw)
    raise claimed()  # whoever has a store fetches the value and decodes the record again


def _opaque(name: str, raw: bytes | None) -> bytes:
    if raw is None:
        raise _invalid(name, raw, "any bytes")
    return raw


def _text(name: str, attribute: str) -> Callable[[Entry, bytes | None], None]:
    return lambda entry, raw: setattr(entry, attribute, text_of(name, raw))


def _number(name: str, attribute: str, top: int) -> Callable[[Entry, bytes | None], None]:
    return lambda entry, raw: setattr(entry, attribute, number_of(name, raw, top))


def _flag(name: str, attribute: str) -> Callable[[Entry, bytes | None], None]:
    def read(entry: Entry, raw: bytes | None) -> None:
        word = (raw or b"").lower()
        if word not in (b"true", b"false", b"1", b"0"):
            raise _invalid(name, raw, "true or false")
        setattr(entry, attribute, word in (b"true", b"1"))

    return read


_READERS: dict[str, Callable[[Entry, bytes | None], None]] = {
    CONTENT_TYPE: _content_type,
    ACCEPT: _accept,
    ID: _text(ID, "id"),
    MODEL_VERSION: _text(MODEL_VERSION, "model_version"),
    SEQUENCE_START: _flag(SEQUENCE_START, "sequence_start"),
    SEQUENCE_END: _flag(SEQUENCE_END, "sequence_end"),
    PRIORITY: _number(PRIORITY, "priority", MAX_UINT64),
    TIMEOUT_US: _number(TIMEOUT_US, "timeout_us", MAX_UINT64),
    DEADLINE_MS: _number(DEADLINE_MS, "deadline_ms", MAX_INT64),
    REPLY_TOPIC: _text(REPLY_TOPIC, "reply_topic"),
    REPLY_PARTITION: _number(REPLY_PARTITION, "reply_partition", MAX_PARTITION),
    SPRING_REPLY_TOPIC: _text(SPRING_REPLY_TOPIC, "reply_topic"),
    SPRING_REPLY_PARTITION: _spring_partition,
    ATTEMPT: _attempt,
    CLAIM_CHECK: _claim_check,
}
_CORRELATION_IDS = frozenset((CORRELATION_ID, SPRING_CORRELATION_ID))
_ECHOED = _CORRELATION_IDS | {TRACEPARENT, TRACESTATE}
MAX_UINT64_DIGITS = len(str(MAX_UINT64))


def read_headers(  # noqa: C901, PLR0912  # one loop per record, with no call for the usual headers
    entry: Entry, headers: Headers
) -> InferError | Note | None:
    """Set the attributes that a record's headers speak of; called once per record, first of all.

    Sets ``content_type`` always (Avro is the default), others only when present. The last of several headers of one
    name counts; correlation headers all come back.

    Returns:
        The first error; everything that could be read is set nevertheless. Else what there is to note.
    """
    entry.content_type = AVRO
    error: InferError | None = None
    note: Note | None = None
    correlation: list[Header] = []
    has_sequence = False
    sequence_id: bytes | None = None
    sequence_type: bytes | None = b"uint64"
    for header in headers:
        name, raw = header
        try:
            # The usual ones stand first, so that they cost no call.
            if name == CONTENT_TYPE and raw in _MEDIA_TYPES:
                entry.content_type = _MEDIA_TYPES[raw]
            elif name == ID:
                text = raw.decode()
                entry.id = text if len(raw) <= MAX_ID_BYTES else checked_id(text)
            elif name == SEQUENCE_ID:
                has_sequence, sequence_id = True, raw
            elif name.startswith(OPAQUE_PREFIX):
                correlation.append((name, _opaque(name, raw)))
            elif name in _ECHOED:
                if name in _CORRELATION_IDS:
                    entry.correlation_id = _opaque(name, raw)
                correlation.append((name, _opaque(name, raw)))
            elif (reader := _READERS.get(name)) is not None:
                reader(entry, raw)
            elif name == SEQUENCE_ID_TYPE:
                has_sequence, sequence_type = True, raw
            elif name == IDEMPOTENCY_KEY:
                entry.idempotency_key, note = checked_key(raw), Note.KEYED
        except InferError as exc:
            error = error or exc
        except (AttributeError, UnicodeDecodeError):
            error = error or _invalid(name, raw, "UTF-8 text")
    if correlation:
        echo = sum([len(name) + len(raw) for name, raw in correlation])
        if echo <= MAX_ECHO_BYTES:
            entry.correlation = (*correlation, *entry.correlation)  # the attempt stays last
        else:
            error = error or _too_much(echo)
    if has_sequence:
        if (
            sequence_type == b"uint64"
            and sequence_id
            and len(sequence_id) < MAX_UINT64_DIGITS
            and sequence_id.isdigit()
        ):
            entry.sequence_id = int(sequence_id)  # a number, whether it says so or not
        else:
            error = _read_sequence(entry, headers, error)
    return error or note


def _too_much(echo: int) -> InvalidRequest:
    return InvalidRequest(
        f"the headers to send back have {echo} bytes, expected at most {MAX_ECHO_BYTES}",
        reason=Reason.INVALID_HEADER,
    )


def _read_sequence(entry: Entry, headers: Headers, error: InferError | None) -> InferError | None:
    """Set the sequence id; return the error so far, else that of the sequence id."""
    try:
        entry.sequence_id = _sequence_id(headers)
    except InferError as exc:
        return error or exc
    return error


def _sequence_id(headers: Headers) -> SequenceId:
    """Read ``sequence-id`` as ``sequence-id-type`` says; without a type, digits that fit are a number."""
    found = dict(headers)
    raw = found.get(SEQUENCE_ID, b"")
    text = text_of(SEQUENCE_ID, raw)
    if SEQUENCE_ID_TYPE not in found:
        fits = raw.isdigit() and len(raw) <= len(str(MAX_UINT64)) and int(raw) <= MAX_UINT64
        return int(raw) if fits else text
    match found[SEQUENCE_ID_TYPE]:
        case b"string":
            return text
        case b"uint64":
            return number_of(SEQUENCE_ID, raw, MAX_UINT64) if raw != b"" else 0
        case other:
            raise _invalid(SEQUENCE_ID_TYPE, other, "uint64 or string")


def find_header(headers: Headers, name: str) -> bytes | None:
    """Return the value of the last header of that name, or None."""
    found = None
    for key, raw in headers:
        if key == name:
            found = raw
    return found


def header_length(headers: Headers) -> int | None:
    """Return the length of the JSON part of a value with binary tensors (SEMANTICS BN-01), None without the header.

    Raises:
        InvalidRequest: It is no whole number.
    """
    for name, raw in headers:
        if name == HEADER_LENGTH:
            return number_of(HEADER_LENGTH, raw, MAX_INT64)
    return None


class RequestOptions(NamedTuple):
    """What a client says beside the request itself.

    Attributes:
        accept: Content type of the answer; ``""`` is the request's.
        deadline_ms: Milliseconds since the epoch after which nobody waits; 0 is none.
        reply_topic: Where the answer goes; ``""`` is the model's results topic.
        reply_partition: Partition there; -1 is the request's own, modulo.
        correlation_id: Opaque bytes that come back, or ``b""``.
        idempotency_key: By which a repeat is known, or ``b""`` (DELIVERY P-17).
        extra: Further headers as they are, such as the trace context and ``x-`` headers.
    """

    accept: str = ""
    deadline_ms: int = 0
    reply_topic: str = ""
    reply_partition: int = -1
    correlation_id: bytes = b""
    idempotency_key: bytes = b""
    extra: tuple[Header, ...] = ()


NO_OPTIONS = RequestOptions()


def request_headers(  # noqa: C901, PLR0912  # a branch per header costs a call nothing where it is absent
    request: InferRequest,
    content_type: str,
    options: RequestOptions = NO_OPTIONS,
    length: int | None = None,
) -> list[Header]:
    """Return the headers of a request record: only those that say something.

    Args:
        request: Its fields that have a header.
        content_type: Of the value.
        options: What the value cannot say.
        length: Length of the JSON part where the value holds binary tensors.
    """
    add = (headers := [(CONTENT_TYPE, content_type.encode())]).append
    if request.id:
        add((ID, request.id.encode()))
    if request.model_version:
        add((MODEL_VERSION, request.model_version.encode()))
    if options.accept:
        add((ACCEPT, options.accept.encode()))
    if options.reply_topic:
        add((REPLY_TOPIC, options.reply_topic.encode()))
    if options.correlation_id:
        add((CORRELATION_ID, options.correlation_id))
    if options.idempotency_key:
        add((IDEMPOTENCY_KEY, options.idempotency_key))
    if request.priority:
        add((PRIORITY, b"%d" % request.priority))
    if request.timeout_us:
        add((TIMEOUT_US, b"%d" % request.timeout_us))
    if options.deadline_ms:
        add((DEADLINE_MS, b"%d" % options.deadline_ms))
    if request.sequence_start:
        add((SEQUENCE_START, b"true"))
    if request.sequence_end:
        add((SEQUENCE_END, b"true"))
    if options.reply_partition >= 0:
        add((REPLY_PARTITION, b"%d" % options.reply_partition))
    if length is not None:
        add((HEADER_LENGTH, b"%d" % length))
    if request.sequence_id:
        is_text = isinstance(request.sequence_id, str)
        add((SEQUENCE_ID, str(request.sequence_id).encode()))
        add((SEQUENCE_ID_TYPE, b"string" if is_text else b"uint64"))
    headers += options.extra
    return headers
