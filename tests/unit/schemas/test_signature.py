"""Admission: one validation for gateway and worker, with Triton's fragments (SEMANTICS PB-34…PB-36)."""

import pytest
from headrace.schemas.errors import InvalidRequest
from headrace.schemas.infer import RequestedOutput
from headrace.schemas.tensor import Datatype, Tensor, join_bytes
from wire_kit import example, signature, tensor_config

TWO = signature([tensor_config("a"), tensor_config("b", Datatype.INT32, (-1, 2))])
OPTIONAL = signature([tensor_config("a"), tensor_config("b", optional=True)])
PLAIN = signature([tensor_config("a", dims=(-1,))], max_batch_size=0)


def fp32(name, *shape):
    count = 1
    for size in shape:
        count *= size
    return Tensor(name, Datatype.FP32, shape, bytes(4 * max(count, 0)))


def ints(name, *shape):
    return Tensor(name, Datatype.INT32, shape, fp32(name, *shape).data)


def test_columns_come_in_the_signatures_order_whatever_the_request_has():
    b, a = ints("b", 3, 5, 2), fp32("a", 3, 4)
    admitted = TWO.admit([b, a])
    assert admitted == (3, (a.data, b.data), ((4,), (5, 2)))
    assert admitted.data[0] is a.data


def test_the_usual_shapes_are_one_shared_object():
    one = signature()
    assert one.admit([fp32("x", 1, 4)]).shapes is one.usual_shapes
    assert one.admit([fp32("x", 3, 4)]).shapes is one.usual_shapes
    assert TWO.usual_shapes is None


def test_MR22_a_model_without_batching_takes_the_whole_shape():
    assert PLAIN.admit([fp32("a", 7)]) == (1, (bytes(28),), ((7,),))


def test_MR24_optional_inputs_may_be_absent():
    assert OPTIONAL.admit([fp32("a", 2, 4)]) == (2, (bytes(32), None), ((4,), None))
    alone = signature([tensor_config("a", optional=True)])
    assert alone.admit([]) == (1, (None,), (None,))


@pytest.mark.parametrize(
    ("signed", "inputs", "text"),
    [
        (
            TWO,
            [fp32("a", 1, 4)],
            r"expected 2 inputs but got 1 inputs for model 'm'.*missing.*\['b'\]",
        ),
        (TWO, [], r"expected 2 inputs but got 0 inputs for model"),
        (
            TWO,
            [fp32("a", 1, 4), ints("b", 1, 1, 2), fp32("c", 1)],
            "expected 2 inputs but got 3 inputs for model 'm'",
        ),
        (OPTIONAL, [], "expected number of inputs between 1 and 2 but got 0"),
        (OPTIONAL, [fp32("b", 1, 4)], "missing required input 'a'"),
        (TWO, [fp32("a", 1, 4), fp32("c", 1, 4)], "unexpected inference input 'c' for model 'm'"),
        (TWO, [fp32("a", 1, 4), fp32("a", 1, 4)], "input 'a' already exists in request"),
        (
            TWO,
            [fp32("a", 1, 4), Tensor("b", Datatype.INT64, (1, 1, 2), bytes(16))],
            "inference input 'b' data-type is 'INT64', but model 'm' expects 'INT32'",
        ),
        (
            TWO,
            [fp32("a", 1, 5), ints("b", 1, 1, 2)],
            r"unexpected shape for input 'a' for model 'm'. Expected \[-1,4\], got \[1,5\]",
        ),
        (TWO, [fp32("a", 4), ints("b", 4, 1, 2)], r"Expected \[-1,4\], got \[4\]"),
        (TWO, [fp32("a"), ints("b", 1, 1, 2)], r"Expected \[-1,4\], got \[\]"),
        (TWO, [fp32("a", 1, 4), ints("b", 1, 1, 3)], r"Expected \[-1,-1,2\], got \[1,1,3\]"),
        (PLAIN, [fp32("a", 1, 2)], r"Expected \[-1\], got \[1,2\]"),
        (
            TWO,
            [fp32("a", 9, 4), ints("b", 9, 1, 2)],
            "inference request batch-size must be <= 8 for 'm'",
        ),
        (TWO, [fp32("a", 0, 4), ints("b", 0, 1, 2)], "batch-size must be >= 1 for 'm', got 0"),
        (
            TWO,
            [fp32("a", 2, 4), ints("b", 3, 1, 2)],
            "input 'b' batch size does not match other inputs for 'm': expected 2, got 3",
        ),
        (
            TWO,
            [Tensor("a", Datatype.FP32, (1, 4), bytes(15)), ints("b", 1, 1, 2)],
            "input byte size mismatch for input 'a'. Expected 16, got 15",
        ),
        (
            TWO,
            [fp32("a", 1, 4), Tensor("b", Datatype.INT32, (1, -1, 2), b"")],
            r"Expected \[-1,-1,2\], got \[1,-1,2\]",
        ),
    ],
)
def test_B53_a_wrong_input_is_named_with_what_was_expected_and_what_came(signed, inputs, text):
    with pytest.raises(InvalidRequest, match=text):
        signed.admit(inputs)


def test_B38_strings_are_counted_before_admission():
    words = signature([tensor_config("s", Datatype.BYTES, (59,))])
    with pytest.raises(InvalidRequest, match=r"elements 1 .* expecting 59"):
        words.admit([Tensor("s", Datatype.BYTES, (1, 59), join_bytes([b"w"]))])


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ([RequestedOutput("q")], "unexpected inference output 'q' for model 'm'"),
        ([RequestedOutput("y"), RequestedOutput("y")], "output 'y' already exists in request"),
    ],
)
def test_PB35_wrong_outputs(outputs, text):
    one = signature()
    with pytest.raises(InvalidRequest, match=text):
        one.admit([example(one.inputs[0])], outputs)


def test_names_are_found_and_wire_dims_show_the_batch_axis():
    assert TWO.input("b").wire_dims() == [-1, -1, 2]
    assert PLAIN.input("a").wire_dims() == [-1]
    assert TWO.input("y") is None
    assert TWO.output("y").index == 0
    assert TWO.output("a") is None


@pytest.mark.parametrize(
    ("dims", "reshape", "wire", "model"),
    [
        ((1,), (), (1,), ()),
        ((2, 3), (6,), (2, 3), (6,)),
        ((-1, 4), (-1, 2, 2), (5, 4), (5, 2, 2)),
        ((4,), None, (4,), (4,)),
    ],
)
def test_MR23_reshape_both_ways(dims, reshape, wire, model):
    spec = signature([tensor_config("a", dims=dims, reshape=reshape)]).inputs[0]
    assert spec.model_shape(wire) == model
    assert spec.wire_shape(model) == wire


def test_a_shape_that_does_not_fit_the_reshape_is_left_for_the_check_that_names_it():
    spec = signature([tensor_config("a", dims=(2, 3), reshape=(6,))]).inputs[0]
    assert spec.model_shape((2,)) == (2,)


def test_a_shape_tensor_has_no_batch_axis():
    spec = signature([tensor_config("x"), tensor_config("s", is_shape_tensor=True)])
    assert spec.input("s").wire_dims() == [4]
    assert spec.admit([fp32("x", 3, 4), fp32("s", 4)]).rows == 3
