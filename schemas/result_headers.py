"""Result headers: whose answer it is, how it went, and what the caller wants back untouched (DESIGN §4)."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.schemas.batch import Entry
from headrace.schemas.errors import Code, InferError
from headrace.schemas.record import (
    ATTEMPT,
    CLAIM_CHECK,
    CONTENT_TYPE,
    CONTENT_TYPES,
    FINAL,
    HEADER_LENGTH,
    ID,
    JSON,
    MODEL_NAME,
    MODEL_VERSION,
    REASON,
    RESPONSE_INDEX,
    SOURCE,
    STATUS,
    TP,
    Header,
)

_STATUS, _ATTEMPT = 3, 4
"""Their places among the constant headers."""

_OF_A_RESULT = (REASON, HEADER_LENGTH, CLAIM_CHECK)
"""Headers that speak of the value that an answer had."""


class ResultHeaders:
    """Writes the headers of results and errors; the constant part is made once per model version.

    Order: content-type, model-name, model-version, status, attempt, source, id, then what varies by kind, then the
    correlation headers as they came.
    """

    def __init__(self, model_name: str, model_version: str, content_type: str = JSON) -> None:
        """Prepare for one version.

        Args:
            model_name: Of the topic.
            model_version: Of an error before the version is known ``""``.
            content_type: A further one that answers may have, beside those of the contract.
        """
        name, version = model_name.encode(), model_version.encode()
        self._constant = {
            content_type: (
                (CONTENT_TYPE, content_type.encode()),
                (MODEL_NAME, name),
                (MODEL_VERSION, version),
                (STATUS, Code.OK.encode()),
                (ATTEMPT, b"1"),
            )
            for content_type in {*CONTENT_TYPES, content_type}
        }

    def ok(self, entry: Entry, content_type: str, extra: Sequence[Header] = ()) -> list[Header]:
        """Return the headers of a result."""
        return self.ok_block((entry,), content_type, extra)[0]

    def ok_block(
        self, entries: Sequence[Entry], content_type: str, extra: Sequence[Header] = ()
    ) -> list[list[Header]]:
        """Return what `ok` returns, for many entries of one content type at once."""
        constant = self._constant[content_type]
        found: list[list[Header]] = []
        tp: TP | None = None
        prefix = b""
        prefixes: dict[TP, bytes] = {}
        for entry in entries:
            if entry.tp is not tp:
                tp = entry.tp
                # Rows of sequences stay with them, so that partitions may change at each.
                prefix = prefixes.get(tp) or f"{tp.topic}/{tp.partition}/".encode()
                prefixes[tp] = prefix
            headers = [*constant, (SOURCE, b"%b%d" % (prefix, entry.record.offset))]
            if entry.id:
                headers.append((ID, entry.id.encode()))
            if extra:
                headers += extra
            if entry.correlation:
                headers += entry.correlation
                if entry.attempt > 1:  # then it is the last of them (`Entry.set_attempt`)
                    headers[_ATTEMPT] = headers.pop()
            found.append(headers)
        return found

    def error(self, entry: Entry, content_type: str, error: InferError) -> list[Header]:
        """Return the headers of an error: as a result's, with the code as status, and the reason word."""
        headers = self.ok(entry, content_type, ((REASON, error.reason.encode()),))
        headers[_STATUS] = (STATUS, error.code.encode())
        return headers


def error_headers(answer: Sequence[Header], content_type: str, error: InferError) -> list[Header]:
    """Return the headers of an answer that becomes this error after all; ``content_type`` is the error's."""
    kept = [header for header in answer if header[0] not in _OF_A_RESULT]
    kept[0] = (CONTENT_TYPE, content_type.encode())
    kept[_STATUS] = (STATUS, error.code.encode())
    kept.append((REASON, error.reason.encode()))
    return kept


def decoupled_headers(response_index: int, *, final: bool) -> tuple[Header, ...]:
    """Return the two headers by which 0..n responses to one request are told apart."""
    return (
        (RESPONSE_INDEX, str(response_index).encode()),
        (FINAL, b"true" if final else b"false"),
    )
