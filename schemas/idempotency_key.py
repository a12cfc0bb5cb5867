"""What an idempotency key may look like (DELIVERY P-17)."""

from __future__ import annotations

import re
from enum import Enum

from headrace.schemas.errors import InvalidRequest, Reason
from headrace.schemas.record import IDEMPOTENCY_KEY

MAX_KEY_BYTES = 255
"""Of a key: it is a record's key, and stands in the record of the remembered answer."""

SHOWN_CHARS = 60

_KEY = re.compile(rb"[\x21-\x7e]{1,%d}" % MAX_KEY_BYTES)


class Note(Enum):
    """What `headrace.schemas.headers.read_headers` has to say of a request that is not wrong."""

    KEYED = "keyed"
    """It has an idempotency key."""


def checked_key(raw: bytes | None, name: str = IDEMPOTENCY_KEY) -> bytes:
    """Return a key as it is.

    Args:
        raw: The header's value.
        name: The header's name where it came from.

    Raises:
        InvalidRequest: It is no key.
    """
    if raw is not None and _KEY.fullmatch(raw):
        return raw
    shown = "null" if raw is None else repr(raw[:SHOWN_CHARS])[1:]
    more = "…" if raw is not None and len(raw) > SHOWN_CHARS else ""
    raise InvalidRequest(
        f"header '{name}' is {shown}{more}, expected 1 to {MAX_KEY_BYTES} visible ASCII characters",
        reason=Reason.INVALID_HEADER,
    )
