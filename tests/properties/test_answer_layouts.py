"""Answers that are recognised by their layout mean what the general path reads from them."""

import pytest
from headrace.schemas import avro, v2json
from headrace.schemas.answer_layout import AnswerLayouts
from headrace.schemas.errors import BackendError, InferError
from headrace.schemas.infer import InferResponse
from headrace.schemas.layout import MAX_LAYOUTS, MAX_PER_LENGTH
from headrace.schemas.tensor import Datatype, Tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_kit import NAMES, PARAMETERS, fp32, tensors

IDS = st.one_of(st.just(""), st.text(st.characters(codec="utf-8"), max_size=200))
ANSWERS = st.builds(
    InferResponse, st.lists(tensors(), max_size=3).map(tuple), IDS, NAMES, NAMES, PARAMETERS
)


def answer(*values, id="", version="1"):  # noqa: A002  # the protocol's word
    return InferResponse((fp32(*values),), id, "m", version)


def outcome(read, value):
    """What a value is read as, or the error that it is."""
    try:
        return read(value)
    except InferError as error:
        return type(error), error.detail


@st.composite
def changed(draw):
    """An answer's value, and the same with some bytes changed, removed or added."""
    value = avro.write_response(draw(ANSWERS))
    other = bytearray(value)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(other)))
        other[place : place + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return value, bytes(other)


@settings(deadline=None, max_examples=200)
@given(st.lists(ANSWERS, max_size=5), ANSWERS, IDS)
def test_answers_mean_the_same_whatever_was_learned_before(learned, made, other_id):
    """The second time, under another id, it is recognised."""
    layouts = AnswerLayouts()
    for one in (*learned, made):
        layouts.read(avro.write_response(one))
    again = InferResponse(made.outputs, other_id, made.model_name, made.model_version)
    for one in (made, again):
        assert layouts.read(avro.write_response(one)) == one


@settings(deadline=None, max_examples=400)
@given(changed())
def test_B41_any_change_of_any_byte_means_the_same_by_both_paths(pair):
    """Whatever it makes of the value: another answer, or an error."""
    value, other = pair
    layouts = AnswerLayouts()
    layouts.read(value)
    assert outcome(layouts.read, other) == outcome(avro.parse_response, other)


def test_every_byte_of_a_usual_answer_set_to_a_spread_of_values(monkeypatch):
    """The same, exhaustively for one answer; those with other data are recognised."""
    value = avro.write_response(answer(1, 2, 3, 4, id="ab"))
    general = avro.parse_response
    layouts = AnswerLayouts()
    layouts.read(value)
    read_anew = []
    monkeypatch.setattr(avro, "parse_response", lambda v: read_anew.append(v) or general(v))
    total = 0
    for place in range(len(value)):
        for byte in (0, 1, 2, 3, 4, 5, 0x7F, 0x80, 0xFF):
            other = value[:place] + bytes([byte]) + value[place + 1 :]
            assert outcome(layouts.read, other) == outcome(general, other), (place, byte)
            total += 1
    assert total - len(read_anew) > 16 * 8, "the data's bytes, at least, are free"


def test_an_error_is_read_as_one_and_not_learned():
    layouts = AnswerLayouts()
    value = avro.write_error("7", ("m", "1"), BackendError("it broke"))
    for _ in range(2):
        with pytest.raises(InferError, match="it broke"):
            layouts.read(value)
    assert len(layouts) == 0


def test_strings_are_not_learned():
    """Their length varies from answer to answer."""
    layouts = AnswerLayouts()
    text = Tensor("s", Datatype.BYTES, (1,), b"\1\0\0\0a")
    layouts.read(avro.write_response(InferResponse((text,), "", "m", "1")))
    assert len(layouts) == 0


def test_what_is_kept_is_bounded():
    """Shapes without end, and versions without end of one shape."""
    layouts = AnswerLayouts()
    for rows in range(1, 2 * MAX_LAYOUTS):
        layouts.read(avro.write_response(answer(*[0.0] * rows)))
    assert len(layouts) == MAX_LAYOUTS
    layouts = AnswerLayouts()
    for version in range(10, 10 + 3 * MAX_PER_LENGTH):
        layouts.read(avro.write_response(answer(1, version=str(version))))
    assert [len(known) for known in layouts._by_length.values()] == [MAX_PER_LENGTH]


@settings(deadline=None, max_examples=200)
@given(ANSWERS)
def test_BN05_a_remembered_JSON_part_is_what_the_general_path_writes(made):
    """Both with binary outputs only; a parameter keeps the one off the short way."""
    body, length = v2json.write_response(made, v2json.all_binary)
    assert v2json.parse_response(body, length) == made
    usual = InferResponse(made.outputs, made.id, made.model_name, made.model_version)
    marked = InferResponse(made.outputs, made.id, made.model_name, made.model_version, {"a": True})
    short, short_length = v2json.write_response(usual, v2json.all_binary)
    long, long_length = v2json.write_response(marked, v2json.all_binary)
    assert short == long.replace(b'"parameters":{"a":true},', b"", 1)
    assert (short_length is None) == (long_length is None)
