"""How dead letters are shown: tables, and JSON in ASCII; clients' words never reach a terminal as they are."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime

from headrace.deploy.console import out, plain, print_table
from headrace.schemas.codec import decode_request
from headrace.schemas.dead_letter import DeadLetter
from headrace.schemas.errors import InferError
from headrace.schemas.headers import find_header, media_type
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import AVRO, CONTENT_TYPE
from headrace.schemas.tensor import Tensor
from headrace.streams.dead_letter_redrive import Planned
from headrace.streams.dead_letter_topic import LetterRow

SHOWN_CHARS = 200
"""Characters of a key or a header's value that are shown."""

SHOWN_ELEMENTS = 8
"""Elements of a tensor that are shown."""

PREVIEW_BYTES = 256
"""Bytes of a value that are shown."""

HEX_COLUMNS = 16


def print_letters(rows: Sequence[LetterRow], total: int) -> None:
    """Print a table of letters."""
    if not rows:
        out.print("No dead letter matches.")
        return
    print_table(
        ("id", "dead letter", "error"),
        [(row.id, "\n".join(_facts(row)), "\n".join(_errors(row.letter))) for row in rows],
        title=f"{len(rows)} of {total} dead letters",
        lines=True,
    )


def _facts(row: LetterRow) -> Iterator[str]:
    """Yield lines, for nine columns leave none of them room in a terminal."""
    yield f"{time_text(row.written_ms)} {row.state}"
    yield _source(row.letter)
    size = "null" if row.value_bytes is None else f"{row.value_bytes} bytes"
    yield f"{_model(row)}, attempts {row.letter.attempts}, {size}"


def _errors(letter: DeadLetter) -> Iterator[str]:
    yield plain(letter.reason)
    yield _error(letter)


def print_planned(planned: Sequence[Planned], sent: Collection[object], *, is_dry: bool) -> None:
    """Print what a redrive would do, or did; ``sent`` are ids."""
    if not planned:
        out.print("No dead letter matches.")
        return
    going = sum(not one.refusal for one in planned)
    title = (
        f"dry run: {going} of {len(planned)} dead letters would be sent; --execute sends them"
        if is_dry
        else f"{len(sent)} of {len(planned)} dead letters sent"
    )
    print_table(
        ("id", "model", "reason", "to", "attempt", "outcome"),
        [
            (
                one.row.id,
                _model(one.row),
                plain(one.row.letter.reason),
                f"{plain(one.target.topic)}/{one.target.partition}",
                one.attempt,
                _outcome(one, is_sent=one.row.id in sent, is_dry=is_dry),
            )
            for one in planned
        ],
        title=title,
    )


def _outcome(one: Planned, *, is_sent: bool, is_dry: bool) -> str:
    if one.refusal:
        return f"refused: {plain(one.refusal)}"
    if is_dry:
        return "would be sent"
    return "sent" if is_sent else "not sent"


def print_letter(row: LetterRow, letter: DeadLetter) -> None:
    """Print everything about one letter."""
    source = _source(letter)
    facts = (
        ("state", row.state),
        ("source", source),
        ("timestamp", time_text(letter.timestamp_ms)),
        ("written", time_text(row.written_ms)),
        ("model", _model(row)),
        ("status", plain(letter.status)),
        ("reason", plain(letter.reason)),
        ("error", _error(letter)),
        ("attempts", letter.attempts),
        ("key", _sized(letter.key, row.key_bytes)),
        ("value", "null" if row.value_bytes is None else f"{row.value_bytes} bytes"),
    )
    print_table(("dead letter", str(row.id)), facts)
    if not letter.is_whole:
        sentence = f"It is not kept whole: the original is {source}, if that is still there."
        out.print(sentence, markup=False)
    if letter.headers:
        headers = [(plain(name), _shown(value)) for name, value in letter.headers]
        print_table(("header", "value"), headers)
    for line in (*request_lines(letter), *preview_lines(letter.value)):
        out.print(line, markup=False)


