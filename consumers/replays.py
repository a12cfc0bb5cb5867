"""Answers to repeats: what was remembered, or what the request in flight got, under the repeat's own name (P-17).

The value is the same bytes where the repeat wants the same format and has the same id; else it is written anew from
what it says. A value in the claim-check store is not fetched: its claim is sent once more.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.schemas.answers import Answer, answer_binary
from headrace.schemas.batch import Entry
from headrace.schemas.cloudevents import PREFIX as EVENT_PREFIX
from headrace.schemas.codec import decode_response, encode_error_value, encode_response
from headrace.schemas.errors import InferError
from headrace.schemas.infer import InferResponse
from headrace.schemas.record import (
    ATTEMPT,
    CLAIM_CHECK,
    CONTENT_TYPE,
    FINAL,
    HEADER_LENGTH,
    ID,
    MODEL_NAME,
    MODEL_VERSION,
    REASON,
    REPLAYED,
    RESPONSE_INDEX,
    SOURCE,
    STATUS,
    Header,
    Headers,
)
from headrace.schemas.remembered import KeptAnswer

_FIRST = (CONTENT_TYPE, MODEL_NAME, MODEL_VERSION, STATUS)
_FURTHER = (REASON, RESPONSE_INDEX, FINAL, HEADER_LENGTH, CLAIM_CHECK)
_KEPT = frozenset((*_FIRST, *_FURTHER, ID))
_TRUE = b"true"


def kept_answer(value: bytes, headers: Headers) -> KeptAnswer:
    """Return what is kept of an answer: not whose it was, but for the id that stands in its value.

    An answer that is a CloudEvent stays that event: a repeat of it has its id.
    """
    return KeptAnswer(
        value, [h for h in headers if h[0] in _KEPT or h[0].startswith(EVENT_PREFIX)]
    )


def replayed(entry: Entry, answers: Sequence[KeptAnswer]) -> list[Answer]:
    """Return the answers to a repeat.

    Args:
        entry: The repeat.
        answers: Of the first request with its key.
    """
    return [(entry, *_answer(entry, answer)) for answer in answers]


def _answer(entry: Entry, answer: KeptAnswer) -> tuple[bytes, Headers]:
    named = dict(answer.headers)
    value = answer.value
    wanted = (entry.accept or entry.content_type).encode()
    is_same = named.get(CONTENT_TYPE) == wanted and named.get(ID, b"") == entry.id.encode()
    is_same = is_same or entry.passed is not None  # a mapping's own format holds no id
    if not is_same and CLAIM_CHECK not in named:
        value, named = _rewritten(entry, answer, named)
    headers: list[Header] = [(name, named[name]) for name in _FIRST if name in named]
    headers.append((ATTEMPT, b"%d" % entry.attempt))
    tp = entry.tp
    headers.append((SOURCE, f"{tp.topic}/{tp.partition}/{entry.record.offset}".encode()))
    if entry.id:
        headers.append((ID, entry.id.encode()))
    headers += [(name, named[name]) for name in _FURTHER if name in named]
    headers += [header for header in answer.headers if header[0].startswith(EVENT_PREFIX)]
    headers.append((REPLAYED, _TRUE))
    headers += entry.correlation if entry.attempt == 1 else entry.correlation[:-1]
    return value, headers


def _rewritten(
    entry: Entry, answer: KeptAnswer, named: dict[str, bytes]
) -> tuple[bytes, dict[str, bytes]]:
    """Return the answer's value in the repeat's format with its id, and the headers that go with it."""
    content_type = entry.accept or entry.content_type
    model = (named.get(MODEL_NAME, b"").decode(), named.get(MODEL_VERSION, b"").decode())
    named = {name: raw for name, raw in named.items() if name != HEADER_LENGTH}
    try:
        said = decode_response(answer.value, answer.headers)
        response = InferResponse(said.outputs, entry.id, *model, said.parameters)
        found = encode_response(response, content_type, answer_binary(entry))
    except InferError as error:
        # The answer was an error, or this format cannot hold it (FP16 in JSON, PB-45).
        found = encode_error_value(entry.id, model, error, content_type)
        named |= {STATUS: error.code.encode(), REASON: error.reason.encode()}
    named[CONTENT_TYPE] = found.content_type.encode()
    if found.length is not None:
        named[HEADER_LENGTH] = b"%d" % found.length
    return found.value, named
