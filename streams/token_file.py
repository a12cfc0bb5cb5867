"""The form of a file of bearer tokens."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from headrace.schemas.errors import ConfigError
from headrace.streams.access import Tokens

_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
"""RFC 6750's b64token; it has no colon."""

_HASHED = "sha256"
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


def read_tokens(path: Path) -> Tokens:
    """Read a file of tokens.

    A line is ``token`` or ``name:token``, or with ``sha256:`` and the digest of a token in hex instead of it; ``#``
    begins a comment. Names are for whoever keeps the file.

    Raises:
        ConfigError: It cannot be read, has no token, or a line has another form; the line is not repeated.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise ConfigError(f"the file cannot be read: {reason}", file=str(path)) from None
    digests = set()
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if entry:
            digest = _digest(entry)
            if digest is None:
                raise ConfigError(
                    "expected a token of letters, digits and -._~+/, or name:token, "
                    "or name:sha256:digest with 64 hex digits",
                    file=str(path),
                    field=f"line {number}",
                )
            digests.add(digest)
    if not digests:
        raise ConfigError("expected a token on at least one line", file=str(path))
    return Tokens(digests)


def _digest(entry: str) -> bytes | None:
    """Return the digest of a line's token, None where it has no such form."""
    *before, last = (part.strip() for part in entry.split(":"))
    if before and before[-1] == _HASHED:
        fits = len(before) <= 2 and _DIGEST.fullmatch(last)
        return bytes.fromhex(last) if fits else None
    if len(before) > 1 or not _TOKEN.fullmatch(last):
        return None
    return hashlib.sha256(last.encode()).digest()