def request_lines(letter: DeadLetter) -> Iterator[str]:
    """Yield what the value says as a request, or why it says nothing."""
    if not letter.value:
        return
    try:
        request = _decoded(letter)
        lines = [_request_line(request), *map(_tensor_line, request.inputs)]
    except InferError as exc:
        yield f"no request: {plain(exc.detail)}"
    except Exception as exc:  # noqa: BLE001  # foreign bytes: whatever they make a parser do is no reason to show less
        yield f"no request: {type(exc).__name__}"
    else:
        yield from lines


def _decoded(letter: DeadLetter) -> InferRequest:
    raw = find_header(letter.headers, CONTENT_TYPE)
    content_type = AVRO if raw is None else media_type(CONTENT_TYPE, raw)
    return decode_request(letter.value or b"", content_type, letter.headers)


def _request_line(request: InferRequest) -> str:
    parts = [f"request {request.id!r}" if request.id else "request"]
    if request.model_version:
        parts.append(f"for version {request.model_version!r}")
    if request.outputs:
        parts.append(f"outputs {[output.name for output in request.outputs]}")
    if request.parameters:
        parts.append(f"parameters {dict(request.parameters)!r}")
    return ", ".join(parts)


def _tensor_line(tensor: Tensor) -> str:
    line = f"  input {tensor.name!r} {tensor.datatype.value} {list(tensor.shape)}"
    try:
        elements = tensor.numpy().ravel()
    except InferError as exc:
        return f"{line}: {plain(exc.detail)}"
    more = ", …" if elements.size > SHOWN_ELEMENTS else ""
    shown = ", ".join(repr(item) for item in elements[:SHOWN_ELEMENTS].tolist())
    return f"{line}: [{shown}{more}]"


def preview_lines(value: bytes | None) -> Iterator[str]:
    """Yield a value's first bytes: as text where they are, else as hexadecimal rows."""
    if not value:
        return
    head = value[:PREVIEW_BYTES]
    more = f" (the first {PREVIEW_BYTES} of {len(value)} bytes)" if len(value) > len(head) else ""
    if _is_text(value):
        yield f"value as text{more}:"
        yield f"  {plain(head.decode(errors='ignore'))}"  # a character may be cut in two
        return
    yield f"value{more}:"
    for at in range(0, len(head), HEX_COLUMNS):
        row = head[at : at + HEX_COLUMNS]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"  {at:08x}  {row.hex(' '):<{3 * HEX_COLUMNS - 1}}  {shown}"


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def letter_json(row: LetterRow, letter: DeadLetter) -> dict[str, object]:
    """Return everything about one letter as a JSON object; bytes are in base64."""
    return {
        **row.to_json(),
        "key": _base64(letter.key),
        "value": _base64(letter.value),
        "headers": [{"name": name, "value": _base64(value)} for name, value in letter.headers],
        "request": list(request_lines(letter)),
    }


def printed_json(body: object) -> str:
    """Return a JSON document in ASCII: clients' words may end on a terminal."""
    return json.dumps(body, separators=(",", ":"))


def time_text(ms: int) -> str:
    """Return a time in UTC, to the second; records of old clients have none."""
    try:
        return (
            datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            if ms >= 0
            else "none"
        )
    except (ValueError, OverflowError, OSError):
        return str(ms)


def _base64(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()


def _source(letter: DeadLetter) -> str:
    return f"{plain(letter.source.topic)}/{letter.source.partition}/{letter.offset}"


def _error(letter: DeadLetter) -> str:
    return plain(f"{letter.error_class}: {letter.detail}")


def _model(row: LetterRow) -> str:
    return plain(f"{row.letter.model} {row.letter.version}".rstrip())


def _sized(raw: bytes | None, size: int | None) -> str:
    return "null" if size is None else f"{size} bytes: {_shown(raw)}"


def _shown(raw: bytes | None) -> str:
    """Return bytes as text where they are text, else as Python spells them; shortened."""
    if raw is None:
        return "null"
    head = raw[:SHOWN_CHARS]
    try:
        text = plain(head.decode())
    except UnicodeDecodeError:
        text = repr(head)
    return text + ("…" if len(raw) > len(head) else "")
