"""The small pieces of our own binary values: lengths before bytes, and a reader that never reads past the end."""

from __future__ import annotations

import struct

from headrace.schemas.record import Headers

_SIZE = struct.Struct("<i")


def sized(data: bytes | None) -> bytes:
    """Return bytes with their length before them; None has a length of its own."""
    return _SIZE.pack(-1) if data is None else _SIZE.pack(len(data)) + data


def number(value: int) -> bytes:
    """Return a number as `Reader.number` reads it, from -1 to 2³¹-1."""
    return _SIZE.pack(value)


def headers_of(headers: Headers) -> list[bytes]:
    """Return headers in pieces, as `Reader.headers` reads them."""
    fields = [_SIZE.pack(len(headers))]
    for name, value in headers:
        fields += (sized(name.encode()), sized(value))
    return fields


class Reader:
    """Takes bytes from the front; `ValueError` where there are too few.

    Attributes:
        data: All of them.
        at: Where the next ones are.
    """

    __slots__ = ("at", "data")

    def __init__(self, data: memoryview, at: int = 0) -> None:
        """Start at a place."""
        self.data = data
        self.at = at

    def take(self, size: int) -> memoryview:
        """Take so many."""
        end = self.at + size
        if not self.at <= end <= len(self.data):
            raise ValueError(f"{size} bytes at {self.at} of {len(self.data)}")
        found = self.data[self.at : end]
        self.at = end
        return found

    def number(self) -> int:
        """Take a number."""
        return int(_SIZE.unpack(self.take(_SIZE.size))[0])

    def sized(self) -> bytes | None:
        """Take bytes with their length before them."""
        size = self.number()
        return None if size < 0 else bytes(self.take(size))

    def text(self) -> str:
        """Take text with its length in bytes before it."""
        return bytes(self.take(self.number())).decode()

    def headers(self) -> Headers:
        """Take headers; a value may be None on the wire (FAULTS B32)."""
        return [(self.text(), self.sized()) for _ in range(self.number())]  # type: ignore[misc]  # None as above
