"""Makes the golden records of this folder; run once per record kind, never to make a failing test pass.

Each file is one record as a producer of this release writes it: ``NAME.bin`` is the value, ``NAME.json`` the headers. A
later release must still read them.
"""

import json
from pathlib import Path

import numpy as np
from headrace.schemas.answers import ResponseEncoder, encode_error
from headrace.schemas.batch import Batch, Entry, Responses
from headrace.schemas.codec import encode_request
from headrace.schemas.errors import InvalidRequest
from headrace.schemas.headers import RequestOptions
from headrace.schemas.infer import InferRequest, RequestedOutput
from headrace.schemas.record import AVRO, BINARY, JSON, PROTOBUF, TP
from headrace.schemas.tensor import Datatype, Tensor, join_bytes
from wire_kit import Rec, signature, tensor_config

FOLDER = Path(__file__).parent
KINDS = {"avro": AVRO, "json": JSON, "binary": BINARY, "protobuf": PROTOBUF}

SIGNED = signature(
    [
        tensor_config("pixels", Datatype.UINT8, (2, 2)),
        tensor_config("weights", Datatype.FP32, (-1,)),
        tensor_config("words", Datatype.BYTES, (2,)),
    ],
    [
        tensor_config("scores", Datatype.FP32, (3,)),
        tensor_config("labels", Datatype.BYTES, (1,)),
    ],
    version=3,
    name="golden",
)
REQUEST = InferRequest(
    (
        Tensor("pixels", Datatype.UINT8, (2, 2, 2), bytes([0, 1, 2, 3, 252, 253, 254, 255])),
        Tensor("weights", Datatype.FP32, (2, 1), np.float32([0.1, -1e-40]).tobytes()),
        Tensor("words", Datatype.BYTES, (2, 2), join_bytes([b"", "é".encode(), b"a\x00b", b"z"])),
    ),
    (RequestedOutput("scores"), RequestedOutput("labels", {"binary_data": True})),
    id="request-é",
    model_version="3",
    parameters={"flag": True, "count": -7, "share": 0.25, "text": "ü"},
    sequence_id="7",
    sequence_start=True,
    priority=2,
    timeout_us=1500,
)
OPTIONS = RequestOptions(
    deadline_ms=1_700_000_000_000,
    reply_topic="headrace.replies",
    reply_partition=5,
    correlation_id=bytes([0, 255, 128]),
    idempotency_key=b"key",
    extra=(
        ("x-tenant", b"\xfe"),
        ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ),
)
OUTPUTS = {
    "scores": np.array([[0.5, np.inf, -0.0], [1e-40, np.nan, 3.0]], np.float32),
    "labels": np.array([["é".encode()], [b""]], dtype=object),
}
ERROR = InvalidRequest("input 'pixels' is missing")


def entry(content_type):
    """The entry that the golden request of a kind becomes, as far as an answer needs it."""
    made = Entry()
    made.tp, made.epoch = TP("headrace.golden.requests", 11), 1
    made.record = Rec(None, offset=1_234_567)
    made.rows, made.data, made.shapes = 2, (), ()
    made.content_type = content_type
    made.id = REQUEST.id
    made.outputs = () if content_type == JSON else REQUEST.outputs  # no binary tensor in that one
    made.correlation = (("correlation-id", OPTIONS.correlation_id), *OPTIONS.extra)
    return made


def request_record(content_type):
    """Value and headers of the golden request."""
    return encode_request(REQUEST, content_type, OPTIONS)


def result_record(content_type):
    """Value and headers of the golden result."""
    batch = Batch(SIGNED, [entry(content_type)])
    ((_, value, headers),) = ResponseEncoder(SIGNED).encode(batch, Responses(OUTPUTS))
    return value, headers


def error_record(content_type):
    """Value and headers of the golden error."""
    return encode_error(entry(content_type), ERROR, "golden", "3")


MAKERS = {"request": request_record, "result": result_record, "error": error_record}


def load(name):
    """Read a golden record: value and headers."""
    headers = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    value = (FOLDER / f"{name}.bin").read_bytes()
    return value, [(key, raw.encode("latin-1")) for key, raw in headers]


def write(name, value, headers):
    """Write a golden record that is not there yet; header values byte by byte as Latin-1."""
    if (FOLDER / f"{name}.bin").exists():
        return
    (FOLDER / f"{name}.bin").write_bytes(value)
    pairs = [[key, raw.decode("latin-1")] for key, raw in headers]
    text = json.dumps(pairs, indent=1) + "\n"
    (FOLDER / f"{name}.json").write_text(text, "utf-8")


if __name__ == "__main__":
    for kind, content_type in KINDS.items():
        for what, make in MAKERS.items():
            write(f"{what}_{kind}", *make(content_type))
