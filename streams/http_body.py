"""Bodies over HTTP: read within a limit, decompressed within the same limit, compressed on request.

SEMANTICS PB-24 (size limit, also on what a compressed body unfolds to) and BN-08 (gzip and deflate).
"""

from __future__ import annotations

import asyncio
import zlib

from aiohttp import web
from headrace.schemas.errors import DeadlineExceeded, InvalidRequest, Reason, Unsupported

MIN_COMPRESSED_BYTES = 1_024
"""Answers below are sent as they are: compressing them costs more than it saves."""

OFF_LOOP_BYTES = 65_536
"""Bodies from this size on are (de)compressed in a thread: zlib releases the GIL, the loop goes on."""

MAX_CHUNKS = 65_536
"""Non-empty chunks of a body that comes in chunks (SEMANTICS PB-24): each costs far more than its bytes."""

ENCODINGS = ("gzip", "deflate")
_WBITS = {"gzip": 31, "deflate": 15}


async def read_body(request: web.BaseRequest, max_bytes: int, timeout_s: float) -> bytes:
    """Read a request's body and undo its ``Content-Encoding``.

    Raises:
        InvalidRequest: It is above the limits, before or after decompression, or broken.
        Unsupported: Another encoding than gzip or deflate.
        DeadlineExceeded: It did not come within ``timeout_s``.
    """
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in (*ENCODINGS, "identity", ""):
        raise Unsupported(
            f"Unsupported content encoding: {encoding[:60]!r}, expected gzip or deflate"
        )
    length = request.content_length
    if length is not None and length > max_bytes:
        raise _too_large(length, max_bytes)
    if "Expect" in request.headers:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    body = await _received(request, max_bytes, timeout_s)
    if encoding not in ENCODINGS:
        return body
    if len(body) < OFF_LOOP_BYTES:
        return decompress(body, encoding, max_bytes)
    return await asyncio.to_thread(decompress, body, encoding, max_bytes)


async def _received(request: web.BaseRequest, max_bytes: int, timeout_s: float) -> bytes:
    """Return the body as it comes."""
    content = request.content
    try:
        if content.is_eof():
            body = content.read_nowait()
            if len(body) > max_bytes:
                raise _too_large(len(body), max_bytes)
            return body
        async with asyncio.timeout(timeout_s):
            if "Transfer-Encoding" in request.headers:
                return await _read_chunks(request, max_bytes)
            return await _read_all(request, max_bytes)
    except TimeoutError:
        raise DeadlineExceeded(
            f"the request's body did not come within {timeout_s} s",
            reason=Reason.DEADLINE_PASSED,
        ) from None
    except web.RequestPayloadError as error:
        # One line: the parser shows the broken bytes below it.
        raise InvalidRequest(
            f"the request's body is broken: {str(error).partition(chr(10))[0][:100]}"
        ) from error


async def _read_all(request: web.BaseRequest, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := await request.content.readany():
        size += len(part)
        if size > max_bytes:
            raise _too_large(size, max_bytes)
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _read_chunks(request: web.BaseRequest, max_bytes: int) -> bytes:
    """Read a body in chunks, and count them: the parser keeps no more than a few thousand unread."""
    parts: list[bytes] = []
    size = count = 0
    while True:
        part, is_end = await request.content.readchunk()
        if not part and not is_end:
            return b"".join(parts)
        size += len(part)
        count += is_end
        if size > max_bytes:
            raise _too_large(size, max_bytes)
        if count > MAX_CHUNKS:
            raise InvalidRequest(
                f"Chunked request body exceeds maximum of {MAX_CHUNKS} non-empty chunks. Send fewer or larger "
                "HTTP chunks."
            )
        parts.append(part)


def _too_large(size: int, max_bytes: int) -> InvalidRequest:
    # Not `TooLarge`, which is 413 here: Triton answers 400 (SEMANTICS PB-24).
    return InvalidRequest(
        f"request body has {size} bytes or more, which exceeds the maximum allowed value of "
        f"{max_bytes} bytes. Use --http-max-input-size to increase the limit."
    )


def decompress(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Undo gzip or deflate; never unfolds more than ``max_bytes``.

    Raises:
        InvalidRequest: The body is broken, cut short or unfolds to more.
    """
    unfold = zlib.decompressobj(_WBITS[encoding])
    try:
        # One byte more than allowed tells "just fits" from "too large".
        plain = unfold.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise InvalidRequest(f"the body is no valid {encoding}: {error}") from error
    if len(plain) > max_bytes:
        raise _too_large(len(plain), max_bytes)
    if not unfold.eof:
        raise InvalidRequest(f"the body is no valid {encoding}: it ends too early")
    return plain


def chosen_encoding(accept: str) -> str:
    """Return ``gzip`` or ``deflate``, whichever an ``Accept-Encoding`` prefers, or ``""`` for neither."""
    best, best_weight = "", 0.0
    for item in accept.split(","):
        name, _, parameter = item.strip().partition(";")
        name = name.strip().lower()
        if name not in ENCODINGS:
            continue
        key, _, raw = parameter.strip().partition("=")
        try:
            weight = float(raw) if key.strip().lower() == "q" else 1.0
        except ValueError:
            continue
        if weight > best_weight:
            best, best_weight = name, weight
    return best


def compress(body: bytes, encoding: str) -> bytes:
    """Return the body in gzip or deflate form."""
    fold = zlib.compressobj(wbits=_WBITS[encoding], level=zlib.Z_BEST_SPEED)
    return fold.compress(body) + fold.flush()
