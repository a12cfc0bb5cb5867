"""Golden records: what this release wrote, every later one reads, and writes again byte for byte."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from headrace.schemas.codec import decode_response
from headrace.schemas.errors import Code, InvalidRequest, Reason
from headrace.schemas.record import JSON, TP
from headrace.schemas.requests import RequestDecoder
from headrace.schemas.tensor import Datatype, split_bytes
from wire_kit import Rec

_SPEC = importlib.util.spec_from_file_location("golden_make", Path(__file__).with_name("make.py"))
make = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(make)

RECORDS = [(what, kind) for what in make.MAKERS for kind in make.KINDS]
ECHOED = [
    ("correlation-id", b"\x00\xff\x80"),
    ("x-tenant", b"\xfe"),
    ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
]


@pytest.mark.parametrize(("what", "kind"), RECORDS)
def test_the_writers_still_write_these_bytes(what, kind):
    value, headers = make.load(f"{what}_{kind}")
    written, said = make.MAKERS[what](make.KINDS[kind])
    assert written == value
    assert list(said) == headers


@pytest.mark.parametrize("kind", make.KINDS)
def test_a_golden_request_is_read(kind):
    value, headers = make.load(f"request_{kind}")
    decoder = RequestDecoder({3: make.SIGNED, 4: make.SIGNED}, model_name="golden")
    found = decoder.decode(TP("t", 0), 1, [Rec(value, tuple(headers))])
    assert not found.failures, found.failures[0].error
    (entry,) = found.by_version[3]
    pixels, weights, words = entry.data
    assert bytes(pixels) == bytes([0, 1, 2, 3, 252, 253, 254, 255])
    assert bytes(weights) == np.float32([0.1, -1e-40]).tobytes()
    assert split_bytes("words", words) == [b"", "é".encode(), b"a\x00b", b"z"]
    assert (entry.rows, entry.shapes) == (2, ((2, 2), (1,), (2,)))
    assert (entry.id, entry.model_version) == ("request-é", "3")
    assert entry.parameters == {"flag": True, "count": -7, "share": 0.25, "text": "ü"}
    assert [output.name for output in entry.outputs] == ["scores", "labels"]
    assert entry.outputs[1].parameters == {"binary_data": True}
    assert (entry.sequence_id, entry.sequence_start, entry.sequence_end) == ("7", True, False)
    assert (entry.priority, entry.timeout_us, entry.deadline_ms) == (2, 1500, 1_700_000_000_000)
    assert (entry.reply_topic, entry.reply_partition) == ("headrace.replies", 5)
    assert (entry.correlation_id, entry.idempotency_key) == (b"\x00\xff\x80", b"key")
    assert list(entry.correlation) == ECHOED
    assert entry.content_type == make.KINDS[kind]


@pytest.mark.parametrize("kind", make.KINDS)
def test_a_golden_result_is_read(kind):
    value, headers = make.load(f"result_{kind}")
    found = decode_response(value, headers)
    assert (found.id, found.model_name, found.model_version) == ("request-é", "golden", "3")
    scores, labels = found.outputs
    assert (scores.name, scores.datatype, scores.shape) == ("scores", Datatype.FP32, (2, 3))
    np.testing.assert_array_equal(
        scores.numpy(), np.array([[0.5, np.inf, -0.0], [1e-40, np.nan, 3.0]], np.float32)
    )
    assert np.signbit(scores.numpy()[0, 2])
    assert (labels.name, labels.datatype, labels.shape) == ("labels", Datatype.BYTES, (2, 1))
    assert split_bytes("labels", labels.data) == ["é".encode(), b""]
    said = dict(headers)
    assert said["source"] == b"headrace.golden.requests/11/1234567"
    assert (said["status"], said["attempt"], said["id"]) == (b"OK", b"1", "request-é".encode())
    assert headers[-3:] == ECHOED


@pytest.mark.parametrize("kind", make.KINDS)
def test_a_golden_error_is_raised(kind):
    value, headers = make.load(f"error_{kind}")
    with pytest.raises(InvalidRequest, match="input 'pixels' is missing") as caught:
        decode_response(value, headers)
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.reason is Reason.INVALID_REQUEST
    said = dict(headers)
    assert (said["status"], said["reason"]) == (b"INVALID_ARG", b"invalid_request")
    assert said["source"] == b"headrace.golden.requests/11/1234567"
    assert headers[-3:] == ECHOED
    if kind == "binary":
        assert said["content-type"] == JSON.encode()  # an error has no tensors
