"""Bad request records of every kind and format, with the one answer that each must get."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from headrace.schemas.codec import encode_request
from headrace.schemas.infer import InferRequest, RequestedOutput
from headrace.schemas.record import AVRO, BINARY, JSON, PROTOBUF, Header
from headrace.schemas.tensor import Datatype, Tensor, join_bytes

FORMATS = {"avro": AVRO, "json": JSON, "binary": BINARY, "protobuf": PROTOBUF}
MAX_RECORD_BYTES = 4_000
MAX_BATCH = 4

PAIR = f"""
backend: "identity"
max_batch_size: {MAX_BATCH}
input [
  {{ name: "A" data_type: TYPE_FP32 dims: [2] }},
  {{ name: "B" data_type: TYPE_INT32 dims: [2] }}
]
output [
  {{ name: "OUT_A" data_type: TYPE_FP32 dims: [2] }},
  {{ name: "OUT_B" data_type: TYPE_INT32 dims: [2] }}
]
dynamic_batching {{ max_queue_delay_microseconds: 20000 }}
"""
WORDS = f"""
backend: "identity"
max_batch_size: {MAX_BATCH}
input [{{ name: "W" data_type: TYPE_STRING dims: [-1] }}]
output [{{ name: "OUT_W" data_type: TYPE_STRING dims: [-1] }}]
dynamic_batching {{ max_queue_delay_microseconds: 20000 }}
"""


@dataclass(frozen=True)
class Case:
    """One bad record.

    Attributes:
        name: Of the case, format included.
        model: Whose topic it goes to.
        value: Its value.
        headers: Without reply address and correlation.
        status: Of the answer.
        reason: Of the answer.
        texts: Fragments of the answer's sentence: the thing, the value, what was expected.
        dead_letter: It is kept as a dead letter too.
        answer_type: Content type of the answer.
        key: Its key.
        reply: Headers that name a reply address which may not be used; the answer is a result then.
    """

    name: str
    model: str
    value: bytes | None
    headers: tuple[Header, ...]
    texts: tuple[str, ...]
    status: str = "INVALID_ARG"
    reason: str = "invalid_request"
    dead_letter: bool = False
    answer_type: str = AVRO
    key: bytes | None = b"k"
    reply: tuple[Header, ...] = ()

    def __str__(self) -> str:
        """Show the name, for a test's id."""
        return self.name


def a(*rows: Sequence[float], name: str = "A") -> Tensor:
    """Return input A."""
    return Tensor.from_numpy(name, np.array(rows or [(1, 2)], np.float32))


def b(*rows: Sequence[int], name: str = "B") -> Tensor:
    """Return input B."""
    return Tensor.from_numpy(name, np.array(rows or [(3, 4)], np.int32))


def words(shape: tuple[int, ...], *items: bytes) -> Tensor:
    """Return input W, whatever its shape claims."""
    return Tensor("W", Datatype.BYTES, shape, join_bytes(items))


def good(model: str, number: int) -> tuple[bytes, list[Header], dict[str, list[object]]]:
    """Return value, headers and expected outputs of a request that is right."""
    if model == "words":
        item = f"word {number}".encode()
        request = InferRequest((words((1, 1), item),), id=f"g{number}")
        expected: dict[str, list[object]] = {"OUT_W": [[item]]}
    else:
        request = InferRequest((a((number, 0.5)), b((number, -1))), id=f"g{number}")
        expected = {"OUT_A": [[float(number), 0.5]], "OUT_B": [[number, -1]]}
    value, headers = encode_request(request)
    return value, list(headers), expected


