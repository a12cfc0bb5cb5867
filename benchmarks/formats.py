"""How a request and its answer look on the wire, for the loop (raw floats) and for the worker (Avro and headers).

The Avro form is written and read here by fastavro and the published schemas alone, as another program would: the
worker's own codec does not judge itself.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import fastavro
import numpy as np
import numpy.typing as npt

from benchmarks import business, recurrent, workload
from benchmarks.processes import ROOT
from benchmarks.workload import INPUT, OUTPUT, POOL, SIZES, Floats, pool

AVRO = b"application/vnd.headrace.v2+avro"
LIVE = (64, 1000, 10_000)
"""Numbers of sequences that the requests of a benchmark may belong to."""
POISONED_EVERY = 1000
Headers = Sequence[tuple[str, bytes]]
Numbers = npt.NDArray[np.int64]


class Request(NamedTuple):
    """A record to produce."""

    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


class WrongAnswer(Exception):
    """An answer is not what the contract says, or an error."""


class Format(Protocol):
    """A way to write request number n and to read which number an answer has, and its values."""

    def request(self, number: int) -> Request:
        """Return the request's key, value and headers."""

    def answer(self, key: bytes, value: bytes, headers: Headers) -> tuple[int, Floats]:
        """Return number and values [10] of an answer; raises `WrongAnswer`."""

    def mark(self, key: bytes, headers: Headers) -> bytes:
        """Return what tells an answer from all others, without decoding it."""

    def is_right(self, numbers: Numbers, answers: Floats) -> npt.NDArray[np.bool_]:
        """Tell for each answer [n, 10] whether it is the one to the request of that number [n]."""


class Raw:
    """Bare little-endian floats; the key is the number."""

    def __init__(self) -> None:
        """Write the pool's values once."""
        self._values = [row.tobytes() for row in pool()]

    def request(self, number: int) -> Request:
        return Request(b"%d" % number, self._values[number % POOL], [])

    def answer(self, key: bytes, value: bytes, headers: Headers) -> tuple[int, Floats]:
        if headers:
            raise WrongAnswer(f"the loop's answer has headers {headers}, expected none")
        return int(key), np.frombuffer(value, np.float32)

    def mark(self, key: bytes, headers: Headers) -> bytes:  # noqa: ARG002  # all formats are asked alike
        return key

    def is_right(self, numbers: Numbers, answers: Floats) -> npt.NDArray[np.bool_]:
        return workload.is_right(numbers, answers)


class Avro:
    """The record contract: Avro values, and the headers content-type, id and one of the caller's own."""

    def __init__(self) -> None:
        """Write the pool's values once."""
        self._values = [avro_request(row) for row in pool()]
        self._answer = schema("infer_response")

    def request(self, number: int) -> Request:
        text = b"%d" % number
        headers = [("content-type", AVRO), ("id", text), ("x-trace", b"trace-" + text)]
        return Request(text, self._values[number % POOL], headers)

    def answer(self, key: bytes, value: bytes, headers: Headers) -> tuple[int, Floats]:
        named = dict(headers)
        text = named.get("id", b"")
        if named.get("status") != b"OK" or key != self._key(text):
            raise WrongAnswer(f"the answer with key {key!r} has headers {headers}")
        if named.get("x-trace") != b"trace-" + text:
            raise WrongAnswer(f"the answer with key {key!r} has x-trace {named.get('x-trace')!r}")
        found: Any = fastavro.schemaless_reader(io.BytesIO(value), self._answer, None)
        output = found["outputs"][0]
        if output["name"] != OUTPUT or output["shape"] != [1, SIZES[-1]]:
            raise WrongAnswer(f"the answer with key {key!r} holds {output}")
        return int(text), np.frombuffer(output["data"], np.float32)

    def mark(self, key: bytes, headers: Headers) -> bytes:  # noqa: ARG002  # all formats are asked alike
        return key

    def is_right(self, numbers: Numbers, answers: Floats) -> npt.NDArray[np.bool_]:
        return workload.is_right(numbers, answers)

    def _key(self, text: bytes) -> bytes:
        """Return the key that the request with this id had."""
        return text


