"""SEMANTICS §2.5: the classification extension."""

import numpy as np
import pytest
import tritonclient.http
from compat_kit import given, infer, pack, part, simple_json, split, wanted
from compat_models import TYPES
from compat_rules import NEWER, rule, since

SCORES = [1.0, 10.0, -3.0, 4.0]


def scored(target, k, **how):
    tensor = part("INPUT0", "FP32", [1, 4], SCORES)
    return infer(target, "scores", tensor, outputs=[wanted("OUTPUT0", classification=k, **how)])


@rule("CL-01", "CL-04", "CL-05")
@pytest.mark.parametrize("k", [1, 2, 4, 9])
def test_the_largest_come_first_with_their_labels(target, k):
    (output,) = scored(target, k).json["outputs"]
    best = ["10.000000:1:plum", "4.000000:3", "1.000000:0:pear", "-3.000000:2:apple"]
    assert output["datatype"] == "BYTES"
    assert (output["shape"], output["data"]) == ([1, min(k, 4)], best[:k])


@rule("CL-01")
def test_each_row_has_its_own(target):
    tensor = part("INPUT0", "FP32", [2, 4], [*SCORES, *reversed(SCORES)])
    asked = [wanted("OUTPUT0", classification=1)]
    (output,) = infer(target, "scores", tensor, outputs=asked).json["outputs"]
    assert output["shape"] == [2, 1]
    assert output["data"] == ["10.000000:1:plum", "10.000000:2:apple"]


@rule("CL-01")
def test_a_model_without_batches(target):
    tensor = part("INPUT10", "FP32", [3], [0.5, 2.25, 1e7])
    asked = [wanted("OUTPUT10", classification=2)]
    (output,) = infer(target, "types", tensor, outputs=asked).json["outputs"]
    assert (output["shape"], output["data"]) == ([2], ["10000000.000000:2", "2.250000:1"])


@rule("CL-01")
def test_integers_print_as_integers(target):
    asked = [wanted("OUTPUT0", classification=1)]
    (output,) = infer(target, "simple", *simple_json(), outputs=asked).json["outputs"]
    assert output["data"] == ["16:15"]


@rule("CL-02")
@since(NEWER)  # 2.51 ends with a segmentation fault
@pytest.mark.parametrize("datatype", ["BYTES", "BOOL"])
def test_what_cannot_be_ranked_is_400(target, datatype):
    number = TYPES.index(datatype)
    value = {"BYTES": "x", "BOOL": True}[datatype]
    tensor = part(f"INPUT{number}", datatype, [1], [value])
    asked = [wanted(f"OUTPUT{number}", classification=1)]
    assert infer(target, "types", tensor, outputs=asked).status == 400


@rule("CL-03")
def test_zero_is_off(target):
    assert scored(target, 0).json["outputs"][0]["data"] == SCORES


@rule("CL-03")
@pytest.mark.parametrize("k", [-1, 1.5, "2", True])
def test_it_must_be_an_unsigned_integer(target, k):
    assert 400 <= scored(target, k).status <= 500


@rule("CL-05", "BN-03")
def test_in_binary_it_is_bytes(target):
    header, tensors = split(scored(target, 2, binary_data=True))
    assert header["outputs"][0]["datatype"] == "BYTES"
    assert tensors == pack(b"10.000000:1:plum", b"4.000000:3")


@rule("CL-01", "CL-05")
@pytest.mark.parametrize("binary", [True, False])
def test_the_client_asks_for_classes(http, binary):
    asked = [tritonclient.http.InferRequestedOutput("OUTPUT0", binary_data=binary, class_count=2)]
    values = np.array([SCORES], np.float32)
    result = http.infer(
        "scores", [given(tritonclient.http, "INPUT0", values, "FP32")], outputs=asked
    )
    texts = [x.decode() if isinstance(x, bytes) else x for x in result.as_numpy("OUTPUT0").ravel()]
    assert texts == ["10.000000:1:plum", "4.000000:3"]
