"""Batches: columns joined and split, ragged helpers, and outputs that do not fit."""

import numpy as np
import pytest
from headrace.schemas.batch import Batch, helper_input
from headrace.schemas.errors import WrongOutput
from headrace.schemas.infer import RequestedOutput
from headrace.schemas.model_config import BatchInput, BatchInputKind, BatchOutput
from headrace.schemas.split import split_output
from headrace.schemas.tensor import Datatype, join_bytes, split_bytes
from wire_kit import batch, entry, signature, tensor_config


def floats(*values):
    return np.array(values, np.float32).tobytes()


def test_a_column_joins_the_rows_in_order():
    made = batch(entry(data=(floats(1, 2, 3, 4),)), entry(2, data=(floats(*range(8)),)))
    assert (len(made), made.rows) == (2, 3)
    assert repr(made) == "Batch(m, 2 entries, 3 rows)"
    assert made.column(0).tolist() == [[1, 2, 3, 4], [0, 1, 2, 3], [4, 5, 6, 7]]
    assert list(made.inputs()) == ["x"]


def test_one_entry_is_not_copied():
    data = floats(1, 2, 3, 4)
    column = batch(entry(data=(data,))).column(0)
    assert column.base is not None
    assert (
        column.__array_interface__["data"][0] == np.frombuffer(data).__array_interface__["data"][0]
    )


def test_views_join_as_copies_do():
    data = memoryview(b"...." + floats(1, 2, 3, 4))[4:]
    assert batch(entry(data=(data,)), entry(data=(data,))).column(0).tolist() == [[1, 2, 3, 4]] * 2


def test_B55_strings_join_as_objects():
    words = signature([tensor_config("s", Datatype.BYTES, (2,))])
    one = entry(data=(join_bytes([b"", "é".encode()]),), shapes=((2,),))
    two = entry(data=(join_bytes([b"\x00\xff", b"d"]),), shapes=((2,),))
    assert batch(one, two, of=words).column(0).tolist() == [
        [b"", "é".encode()],
        [b"\x00\xff", b"d"],
    ]


def test_DB12_an_absent_optional_input_is_left_out():
    pair = signature([tensor_config("a"), tensor_config("b", optional=True)])
    made = batch(entry(data=(bytes(16), None), shapes=((4,), None)), of=pair)
    assert made.column(1) is None
    assert list(made.inputs()) == ["a"]


def test_SQ11_a_padding_row_repeats_the_first_request():
    made = batch(entry(data=(floats(1, 2, 3, 4),)), None)
    assert made.rows == 2
    assert made.column(0).tolist() == [[1, 2, 3, 4]] * 2
    split = split_output(made, made.signature.outputs[0], np.ones((2, 2), np.float32))
    assert [shape for shape, _ in split] == [(1, 2), (1, 2)]


def test_MR23_the_model_sees_the_reshaped_column():
    shaped = signature(
        [tensor_config("x", dims=(4,), reshape=(2, 2))],
        [tensor_config("y", dims=(4,), reshape=(2, 2))],
    )
    made = batch(entry(), entry(), of=shaped)
    assert made.column(0).shape == (2, 2, 2)
    split = split_output(made, shaped.outputs[0], np.zeros((2, 2, 2), np.float32))
    assert [shape for shape, _ in split] == [(1, 4), (1, 4)]


def test_a_model_without_batching_gets_and_gives_the_whole_shape():
    plain = signature(max_batch_size=0)
    made = batch(entry(data=(floats(1, 2, 3, 4),)), of=plain)
    assert made.column(0).shape == (4,)
    assert split_output(made, plain.outputs[0], np.float32([5, 6])) == [((2,), floats(5, 6))]


def test_a_shape_tensor_is_given_and_returned_once_for_the_batch():
    shaped = signature(
        [tensor_config("x"), tensor_config("s", Datatype.INT32, (2,), is_shape_tensor=True)],
        [tensor_config("t", Datatype.INT32, (2,), is_shape_tensor=True)],
    )
    wanted = np.array([7, 8], np.int32)
    one = entry(data=(bytes(16), wanted.tobytes()), shapes=((4,), (2,)))
    made = batch(one, one, of=shaped)
    assert made.column(1).tolist() == [7, 8]
    assert split_output(made, shaped.outputs[0], wanted) == [((2,), wanted.tobytes())] * 2


