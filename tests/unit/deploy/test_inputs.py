"""Input tensors from the command line: what is filled in, and what is refused with which words."""

import numpy as np
import pytest
from headrace.deploy.inputs import (
    InputSpec,
    example_tensors,
    fit_shape,
    tensors_from_arguments,
)
from headrace.schemas.errors import InvalidRequest
from headrace.schemas.tensor import Datatype

X = InputSpec("x", Datatype.FP32, (-1, 4))
IDS = InputSpec("ids", Datatype.INT64, (-1, -1))
WORD = InputSpec("word", Datatype.BYTES, (-1, 1))


def one(spec, argument):
    (tensor,) = tensors_from_arguments((spec,), (argument,))
    return tensor


@pytest.mark.parametrize(
    ("wanted", "got", "expected"),
    [
        ((-1, 4), (2, 4), (2, 4)),
        ((-1, 4), (4,), (1, 4)),
        ((-1, 4), (8,), (2, 4)),
        ((-1, -1), (5,), (1, 5)),
        ((2, 3), (6,), (2, 3)),
        ((-1, 3, -1), (6,), (1, 3, 2)),
        ((), (1,), ()),
        ((-1,), (0,), (0,)),
    ],
)
def test_a_shape_is_filled_in_where_it_is_clear(wanted, got, expected):
    assert fit_shape(InputSpec("x", Datatype.FP32, wanted), got) == expected


@pytest.mark.parametrize(
    ("wanted", "got"),
    [((-1, 4), (3,)), ((2, 3), (5,)), ((-1, 3, -1), (4,)), ((-1, 4), (2, 5)), ((2, -1, -1), (8,))],
)
def test_a_count_that_fits_no_shape_names_the_input_and_both_shapes(wanted, got):
    with pytest.raises(InvalidRequest) as caught:
        fit_shape(InputSpec("x", Datatype.FP32, wanted), got)
    assert caught.value.detail == (
        f"input 'x' expects shape {list(wanted)} (-1 is any size), got {list(got)}"
    )


def test_values_with_commas_become_one_row():
    tensor = one(X, "x=1,2.5,-3,4e2")
    assert tensor.shape == (1, 4)
    assert tensor.numpy().tolist() == [[1.0, 2.5, -3.0, 400.0]]


def test_a_model_with_one_input_needs_no_name():
    assert one(X, "1,2,3,4").shape == (1, 4)
    assert one(X, "[[1,2,3,4],[5,6,7,8]]").shape == (2, 4)


def test_a_json_list_gives_the_shape():
    assert one(IDS, "ids=[[1,2,3],[4,5,6]]").numpy().tolist() == [[1, 2, 3], [4, 5, 6]]


def test_bytes_take_words_and_whole_files(tmp_path):
    assert one(WORD, "word=hé").numpy().tolist() == [["hé".encode()]]
    path = tmp_path / "cat.jpg"
    path.write_bytes(b"\xff\xd8=,\x00")
    assert one(WORD, f"word=@{path}").numpy().tolist() == [[b"\xff\xd8=,\x00"]]


def test_bool_takes_words_and_digits():
    spec = InputSpec("b", Datatype.BOOL, (-1, 4))
    assert one(spec, "b=true,False,1,0").numpy().tolist() == [[True, False, True, False]]
    with pytest.raises(InvalidRequest, match="neither true nor false"):
        one(spec, "b=true,maybe,1,0")


def test_bf16_is_truncated_from_floats():
    tensor = one(InputSpec("h", Datatype.BF16, (2,)), "h=1,-2")
    assert tensor.numpy().tolist() == [0x3F80, 0xC000]


def test_an_npy_file_is_read_and_given_its_batch_axis(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(4, dtype=np.float64))
    tensor = one(X, f"x=@{path}")
    assert tensor.datatype is Datatype.FP32
    assert tensor.shape == (1, 4)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("y=1,2,3,4", "the model has no input 'y', expected one of x, ids"),
        ("1,2,3,4", "names no tensor, expected NAME=VALUES for x, ids"),
        ("x=1,two,3,4", "input 'x' takes FP32 elements, and '1,two,3,4' holds others"),
        ("ids=1.5,2", "input 'ids' takes INT64 elements"),
        ("x=[1,2", "input 'x' is no JSON list"),
        ("x=[[1,2],[3]]", "input 'x' takes FP32 elements"),
        ("x=@/nowhere/x.npy", "cannot be read for input 'x'"),
        ("x=@/nowhere/x.jpg", "expected a .npy file, got /nowhere/x.jpg"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(argument, words):
    with pytest.raises(InvalidRequest) as caught:
        tensors_from_arguments((X, IDS), (argument,))
    assert words in caught.value.detail


def test_integers_that_do_not_fit_are_refused():
    with pytest.raises(InvalidRequest, match="takes UINT8 elements"):
        one(InputSpec("u", Datatype.UINT8, (-1,)), "u=1,300")


def test_an_npy_file_of_another_kind_is_refused(tmp_path):
    np.save(tmp_path / "f.npy", np.ones(3, dtype=np.float32))
    with pytest.raises(InvalidRequest, match="takes INT64 elements, got float32"):
        one(IDS, f"ids=@{tmp_path / 'f.npy'}")


@pytest.mark.parametrize("datatype", list(Datatype))
def test_an_example_fits_its_spec_and_is_the_same_twice(datatype):
    spec = InputSpec("t", datatype, (-1, 3))
    (first,), (second,) = example_tensors((spec,)), example_tensors((spec,))
    assert first == second
    assert first.shape == (1, 3)
    assert first.datatype is datatype
    first.check()