def wrong_requests() -> Iterator[tuple[str, InferRequest, tuple[str, ...], dict[str, object]]]:
    """Yield requests that a format can carry and the model ``pair`` cannot take."""
    short = Tensor("A", Datatype.FP32, (1, 2), a().data[:4])
    long = Tensor("A", Datatype.FP32, (1, 2), bytes(12))
    as_int = Tensor("A", Datatype.INT32, (1, 2), bytes(8))
    counted = {"json": {"status": "INTERNAL", "reason": "malformed", "dead_letter": True}}
    many = [(1, 1)] * (MAX_BATCH + 1)
    yield "wrong datatype", InferRequest((as_int, b())), ("'A'", "'INT32'", "'FP32'"), {}
    yield (
        "wrong rank",
        InferRequest((Tensor("A", Datatype.FP32, (2,), bytes(8)), b((1, 1), (2, 2)))),
        ("'A'", "Expected [-1,2]", "got [2]"),
        {},
    )
    yield (
        "rank 0",
        InferRequest((Tensor("A", Datatype.FP32, (), bytes(4)), b())),
        ("'A'", "Expected [-1,2]", "got []"),
        {},
    )
    yield (
        "wrong shape",
        InferRequest((a((1, 2, 3)), b())),
        ("'A'", "Expected [-1,2]", "got [1,3]"),
        {},
    )
    yield "too few bytes", InferRequest((short, b())), ("'A'", "[1, 2]"), counted
    yield "too many bytes", InferRequest((long, b())), ("'A'", "[1, 2]"), counted
    yield "missing input", InferRequest((a(),)), ("expected 2 inputs but got 1", "'B'"), {}
    yield "no input", InferRequest(()), ("expected 2 inputs but got 0", "'A'", "'B'"), {}
    yield (
        "extra input",
        InferRequest((a(), b(), a(name="C"))),
        ("expected 2 inputs but got 3", "'C'"),
        {},
    )
    yield "unknown input", InferRequest((a(), b(name="C"))), ("unexpected", "'C'", "'pair'"), {}
    yield "duplicate input", InferRequest((a(), a())), ("'A'", "already exists"), {}
    yield (
        "batch above the maximum",
        InferRequest((a(*many), b(*many))),
        (f"<= {MAX_BATCH}", "'pair'", f"got {MAX_BATCH + 1}"),
        {},
    )
    empty = (Tensor("A", Datatype.FP32, (0, 2), b""), Tensor("B", Datatype.INT32, (0, 2), b""))
    yield "MR-22 zero rows", InferRequest(empty), (">= 1", "'pair'", "got 0"), {}
    yield (
        "rows that differ",
        InferRequest((a((1, 2), (3, 4)), b())),
        ("'B'", "batch size does not match", "expected 2", "got 1"),
        {},
    )
    yield (
        "unknown output",
        InferRequest((a(), b()), (RequestedOutput("OUT_X"),)),
        ("unexpected inference output", "'OUT_X'", "'pair'"),
        {},
    )
    yield (
        "duplicate output",
        InferRequest((a(), b()), (RequestedOutput("OUT_A"), RequestedOutput("OUT_A"))),
        ("'OUT_A'", "already exists"),
        {},
    )


def as_json(request: InferRequest) -> tuple[bytes, list[Header]]:
    """Write a request as JSON without the checks of our own writer."""
    document: dict[str, object] = {
        "inputs": [
            {
                "name": tensor.name,
                "datatype": tensor.datatype.value,
                "shape": list(tensor.shape),
                "data": np.frombuffer(tensor.data, tensor.datatype.numpy).tolist(),
            }
            for tensor in request.inputs
        ]
    }
    if request.outputs:
        document["outputs"] = [{"name": output.name} for output in request.outputs]
    return json.dumps(document).encode(), [("content-type", JSON.encode())]


def written(request: InferRequest, content_type: str) -> tuple[bytes, tuple[Header, ...]]:
    """Write a request in a format."""
    if content_type == JSON:
        value, headers = as_json(request)
    else:
        value, found = encode_request(request, content_type)
        headers = list(found)
    return value, tuple(headers)