# ----- outputs


def test_outputs_are_split_by_rows():
    made = batch(entry(), entry(3), entry())
    array = np.arange(10, dtype=np.float32).reshape(5, 2)
    assert split_output(made, made.signature.outputs[0], array) == [
        ((1, 2), floats(0, 1)),
        ((3, 2), floats(2, 3, 4, 5, 6, 7)),
        ((1, 2), floats(8, 9)),
    ]


@pytest.mark.parametrize("rows", [(1, 1, 1), (1, 2)])
def test_B48_an_output_without_elements_is_a_result(rows):
    boxes = signature(outputs=[tensor_config("boxes", dims=(-1, 6))])
    made = batch(*map(entry, rows), of=boxes)
    array = np.zeros((3, 0, 6), np.float32)
    assert split_output(made, boxes.outputs[0], array) == [((n, 0, 6), b"") for n in rows]


def test_string_outputs_are_split():
    words = signature(outputs=[tensor_config("w", Datatype.BYTES, (1,))])
    array = np.array([[b"a"], [b""], ["é"]], dtype=object)
    split = split_output(batch(entry(), entry(2), of=words), words.outputs[0], array)
    assert [shape for shape, _ in split] == [(1, 1), (2, 1)]
    assert split_bytes("w", split[1][1]) == [b"", "é".encode()]


def test_a_column_in_column_order_is_split_by_rows():
    made = batch(entry(), entry())
    array = np.asfortranarray([[1, 2], [3, 4]], dtype=np.float32)
    assert split_output(made, made.signature.outputs[0], array)[1] == ((1, 2), floats(3, 4))


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.zeros((1, 2), np.float32), "expected 3 rows"),
        (np.zeros((4, 2), np.float32), "expected 3 rows"),
        (np.float32(1), "expected 3 rows"),
        (np.zeros((3, 2), np.float64), "returned float64 for output 'y', expected FP32"),
        (np.zeros((3, 3), np.float32), r"item shape \[3\] for output 'y', expected \[2\]"),
        (np.zeros((3,), np.float32), r"item shape \[\]"),
    ],
)
def test_B36_an_output_that_does_not_fit_its_batch_is_refused(array, text):
    made = batch(entry(), entry(2))
    with pytest.raises(WrongOutput, match=text):
        split_output(made, made.signature.outputs[0], array)


def test_B36_no_batching_and_a_wrong_shape():
    plain = signature(max_batch_size=0)
    with pytest.raises(WrongOutput, match=r"item shape \[1, 2\]"):
        split_output(batch(entry(), of=plain), plain.outputs[0], np.zeros((1, 2), np.float32))


def test_wants_looks_at_every_entry():
    made = batch(
        entry(outputs=(RequestedOutput("a"),)), None, entry(outputs=(RequestedOutput("b"),))
    )
    assert [made.wants(name) for name in "abc"] == [True, True, False]
    assert batch(entry()).wants("c")


def test_responses_do_not_pin_the_column():
    made = batch(entry(), entry())
    (_, data), _ = split_output(made, made.signature.outputs[0], np.zeros((2, 2), np.float32))
    assert type(data) is bytes


# ----- ragged (SEMANTICS §1.4)

HELPERS = {
    BatchInputKind.BATCH_ELEMENT_COUNT: [3, 4, 5],
    BatchInputKind.BATCH_ACCUMULATED_ELEMENT_COUNT: [3, 7, 12],
    BatchInputKind.BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO: [0, 3, 7, 12],
    BatchInputKind.BATCH_MAX_ELEMENT_COUNT_AS_SHAPE: [0] * 5,
    BatchInputKind.BATCH_ITEM_SHAPE: [[3], [4], [5]],
    BatchInputKind.BATCH_ITEM_SHAPE_FLATTEN: [3, 4, 5],
}


def ragged(kind=None, outputs=None, datatype=Datatype.INT32, dims=(-1,)):
    helper = (BatchInput(kind, ("helper",), datatype, "x"),) if kind else ()
    return signature(
        [tensor_config("x", dims=dims, allow_ragged_batch=True)],
        outputs,
        batch_inputs=helper,
        batch_outputs=(BatchOutput(("y",), "x"),),
    )


