"""Recognises a ``ModelInferRequest`` that differs from one that was read before in its id and its raw contents only.

Clients ask a model again and again in the same words: all but those two fields is the same bytes, and need not be
parsed again, nor become objects of protobuf's. What cannot be recognised at once goes the general way.
"""

from __future__ import annotations

from headrace.schemas.infer import InferRequest
from headrace.schemas.tensor import Tensor

MAX_LAYOUTS = 1_024
"""Requests that are remembered; when so many are, all are forgotten, and those that still come are learned anew."""

MAX_HEAD_BYTES = 1_024
"""Of a request without its id and raw contents; a longer one is not remembered."""

MAX_SIZE_BITS = 35
"""Of a length as protobuf writes it; messages end at 2 GiB."""

# Tags of the fields with a length, which all of them have.
_ID, _RAW = 0x1A, 0x3A
_CONSTANT = frozenset((0x0A, 0x12, 0x2A, 0x32))  # model_name, model_version, inputs, outputs


class RequestLayouts:
    """What was learned from requests; one for a server."""

    def __init__(self) -> None:
        """Know nothing."""
        self._known: dict[bytes, InferRequest] = {}

    def __len__(self) -> int:
        """Return how many requests are remembered."""
        return len(self._known)

    def read(self, value: bytes) -> InferRequest | None:
        """Return a request that is like one that was learned; None for any other, whatever is wrong with it."""
        parts = _split(value)
        if parts is None:
            return None
        head, text, raws = parts
        like = self._known.get(head)
        if like is None or len(like.inputs) != len(raws):
            return None
        try:
            id_ = text.decode()
        except UnicodeDecodeError:
            return None
        inputs = [
            Tensor(each.name, each.datatype, each.shape, raw)
            for each, raw in zip(like.inputs, raws, strict=True)
        ]
        return InferRequest(tuple(inputs), like.outputs, id_, like.model_name, like.model_version)

    def learn(self, value: bytes, request: InferRequest) -> None:
        """Remember a request that was read the general way, where others may be like it."""
        parts = _split(value)
        if parts is None or len(parts[2]) != len(request.inputs) or request.parameters:
            return
        if len(parts[0]) > MAX_HEAD_BYTES:
            return
        if len(self._known) >= MAX_LAYOUTS:
            self._known.clear()
        inputs = [Tensor(each.name, each.datatype, each.shape, b"") for each in request.inputs]
        self._known[parts[0]] = InferRequest(
            tuple(inputs), request.outputs, "", request.model_name, request.model_version
        )


def _split(value: bytes) -> tuple[bytes, bytes, list[bytes]] | None:
    """Return all but id and raw contents, the id, and the raw contents; None where that is not all, in this order.

    Every length is looked at before it is believed. Parameters are not constant: sequences and time-outs stand there.
    """
    at, end = 0, len(value)
    head, id_ = b"", b""
    begin = 0
    raws: list[bytes] = []
    try:
        while at < end:
            tag, size, data = value[at], value[at + 1], at + 2
            if size & 0x80:
                size, data = _long(value, at + 1)
            after = data + size
            if after > end:
                return None
            if tag == _RAW:
                if not raws:
                    head += value[begin:at]
                raws.append(value[data:after])
            elif raws:
                return None
            elif tag == _ID:
                head += value[begin:at]
                id_, begin = value[data:after], after
            elif tag not in _CONSTANT:
                return None
            at = after
    except IndexError:
        return None
    return (head, id_, raws) if raws else None


def _long(value: bytes, at: int) -> tuple[int, int]:
    """Return a length of several bytes, and where its data begin.

    Raises:
        IndexError: The value ends in it, or it is none.
    """
    size = shift = 0
    while shift < MAX_SIZE_BITS:
        byte = value[at]
        size |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return size, at
    raise IndexError("the length has too many bytes")