def content_cases() -> Iterator[Case]:
    """Requests that decode and are wrong, in every format."""
    for name, request, texts, overrides in wrong_requests():
        for word, content_type in FORMATS.items():
            value, headers = written(request, content_type)
            if not value:
                continue  # a protobuf message without fields has no bytes, and is an empty value
            case = Case(f"{word}: {name}", "pair", value, headers, texts, answer_type=content_type)
            yield replace(case, **overrides.get(word, {}), answer_type=answer_type(content_type))
    for name, tensor, texts in (
        ("B38 one element for 59", words((1, 59), b"one"), ("'W'", "elements 1 ", "expecting 59")),
        (
            "B55 prefix beyond the buffer",
            Tensor("W", Datatype.BYTES, (1, 1), b"\x05\x00\x00\x00abc"),
            ("'W'", "length 5", "only 3 bytes"),
        ),
        (
            "B55 prefix of 4 GiB",
            Tensor("W", Datatype.BYTES, (1, 1), b"\xff\xff\xff\xffabc"),
            ("'W'", "length 4294967295", "only 3 bytes"),
        ),
        (
            "B55 prefix cut short",
            Tensor("W", Datatype.BYTES, (1, 1), b"\x05\x00"),
            ("'W'", "expecting 4 bytes", "only 2"),
        ),
        (
            "B55 a second element cut short",
            Tensor("W", Datatype.BYTES, (1, 2), join_bytes([b"abc"]) + b"\x01"),
            ("'W'", "expecting 4 bytes", "only 1"),
        ),
    ):
        for word, content_type in FORMATS.items():
            if content_type != JSON:
                value, headers = written(InferRequest((tensor,)), content_type)
                case = Case(f"{word}: {name}", "words", value, headers, texts)
                yield replace(case, answer_type=answer_type(content_type))


def answer_type(content_type: str) -> str:
    """Return the content type of an error's answer to a request of this one."""
    return JSON if content_type == BINARY else content_type


def lookup_cases() -> Iterator[Case]:
    """Models and versions that are not there."""
    request = InferRequest((a(), b()))
    for word, content_type in FORMATS.items():
        value, headers = written(request, content_type)
        for version, shown in ((b"9", "9"), (b"-1", "-1"), (b"one", "one"), (b"0", "0")):
            yield Case(
                f"{word}: version {shown}",
                "pair",
                value,
                (*headers, ("model-version", version)),
                ("'pair'", f"version {shown}", "is not found"),
                status="NOT_FOUND",
                reason="unknown_version",
                answer_type=answer_type(content_type),
            )
    for name, changed, reason, texts in (
        ("model", request._replace(model_name="nope"), "unknown_model", ("'nope'", "not found")),
        ("version", request._replace(model_version="9"), "unknown_version", ("'pair'", "9")),
    ):
        value, headers = encode_request(changed, PROTOBUF)
        plain = tuple(header for header in headers if header[0] != "model-version")
        yield Case(
            f"protobuf: unknown {name} in the message",
            "pair",
            value,
            plain,
            texts,
            status="NOT_FOUND",
            reason=reason,
            answer_type=PROTOBUF,
        )


