"""Requests and results as values of a Faust stream: what a record becomes, and what a value is written as.

A foreign record never ends a pipeline: what cannot be read, and a result that is an error, come as an `InferError` in
the place of the value (FAULTS B32), so an agent decides by ``isinstance`` and nothing is raised into its stream. Pure,
and without Faust.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from headrace.schemas.batch import Entry
from headrace.schemas.claim_check import claimed
from headrace.schemas.codec import (
    decode_request,
    decode_response,
    encode_error_value,
    encode_request,
    encode_response,
)
from headrace.schemas.errors import Code, InferError, UndecodableRecord
from headrace.schemas.headers import find_header, read_headers
from headrace.schemas.infer import InferRequest, InferResponse
from headrace.schemas.record import (
    CLAIM_CHECK,
    CONTENT_TYPE,
    HEADER_LENGTH,
    ID,
    MODEL_NAME,
    MODEL_VERSION,
    REASON,
    STATUS,
    Header,
    Record,
)

Request: TypeAlias = InferRequest | InferError
"""What a record of a requests topic is read as."""

Result: TypeAlias = InferResponse | InferError
"""What a record of a results topic is read as: the response, or why there is none."""

Written: TypeAlias = tuple[bytes, list[Header]]

T = TypeVar("T")

_HEADER_FIELDS = (
    "id",
    "model_version",
    "sequence_id",
    "sequence_start",
    "sequence_end",
    "priority",
    "timeout_us",
)
"""Fields of a request that headers say; a value may say them too, and then the header counts."""


def read_request(record: Record) -> Request:
    """Read a record of a requests topic, in any of the content types; headers count before the value."""
    entry = Entry()

    def read() -> InferRequest:
        wrong = read_headers(entry, record.headers)
        if isinstance(wrong, InferError):
            raise wrong
        if not record.value:
            raise UndecodableRecord(
                f"the value is empty, expected a request in {entry.content_type}"
            )
        request = decode_request(record.value, entry.content_type, record.headers)
        said = entry.__dict__
        found = {name: said[name] for name in _HEADER_FIELDS if name in said}
        return request._replace(**found) if found else request

    return _read(read, "a request")


def read_result(record: Record) -> Result:
    """Read a record of a results topic, in any of the content types."""

    def read() -> InferResponse:
        if not record.value and find_header(record.headers, CLAIM_CHECK) is not None:
            raise claimed()
        return decode_response(record.value, record.headers)

    return _read(read, "a result")


def write_request(request: InferRequest, content_type: str) -> Written:
    """Write a request as a record's value and headers.

    Raises:
        InvalidRequest: The format cannot hold it.
    """
    value, headers = encode_request(request, content_type)
    return value, list(headers)


def write_result(result: Result, content_type: str) -> Written:
    """Write a result as a record's value and headers; whose answer it is (``source``) is for who sends it to say.

    Raises:
        InvalidRequest: The format cannot hold it.
    """
    if isinstance(result, InferError):
        encoded = encode_error_value("", ("", ""), result, content_type)
        headers = [(STATUS, result.code.encode()), (REASON, result.reason.encode())]
    else:
        encoded = encode_response(result, content_type)
        headers = [
            (MODEL_NAME, result.model_name.encode()),
            (MODEL_VERSION, result.model_version.encode()),
            (STATUS, Code.OK.encode()),
        ]
        if result.id:
            headers.append((ID, result.id.encode()))
    headers.insert(0, (CONTENT_TYPE, encoded.content_type.encode()))
    if encoded.length is not None:
        headers.append((HEADER_LENGTH, b"%d" % encoded.length))
    return encoded.value, headers


def key_of(value: object) -> bytes | None:
    """Return the key that a value's record has: a request's sequence id as text, None for anything else (DESIGN §4)."""
    if isinstance(value, InferRequest) and value.sequence_id:
        return str(value.sequence_id).encode()
    return None


def _read(read: Callable[[], T], what: str) -> T | InferError:
    """Read foreign bytes: whatever is wrong with them becomes the value."""
    try:
        return read()
    except InferError as error:
        return error
    except AssertionError:
        raise  # our own bug
    except Exception as exc:  # noqa: BLE001  # the guarded place: whatever foreign bytes made a parser do
        unread = UndecodableRecord(f"the record cannot be read as {what} ({type(exc).__name__})")
        unread.__cause__ = exc
        return unread
