"""Claim checks: a record's value that is kept in a store, and the header that stands for it (DESIGN §4).

The header ``claim-check`` is a JSON object of exactly three members, UTF-8, at most `MAX_HEADER_BYTES` long:

    {"url":"s3://bucket/claims/2025-06-01T13/1748782800123-6f…","size":64000123,"sha256":"9f86…"}

``url`` lies below the URL that everybody who reads such records has configured, ``size`` counts the value's bytes and
``sha256`` is the lowercase hexadecimal digest of them. The record's own value is then empty. All other headers speak
of the value in the store: its ``content-type`` above all.

A URL is never followed: what stands behind the configured one is taken as a name in that store, of a few harmless
characters, so that no client can have a worker read another file or ask another host.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import NamedTuple

from headrace.schemas.errors import InvalidRequest, Reason, Unsupported
from headrace.schemas.record import CLAIM_CHECK, Headers, Record

MAX_HEADER_BYTES = 4096
MAX_NAME_CHARS = 512
"""Of an object's name behind the store's URL."""

MAX_SIZE = 2**63 - 1
_SHOWN_BYTES = 60
_MEMBERS = {"url", "size", "sha256"}
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9._-]*)(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
"""No segment begins with a dot; nothing that a URL, a shell or fsspec gives a meaning: ``%``, ``?``, ``*``, ``::``."""


class Claim(NamedTuple):
    """Where a value is kept, and what it must be.

    Attributes:
        url: Of the object.
        size: Bytes of the value, at least 1.
        sha256: Digest of the value, lowercase hexadecimal.
    """

    url: str
    size: int
    sha256: str


class ResolvedRecord:
    """A consumed record with the value that its claim stands for, and without the header.

    Attributes:
        original: The record as it is in the log.
    """

    __slots__ = (
        "headers",
        "key",
        "offset",
        "original",
        "partition",
        "timestamp",
        "topic",
        "value",
    )

    def __init__(self, record: Record, value: bytes) -> None:
        """Take everything but value and header from ``record``."""
        self.original = record
        self.topic = record.topic
        self.partition = record.partition
        self.offset = record.offset
        self.timestamp = record.timestamp
        self.key = record.key
        self.value: bytes | None = value
        self.headers: Headers = [header for header in record.headers if header[0] != CLAIM_CHECK]


def original(record: Record) -> Record:
    """Return a record as it is in the log: what a copy of it must hold."""
    return record.original if isinstance(record, ResolvedRecord) else record


def claimed() -> Unsupported:
    """Return the error of a record whose value is in a store; where none is configured this is its answer."""
    return Unsupported(
        f"header '{CLAIM_CHECK}' names a value that is kept in a store, and none is configured here "
        "(--claim-check-url), expected the value in the record",
        reason=Reason.UNSUPPORTED_CLAIM_CHECK,
    )


def claim_for(url: str, value: bytes) -> Claim:
    """Return the claim of a value that is kept under a URL."""
    return Claim(url, len(value), hashlib.sha256(value).hexdigest())


def write_claim(claim: Claim) -> bytes:
    """Return the header's value."""
    return json.dumps(claim._asdict(), ensure_ascii=False, separators=(",", ":")).encode()


def read_claim(raw: bytes | None) -> Claim:
    """Read the header's value.

    Raises:
        InvalidRequest: It is not exactly what `write_claim` could have written, whitespace and order aside.
    """
    if raw is None or len(raw) > MAX_HEADER_BYTES:
        raise _malformed(raw, f"at most {MAX_HEADER_BYTES} bytes of JSON")
    try:
        members = json.loads(raw.decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as exc:
        raise _malformed(raw, "JSON with each member once") from exc
    if not isinstance(members, dict) or members.keys() != _MEMBERS:
        raise _malformed(raw, "the members url, size and sha256, and no others")
    url, size, digest = members["url"], members["size"], members["sha256"]
    if not isinstance(url, str) or not url:
        raise _malformed(raw, "a text as url")
    if type(size) is not int or not 0 < size <= MAX_SIZE:
        raise _malformed(raw, f"a whole number from 1 to {MAX_SIZE} as size")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise _malformed(raw, "64 lowercase hexadecimal digits as sha256")
    return Claim(url, size, digest)


def claim_of(record: Record) -> Claim | None:
    """Return a record's claim, None where its value is its own; of several headers the last one counts.

    Raises:
        InvalidRequest: The header is malformed, or the record has a value of its own beside it.
    """
    found = [raw for name, raw in record.headers if name == CLAIM_CHECK]
    if not found:
        return None
    claim = read_claim(found[-1])
    if record.value:
        raise InvalidRequest(
            f"the record has a value of {len(record.value)} bytes beside the header '{CLAIM_CHECK}', "
            "expected an empty one",
            reason=Reason.INVALID_HEADER,
        )
    return claim


def name_in(base: str, url: str) -> str:
    """Return an object's name in the store at ``base``, which has no slash at its end.

    Raises:
        InvalidRequest: The URL is not below ``base``, or what is left of it is no name of an object.
    """
    before, name = url[: len(base) + 1], url[len(base) + 1 :]
    if before != base + "/" or len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name):
        shown = url[:_SHOWN_BYTES] + ("…" if len(url) > _SHOWN_BYTES else "")
        raise InvalidRequest(
            f"header '{CLAIM_CHECK}' names {shown!r}, expected an object below the store's own URL (--claim-check-url)",
            reason=Reason.CLAIM_REFUSED,
        )
    return name


def check_value(claim: Claim, value: bytes) -> None:
    """See that a value is the one that was claimed.

    What the store really has is not told: a client may not learn it by asking.

    Raises:
        InvalidRequest: Size or digest differ.
    """
    if len(value) != claim.size:
        raise _mismatch(claim, f"has not the {claim.size} bytes")
    if hashlib.sha256(value).hexdigest() != claim.sha256:
        raise _mismatch(claim, f"has not the SHA-256 {claim.sha256}")


def _mismatch(claim: Claim, what: str) -> InvalidRequest:
    return InvalidRequest(
        f"the value at {claim.url} {what} that header '{CLAIM_CHECK}' names",
        reason=Reason.CLAIM_MISMATCH,
    )


def _malformed(raw: bytes | None, expected: str) -> InvalidRequest:
    shown = "null"
    if raw is not None:
        shown = repr(raw[:_SHOWN_BYTES])[1:] + ("…" if len(raw) > _SHOWN_BYTES else "")
    return InvalidRequest(
        f"header '{CLAIM_CHECK}' is {shown}, expected {expected}", reason=Reason.INVALID_HEADER
    )


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member stands twice")
    return members