class Poisoned(Avro):
    """The record contract, with one row in `POISONED_EVERY` that the model of `benchmarks.isolation` fails."""

    def __init__(self) -> None:
        """Write the pool's values once."""
        super().__init__()
        row = pool()[0].copy()
        row[0] = 1e9
        self._poison = avro_request(row)

    def request(self, number: int) -> Request:
        found = super().request(number)
        return found._replace(value=self._poison) if _is_poisoned(number) else found

    def answer(self, key: bytes, value: bytes, headers: Headers) -> tuple[int, Floats]:
        named = dict(headers)
        if not _is_poisoned(int(key)):
            return super().answer(key, value, headers)
        if named.get("status") == b"OK":
            raise WrongAnswer(f"the poisoned request {key!r} has the result {value!r}")
        return int(key), np.zeros(SIZES[-1], np.float32)

    def is_right(self, numbers: Numbers, answers: Floats) -> npt.NDArray[np.bool_]:
        return super().is_right(numbers, answers) | _is_poisoned(numbers)


class Steps(Avro):
    """The record contract of sequences: the key is the sequence's id, and START is on its first request."""

    def __init__(self, live: int) -> None:
        """Write the pool's values once; requests are steps of ``live`` sequences in turn."""
        super().__init__()
        self._live = live

    def request(self, number: int) -> Request:
        text, value, headers = super().request(number)
        key = self._key(text)
        headers.append(("sequence-id", key))
        if number < self._live:
            headers.append(("sequence-start", b"true"))
        return Request(key, value, headers)

    def mark(self, key: bytes, headers: Headers) -> bytes:  # noqa: ARG002  # as above
        return dict(headers).get("id", b"")

    def is_right(self, numbers: Numbers, answers: Floats) -> npt.NDArray[np.bool_]:
        return recurrent.is_right(self._live, numbers, answers)

    def _key(self, text: bytes) -> bytes:
        return b"%d" % (1 + int(text or 0) % self._live)  # 0 is no sequence's id


class Business:
    """Records of `benchmarks.business`, from the loop and from the worker; the key is the payment's number."""

    def __init__(self, word: str) -> None:
        """Keep whether they are in ``json`` or ``avro``."""
        self._word = word
        self._value = business.json_value if word == "json" else business.avro_value

    def request(self, number: int) -> Request:
        return Request(b"%d" % number, self._value(number), [])

    def answer(self, key: bytes, value: bytes, headers: Headers) -> tuple[int, Floats]:
        if headers and dict(headers).get("status") != b"OK":
            raise WrongAnswer(f"the answer with key {key!r} has headers {headers}")
        number, found = business.read_result(value, self._word)
        if number != int(key):
            raise WrongAnswer(f"the answer with key {key!r} is of payment {number}")
        return number, found

    def mark(self, key: bytes, headers: Headers) -> bytes:  # noqa: ARG002  # all formats are asked alike
        return key

    def is_right(self, numbers: Numbers, answers: Floats) -> npt.NDArray[np.bool_]:
        return business.is_right(numbers, answers)


def _is_poisoned(number: Any) -> Any:
    """Tell of one number, or of each of an array."""
    return number % POISONED_EVERY == POISONED_EVERY // 2


def schema(name: str) -> Any:
    """Return a published schema, parsed."""
    return fastavro.parse_schema(json.loads((ROOT / "schemas" / f"{name}.avsc").read_text()))


def steps(live: int) -> str:
    """Return the word of `Steps` of so many sequences."""
    return f"steps-{live}"


_REQUEST = schema("infer_request")


def avro_request(row: Floats, **fields: object) -> bytes:
    """Write a request for one row [128]; ``fields`` are further ones of the record."""
    tensor = {"name": INPUT, "datatype": "FP32", "shape": [1, SIZES[0]], "data": row.tobytes()}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _REQUEST, {"inputs": [tensor], **fields})
    return out.getvalue()


FORMATS: Mapping[str, Callable[[], Format]] = {
    "raw": Raw,
    "avro": Avro,
    "poisoned": Poisoned,
    **{steps(live): partial(Steps, live) for live in LIVE},
    **{f"business-{word}": partial(Business, word) for word in ("json", "avro")},
}