def undecodable_cases() -> Iterator[Case]:
    """FAULTS B32, B33: bytes that are no request, kept as dead letters."""
    avro = encode_request(InferRequest((a(), b())))[0]
    proto = encode_request(InferRequest((a(), b())), PROTOBUF)[0]
    text = as_json(InferRequest((a(), b())))[0]
    rng = random.Random(32)
    dead = {"reason": "undecodable", "dead_letter": True}
    malformed = {"reason": "malformed", "status": "INTERNAL", "dead_letter": True}
    for word, content_type in FORMATS.items():
        headers = (("content-type", content_type.encode()),)
        back = {"answer_type": answer_type(content_type)}
        for name, value, key, shown in (
            ("null value", None, b"k", "null"),
            ("null value and null key", None, None, "null"),
            ("empty value", b"", b"k", "empty"),
        ):
            texts = ("the value is", shown, content_type)
            yield Case(f"{word}: {name}", "pair", value, headers, texts, key=key, **dead, **back)
        kind = malformed if content_type in (JSON, BINARY) else dead
        for name, value in (
            ("ten bytes of 0xff", b"\xff" * 10),
            ("random bytes", rng.randbytes(64)),
            ("more random bytes", rng.randbytes(1_000)),
        ):
            yield Case(f"{word}: {name}", "pair", value, headers, (), **kind, **back)
    for end in (1, 2, 7, len(avro) // 2, len(avro) - 1):
        texts = (f"the value of {end} bytes", "no Avro InferRequest")
        yield Case(f"avro: truncated to {end} bytes", "pair", avro[:end], (), texts, **dead)
    texts = (f"an Avro InferRequest of {len(avro)} bytes", "more behind it", "one record")
    yield Case("avro: one byte more", "pair", avro + b"\0", (), texts, **dead)
    proto_type = (("content-type", PROTOBUF.encode()),)
    for end in (3, len(proto) - 1):
        yield Case(
            f"protobuf: truncated to {end} bytes",
            "pair",
            proto[:end],
            proto_type,
            (f"{end} bytes", "ModelInferRequest"),
            answer_type=PROTOBUF,
            **dead,
        )
    json_type = (("content-type", JSON.encode()),)
    for name, value, texts in (
        ("truncated", text[:-3], ("failed to parse the request JSON",)),
        ("invalid UTF-8", b'{"inputs": "\xff"}', ("failed to parse the request JSON",)),
        ("an array", b"[1]", ("expected an object", "list")),
        ("a number", b"7", ("expected an object", "int")),
        ("inputs are missing", b"{}", ("'inputs'", "expected an array of objects")),
        # How deep a parser goes differs by Python's version; a deeper one would be above the limit of a record here.
        ("a deep nest", b"[" * 3_000, ("failed to parse the request JSON",)),
    ):
        yield Case(f"json: {name}", "pair", value, json_type, texts, answer_type=JSON, **malformed)


def envelope_cases() -> Iterator[Case]:
    """Headers that say something impossible."""
    value = encode_request(InferRequest((a(), b())))[0]
    binary, headers = written(InferRequest((a(), b())), BINARY)
    for name, header, reason, texts, more in (
        (
            "unknown content type",
            ("content-type", b"text/plain"),
            "unknown_content_type",
            ("text/plain", AVRO),
            {},
        ),
        (
            "empty content type",
            ("content-type", b""),
            "unknown_content_type",
            ("content-type", AVRO),
            {},
        ),
        (
            "null content type",
            ("content-type", None),
            "invalid_header",
            ("content-type", "null", "UTF-8"),
            {},
        ),
        (
            "B32 invalid UTF-8 in an id",
            ("id", b"\xff\xfe"),
            "invalid_header",
            ("'id'", "xff", "UTF-8"),
            {},
        ),
        (
            "B32 a header with a null value",
            ("id", None),
            "invalid_header",
            ("'id'", "null", "UTF-8"),
            {},
        ),
        (
            "invalid UTF-8 in a content type",
            ("content-type", b"\xff"),
            "invalid_header",
            ("content-type", "xff"),
            {},
        ),
        (
            "invalid UTF-8 in a version",
            ("model-version", b"\xff"),
            "invalid_header",
            ("model-version", "xff"),
            {},
        ),
        (
            "a senseless deadline",
            ("deadline-ms", b"soon"),
            "invalid_header",
            ("deadline-ms", "soon", "whole number"),
            {},
        ),
        (
            "a negative priority",
            ("priority", b"-1"),
            "invalid_header",
            ("priority", "-1", "whole number"),
            {},
        ),
        ("a null x- header", ("x-null", None), "invalid_header", ("x-null", "null"), {}),
        (
            "a senseless flag",
            ("sequence-start", b"maybe"),
            "invalid_header",
            ("sequence-start", "maybe"),
            {},
        ),
        (
            "an attempt before the first",
            ("attempt", b"0"),
            "invalid_header",
            ("attempt", "0", "from 1"),
            {},
        ),
        (
            "a claim check",
            (
                "claim-check",
                b'{"url":"s3://x/y","size":1,"sha256":"' + b"0" * 64 + b'"}',
            ),
            "unsupported_claim_check",
            ("claim-check", "none is configured here"),
            {"status": "UNSUPPORTED", "dead_letter": False},
        ),
        (
            "a claim check that is none",
            ("claim-check", b"s3://x"),
            "invalid_header",
            ("claim-check", "s3://x", "JSON"),
            {},
        ),
        (
            "framing",
            ("content-type", AVRO.encode() + b"; framing=confluent"),
            "unsupported_framing",
            ("framing", "confluent"),
            {"status": "UNSUPPORTED", "dead_letter": False},
        ),
    ):
        yield Case(
            f"header: {name}",
            "pair",
            value,
            (header,),
            texts,
            **({"reason": reason, "dead_letter": True} | more),
        )
    plain = tuple(header for header in headers if header[0] != "inference-header-content-length")
    for name, length, reason, texts, dead in (
        (
            "JSON longer than the body",
            b"100000",
            "invalid_request",
            ("100000", "bytes of the body"),
            False,
        ),
        ("no number as JSON length", b"x", "invalid_header", ("content-length", "'x'"), True),
    ):
        yield Case(
            f"binary: {name}",
            "pair",
            binary,
            (*plain, ("inference-header-content-length", length)),
            texts,
            reason=reason,
            dead_letter=dead,
            answer_type=JSON,
        )
    yield Case(
        "binary: tensors cut short",
        "pair",
        binary[:-1],
        headers,
        ("'B'", "8 bytes", "7 are left"),
        answer_type=JSON,
    )
    yield Case(
        "a body above the limit",
        "pair",
        bytes(MAX_RECORD_BYTES + 1),
        (),
        (str(MAX_RECORD_BYTES + 1), str(MAX_RECORD_BYTES), "max_record_bytes"),
        reason="too_large",
    )


def reply_cases(prefix: str) -> Iterator[Case]:
    """Reply addresses that may not be used: the error is a result then."""
    value, headers = encode_request(InferRequest((a(), b())))
    broken = b"\xff" * 10
    for name, reply, texts in (
        (
            "outside",
            (("reply-topic", b"elsewhere"),),
            ("'elsewhere'", "not allowed", "--allow-reply-topics"),
        ),
        (
            "of our own",
            (("reply-topic", f"{prefix}.status".encode()),),
            (f"'{prefix}.status'", "not allowed"),
        ),
        ("no topic's name", (("reply-topic", b"a b"),), ("'a b'", "not allowed")),
        (
            "that does not exist",
            (("reply-topic", f"{prefix}.nobody".encode()),),
            (f"'{prefix}.nobody'", "does not exist"),
        ),
        (
            "without that partition",
            (("reply-topic", f"{prefix}.replies".encode()), ("reply-partition", b"99")),
            ("99", f"'{prefix}.replies'", "partitions"),
        ),
    ):
        yield Case(
            f"reply topic {name}",
            "pair",
            value,
            tuple(headers),
            texts,
            reason="reply_topic_refused",
            reply=reply,
        )
        yield Case(
            f"undecodable, and reply topic {name}",
            "pair",
            broken,
            (),
            ("no Avro InferRequest",),
            reason="undecodable",
            dead_letter=True,
            reply=reply,
        )


def bad_cases(prefix: str) -> list[Case]:
    """Return all of them; their number and names do not depend on the prefix."""
    return [
        *content_cases(),
        *lookup_cases(),
        *undecodable_cases(),
        *envelope_cases(),
        *reply_cases(prefix),
    ]


@dataclass(frozen=True)
class Call:
    """One bad call over HTTP.

    Attributes:
        name: Of the call.
        path: Below ``/v2/models``.
        body: Its body.
        headers: Its headers.
        status: HTTP status of the answer.
        texts: Fragments of the answer's error.
    """

    name: str
    path: str
    body: bytes
    headers: tuple[tuple[str, str], ...]
    status: int
    texts: tuple[str, ...]

    def __str__(self) -> str:
        """Show the name, for a test's id."""
        return self.name


HTTP_STATUS = {"INVALID_ARG": 400, "NOT_FOUND": 404, "INTERNAL": 500, "UNSUPPORTED": 501}
MAX_INPUT_BYTES = 20_000


def call(
    request: InferRequest, content_type: str = JSON
) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    """Write a request as a call's body and headers."""
    body, headers = written(request, content_type)
    named = dict(headers)
    length = named.get("inference-header-content-length")
    if length is None:
        return body, ()
    return body, (("Inference-Header-Content-Length", (length or b"").decode()),)


def bad_calls() -> list[Call]:
    """Return every bad call: what bad records hold, and what only HTTP knows."""
    calls = []
    for case in content_cases():
        word = case.name.partition(":")[0]
        if word in ("json", "binary") and case.value is not None:
            length = dict(case.headers).get("inference-header-content-length")
            headers = (
                () if length is None else (("Inference-Header-Content-Length", length.decode()),)
            )
            status = HTTP_STATUS[case.status]
            path = f"{case.model}/infer"
            calls.append(Call(case.name, path, case.value, headers, status, case.texts))
    return [*calls, *_http_calls()]


def _http_calls() -> Iterator[Call]:
    body, _ = call(InferRequest((a(), b())))
    binary, length = call(InferRequest((a(), b())), BINARY)
    for path, status, texts in (
        ("nope/infer", 404, ("unknown model", "'nope'", "known models: pair, words")),
        ("nope/versions/1/infer", 404, ("unknown model", "'nope'")),
        ("pair/versions/9/infer", 404, ("'pair'", "version 9")),
        ("pair/versions/0/infer", 404, ("'pair'", "version 0")),
        ("pair/versions/one/infer", 404, ("Not Found",)),
    ):
        yield Call(path, path, body, (), status, texts)
    malformed = "failed to parse the request JSON"
    rng = random.Random(33)
    for name, payload, headers, status, texts in (
        ("truncated JSON", body[:-4], (), 500, (malformed,)),
        ("random bytes", rng.randbytes(200), (), 500, (malformed,)),
        ("no body", b"", (), 500, (malformed,)),
        ("invalid UTF-8", b'{"inputs": "\xff"}', (), 500, (malformed,)),
        ("inputs are missing", b"{}", (), 500, ("'inputs'", "array of objects")),
        ("tensors cut short", binary[:-1], length, 400, ("'B'", "8 bytes", "7 are left")),
        ("a byte too many", binary + b"x", length, 400, ("additional input data", "1 bytes")),
        (
            "JSON longer than the body",
            binary,
            (("Inference-Header-Content-Length", "100000"),),
            400,
            ("100000",),
        ),
        (
            "no number as JSON length",
            binary,
            (("Inference-Header-Content-Length", "x"),),
            400,
            ("'x'", "length"),
        ),
        (
            "a body above the limit",
            bytes(MAX_INPUT_BYTES + 1),
            (),
            400,
            (str(MAX_INPUT_BYTES + 1), str(MAX_INPUT_BYTES), "--http-max-input-size"),
        ),
        ("another encoding", body, (("Content-Encoding", "br"),), 501, ("br", "gzip")),
        ("no gzip", body, (("Content-Encoding", "gzip"),), 400, ("gzip",)),
        (
            "a senseless timeout",
            body,
            (("X-Headrace-Timeout-Ms", "soon"),),
            400,
            ("X-Headrace-Timeout-Ms", "'soon'", "milliseconds"),
        ),
    ):
        yield Call(name, "pair/infer", payload, headers, status, texts)
    large, headers = call(InferRequest((words((1, 1), bytes(MAX_RECORD_BYTES + 1)),)), BINARY)
    yield Call(
        "B57 a request that no record can hold",
        "words/infer",
        large,
        headers,
        413,
        ("'words'", str(MAX_RECORD_BYTES), "max.request.size"),
    )
