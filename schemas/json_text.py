"""The JSON text of a request as Python's values, and what is wrong with it in Triton's words. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from headrace.schemas.errors import MalformedRequest
from headrace.schemas.v2json_data import MAX_DEPTH

Kind = TypeVar("Kind")


def read_document(body: bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Read a whole JSON text in UTF-8; a number may be written ``NaN`` or ``Infinity``, as Python and others do.

    Args:
        body: UTF-8.
        pairs: As of `read_object`.

    Raises:
        ValueError: It is no JSON, or has text that is none.
        RecursionError: It is nested too deep.
    """
    text = body.decode()
    document = json.loads(text, object_pairs_hook=pairs)
    if "\\ud" in text or "\\uD" in text:
        # An escape may make half of a surrogate pair, which is no text: it could not be written anywhere.
        json.dumps(document, ensure_ascii=False).encode()
    return document


def read_object(
    body: bytes, kind: type[Kind], pairs: Callable[[list[tuple[str, Any]]], Kind] | None = None
) -> Kind:
    """Read a body that is a JSON object.

    Args:
        body: UTF-8.
        kind: Of what an object becomes.
        pairs: Makes it of an object's members in their order, where a key may come twice; None makes a dict.

    Raises:
        MalformedRequest: It is no JSON, nested too deep, no object, or has text that is none (PB-32, PB-38).
    """
    try:
        document = read_document(body, pairs)
    except RecursionError:
        raise MalformedRequest(
            "failed to parse the request JSON buffer: JSON nesting depth exceeds maximum allowed "
            f"limit ({MAX_DEPTH})"
        ) from None
    except ValueError as exc:  # JSONDecodeError, Unicode errors, integers with too many digits
        raise MalformedRequest(
            f"failed to parse the request JSON buffer: {str(exc)[:200]}"
        ) from exc
    if not isinstance(document, kind):
        raise MalformedRequest(
            "failed to parse the request JSON buffer: expected an object, got "
            f"{type(document).__name__}"
        )
    return document
