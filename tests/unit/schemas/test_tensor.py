"""Tensors: raw bytes against shapes, BYTES elements, numpy both ways."""

import math
import struct

import numpy as np
import pytest
from headrace.schemas.errors import InvalidRequest
from headrace.schemas.tensor import (
    MAX_ELEMENTS,
    Datatype,
    Tensor,
    count_bytes_elements,
    datatype_of,
    datatype_of_numpy,
    element_count,
    join_bytes,
    split_bytes,
)

FIXED = [datatype for datatype in Datatype if datatype is not Datatype.BYTES]
WORDS = [b"", b"a", "é".encode(), b"\x00\xff", bytes(1 << 20)]


@pytest.mark.parametrize(
    ("datatype", "size"),
    list(zip(Datatype, [1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2, 0], strict=True)),
)
def test_sizes_are_those_of_PB44(datatype, size):
    assert datatype.size == size
    if size:
        assert datatype.numpy.itemsize == size


def test_an_unknown_datatype_is_named_with_those_that_exist():
    with pytest.raises(InvalidRequest, match=r"'FP8' is unknown, expected one of BOOL, UINT8"):
        datatype_of("FP8")


@pytest.mark.parametrize(("shape", "count"), [((), 1), ((0,), 0), ((2, 3), 6), ((4, 0, 9), 0)])
def test_element_count(shape, count):
    assert element_count(shape) == count


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((2, -1), "negative dimension"),
        ((1,) * 65, "65 dimensions, expected at most 64"),
        ((MAX_ELEMENTS, 2), "claims more than"),
        ((0, 2**62), "claims more than"),
        ((10**5000, 10**5000), "claims more than"),
    ],
)
def test_absurd_shapes_are_refused_in_one_short_sentence(shape, text):
    with pytest.raises(InvalidRequest, match=text) as caught:
        element_count(shape)
    assert len(caught.value.detail) < 1000


def test_numpy_takes_every_empty_shape_that_is_accepted():
    tensor = Tensor("x", Datatype.FP64, (0, MAX_ELEMENTS), b"")
    assert tensor.numpy().shape == (0, MAX_ELEMENTS)
    assert np.frombuffer(b"").reshape(0, 1024, MAX_ELEMENTS).size == 0  # as in a batch of many


@pytest.mark.parametrize("datatype", FIXED)
@pytest.mark.parametrize("more", [-1, 1])
def test_B38_bytes_that_do_not_hold_the_shape_are_refused(datatype, more):
    tensor = Tensor("x", datatype, (2, 3), bytes(6 * datatype.size + more))
    with pytest.raises(InvalidRequest, match="input byte size mismatch for input 'x'"):
        tensor.check()
    with pytest.raises(InvalidRequest):
        tensor.numpy()


@pytest.mark.parametrize("datatype", FIXED)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 2), (2, 2)])
def test_fixed_datatypes_pass_numpy_bit_for_bit(datatype, shape):
    count = math.prod(shape)
    data = bytes(
        i % 2 if datatype is Datatype.BOOL else 255 - i for i in range(count * datatype.size)
    )
    tensor = Tensor("x", datatype, shape, memoryview(data))
    array = tensor.numpy()
    assert array.shape == shape
    assert not array.flags.writeable
    assert Tensor.from_numpy("x", array, datatype) == tensor


def test_B55_string_elements_pass_numpy_and_back():
    data = join_bytes(WORDS)
    tensor = Tensor("s", Datatype.BYTES, (5, 1), data)
    tensor.check()
    assert split_bytes("s", data) == WORDS
    assert split_bytes("s", memoryview(data)) == WORDS
    assert tensor.numpy().ravel().tolist() == WORDS
    assert Tensor.from_numpy("s", tensor.numpy()) == tensor


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x01\x00\x00", "expecting 4 bytes but only 3 bytes available"),
        (struct.pack("<I", 5) + b"four", "expecting string of length 5 but only 4 bytes"),
        (struct.pack("<I", 2**32 - 1), "length 4294967295 but only 0 bytes"),
        (join_bytes([b"ok"]) + b"\x09", "only 1 bytes available"),
    ],
)
def test_B55_a_prefix_beyond_the_buffer_is_refused_without_over_read(data, text):
    for walk in (count_bytes_elements, split_bytes):
        with pytest.raises(InvalidRequest, match=text):
            walk("s", data)


@pytest.mark.parametrize("got", [1, 60])
def test_B38_another_number_of_strings_than_the_shape_says(got):
    tensor = Tensor("s", Datatype.BYTES, (59,), join_bytes([b"w"] * got))
    with pytest.raises(InvalidRequest, match=rf"elements {got} .*'s', expecting 59"):
        tensor.check()
    with pytest.raises(InvalidRequest, match="expecting 59"):
        tensor.numpy()


def test_text_arrays_become_utf8_BYTES():
    tensor = Tensor.from_numpy("s", np.array(["é", "b"]))
    assert tensor.datatype is Datatype.BYTES
    assert split_bytes("s", tensor.data) == ["é".encode(), b"b"]


def test_B51_BF16_is_the_upper_half_of_the_float_and_any_pattern_of_bits():
    numbers = np.array([1.0, -2.5, np.inf, np.nan, 1e-40], np.float32)
    tensor = Tensor.from_numpy("x", numbers, Datatype.BF16)
    assert tensor.data == (numbers.view("<u4") >> 16).astype("<u2").tobytes()
    bits = np.array([0x0001, 0x7F81, 0xFFC1], np.uint16)
    assert Tensor.from_numpy("x", bits, Datatype.BF16).numpy().tolist() == bits.tolist()


def test_B51_FP16_subnormals_and_NaN_payloads_are_kept():
    bits = np.array([0x0001, 0x83FF, 0x7C01, 0xFE55], "<u2")
    tensor = Tensor("x", Datatype.FP16, (4,), bits.tobytes())
    assert Tensor.from_numpy("x", tensor.numpy()).data == bits.tobytes()


def test_foreign_byte_order_and_strides_are_put_right():
    array = np.arange(6, dtype=">i4").reshape(2, 3).T
    tensor = Tensor.from_numpy("x", array)
    assert tensor.shape == (3, 2)
    assert tensor.numpy().tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_numpy_dtype_without_datatype_is_named():
    with pytest.raises(InvalidRequest, match="complex128 has no V2 datatype"):
        datatype_of_numpy(np.dtype(complex))


def test_equality_looks_at_everything_and_repr_shows_no_data():
    one = Tensor("x", Datatype.INT8, (2,), b"ab")
    assert one == Tensor("x", Datatype.INT8, (2,), memoryview(b"ab"))
    assert one != Tensor("y", Datatype.INT8, (2,), b"ab")
    assert one != Tensor("x", Datatype.UINT8, (2,), b"ab")
    assert one != Tensor("x", Datatype.INT8, (1, 2), b"ab")
    assert one != Tensor("x", Datatype.INT8, (2,), b"ac")
    assert one != "x"
    assert repr(one) == "Tensor('x', INT8, [2], 2 bytes)"