def of_sizes(*sizes, of):
    made, at = [], 0
    for size in sizes:
        made.append(entry(data=(floats(*range(at, at + size)),), shapes=((size,),)))
        at += size
    return Batch(of, made)


@pytest.mark.parametrize("kind", HELPERS)
@pytest.mark.parametrize("datatype", [Datatype.INT32, Datatype.FP32])
def test_MR25_requests_of_3_4_and_5_elements(kind, datatype):
    made = of_sizes(3, 4, 5, of=ragged(kind, datatype=datatype))
    columns = made.inputs()
    assert columns["x"].tolist() == list(range(12))
    assert columns["helper"].tolist() == HELPERS[kind]
    assert columns["helper"].dtype == datatype.numpy


def test_the_item_shapes_of_a_request_with_rows_stand_once_per_row():
    kind = BatchInputKind.BATCH_ITEM_SHAPE
    signed = ragged(kind, dims=(-1, -1))
    one = entry(2, data=(floats(*range(4)),), shapes=((1, 2),))
    two = entry(1, data=(floats(*range(3)),), shapes=((3, 1),))
    made = batch(one, two, of=signed)
    assert made.column(0).shape == (7,)
    assert helper_input(signed.batch_inputs[0], made).tolist() == [[1, 2], [1, 2], [3, 1]]


def test_the_counts_are_of_requests_and_not_of_rows():
    """SEMANTICS §1.4: a request of two rows has one count, of all of its elements."""
    signed = ragged(BatchInputKind.BATCH_ELEMENT_COUNT)
    one = entry(2, data=(floats(*range(4)),), shapes=((2,),))
    two = entry(1, data=(floats(*range(3)),), shapes=((3,),))
    assert helper_input(signed.batch_inputs[0], batch(one, two, of=signed)).tolist() == [4, 3]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (BatchInputKind.BATCH_ELEMENT_COUNT, [0, 0]),
        (BatchInputKind.BATCH_ACCUMULATED_ELEMENT_COUNT, [0, 0]),
        (BatchInputKind.BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO, [0, 0, 0]),
        (BatchInputKind.BATCH_MAX_ELEMENT_COUNT_AS_SHAPE, []),
        (BatchInputKind.BATCH_ITEM_SHAPE, [[0], [0]]),
        (BatchInputKind.BATCH_ITEM_SHAPE_FLATTEN, [0, 0]),
    ],
)
def test_DB12_an_absent_source_has_no_elements(kind, expected):
    """The requests of a batch leave out the same inputs."""
    signed = signature(
        [tensor_config("x", dims=(-1,), allow_ragged_batch=True, optional=True)],
        [tensor_config("y", dims=(-1,))],
        batch_inputs=(BatchInput(kind, ("helper",), Datatype.INT32, "x"),),
        batch_outputs=(BatchOutput(("y",), "x"),),
    )
    made = batch(*[entry(data=(None,), shapes=(None,)) for _ in range(2)], of=signed)
    columns = made.inputs()
    assert "x" not in columns
    assert columns["helper"].tolist() == expected
    empty = np.zeros(0, np.float32)
    assert split_output(made, signed.outputs[0], empty) == [((1, 0), b"")] * 2


def test_a_ragged_output_is_split_as_its_input_was_joined():
    signed = ragged(outputs=[tensor_config("y", dims=(-1,))])
    made = of_sizes(3, 0, 5, of=signed)
    split = split_output(made, signed.outputs[0], np.arange(8, dtype=np.float32))
    assert split == [
        ((1, 3), floats(0, 1, 2)),
        ((1, 0), b""),
        ((1, 5), floats(3, 4, 5, 6, 7)),
    ]


@pytest.mark.parametrize("count", [7, 9])
def test_B36_a_ragged_output_of_another_size_is_refused(count):
    signed = ragged(outputs=[tensor_config("y", dims=(-1,))])
    made = of_sizes(3, 5, of=signed)
    with pytest.raises(WrongOutput, match=f"returned {count} elements for ragged output 'y'"):
        split_output(made, signed.outputs[0], np.zeros(count, np.float32))
