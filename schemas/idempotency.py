"""Idempotency: what makes two requests of one key the same, and which answers are kept for repeats (DELIVERY P-17).

Nothing but the key says that a request is a repeat: Triton's clients repeat ids, and equal payloads are asked twice
on purpose (FAULTS B103). The digest only tells a repeat from another request under a key that was used before.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

from headrace.schemas.batch import Entry
from headrace.schemas.codec import error_of
from headrace.schemas.errors import KeyReused, Reason, Unsupported
from headrace.schemas.record import REASON, STATUS, Headers

DIGEST_BYTES = 16

UNKEPT = frozenset(
    (
        # The fate of one try: another one may do better.
        Reason.TIMEOUT_EXPIRED,
        Reason.DEADLINE_PASSED,
        Reason.CANCELLED,
        # Not the model's answer: said again at no cost, and the caller may mend it.
        Reason.REPLY_TOPIC_REFUSED,
        Reason.INVALID_HEADER,
        Reason.IDEMPOTENCY_KEY_REUSED,
        Reason.SEQUENCE_UNKNOWN,
        Reason.SEQUENCE_EXPIRED,
        Reason.SEQUENCE_LOST,
        # The store's trouble.
        Reason.CLAIM_MISSING,
        Reason.CLAIM_MISMATCH,
        Reason.CLAIM_REFUSED,
        Reason.CLAIM_UNREACHABLE,
    )
)
"""Reasons of errors that no repeat is answered with, beside those of errors that are retriable."""

OWN_FATE = frozenset(
    (Reason.TIMEOUT_EXPIRED.value, Reason.DEADLINE_PASSED.value, Reason.CANCELLED.value)
)
"""Reason words that are about one caller: whoever follows its request does not share them."""


def request_digest(entry: Entry) -> bytes:
    """Return a digest of what a request asks for: version, inputs, outputs, parameters, and its place in a sequence.

    Its id, its address, its deadline, and how it is queued may differ from one try to the next, and the format of its
    value: what counts are the tensors in it.

    Args:
        entry: Decoded.
    """
    outputs = [(output.name, sorted(output.parameters.items())) for output in entry.outputs]
    said = (
        entry.model_version,
        entry.rows,
        entry.shapes,
        outputs,
        sorted(entry.parameters.items()),
        entry.sequence_id,
        entry.sequence_start,
        entry.sequence_end,
        [None if data is None else len(data) for data in entry.data],
    )
    made = hashlib.blake2b(repr(said).encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES)
    for data in entry.data:
        if data is not None:
            made.update(data)
    return made.digest()


def is_kept(headers: Headers) -> bool:
    """Whether repeats are answered with an answer of these headers: a result, or an error that no repeat would mend."""
    code, word = outcome_of(headers)
    return code == "OK" or _is_lasting(code, word)


def outcome_of(headers: Headers) -> tuple[str, str]:
    """Return an answer's status and reason word."""
    code, word = b"OK", b""
    for name, value in headers:
        if name == STATUS:
            code = value
        elif name == REASON:
            word = value
    return code.decode(), word.decode()


@lru_cache(maxsize=128)
def _is_lasting(code: str, word: str) -> bool:
    error = error_of(code, word, "")
    return not error.retriable and error.reason not in UNKEPT


def key_reused(key: bytes) -> KeyReused:
    """Return the error of a request that is no repeat of the one that used its key first."""
    return KeyReused(
        f"idempotency key '{key.decode()}' was used before for another request: its inputs, outputs, parameters or "
        "version differ, expected a new key"
    )


def not_remembered(model_name: str, key: bytes) -> Unsupported:
    """Return the error of a request with a key whose answer nobody would remember."""
    return Unsupported(
        f"the request has the idempotency key '{key.decode()}', and answers of model '{model_name}' are not "
        "remembered (--idempotency-window-secs or its parameter idempotency_window_ms is 0), expected none"
    )
