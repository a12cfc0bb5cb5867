"""A proposed mapping reads as a mapping, takes the sample, and says what it was not sure of."""

from headrace.schemas.mapping import ModelMapping, RequestMapping, ResultsMapping, SourceMapping
from headrace.schemas.mapping_format import FormatSettings
from headrace.schemas.mapping_propose import leaves, propose
from headrace.schemas.tensor import Datatype
from mapping_kit import decode_one, mapped, plan, record, sequence_model
from wire_kit import signature, tensor_config

JSON = FormatSettings("json")
BASE = ModelMapping(
    "the proposal",
    SourceMapping("payments", JSON, "latest", "skip"),
    (),
    RequestMapping(),
    None,
    ResultsMapping("", JSON),
)


def proposed(sample, model, key=None):
    return propose(sample, model, BASE, key=key)


def test_the_fields_of_a_sample_in_order():
    found = leaves({"a": 1, "b": {"c": [1], "odd.name": {"d": 2}}, "": 3, "e": {}})
    assert [leaf.path.text for leaf in found] == ["a", "b.c", 'b["odd.name"].d', "e"]
    assert all(leaf.path.steps for leaf in leaves({"odd.name": 1}))


def test_numbers_become_one_tensor_and_ids_pass_through():
    sample = {"id": "p", "customer_id": 9, "a": 1, "b": {"c": 2.5, "is_new": True}, "d": 4}
    text = proposed(sample, signature())
    assert '    "b.is_new",  # sample: true\n' in text
    entry = decode_one(text, record(sample))
    assert entry.passed == ("p", 9)
    found = mapped(text)
    assert [f.path.text for f in found.inputs[0].fields] == ["a", "b.c", "b.is_new", "d"]
    assert (found.source.offset_reset, found.results.topic) == ("latest", "payments.results")
    assert plan(text).results[0].mapping.name == "y"


def test_a_list_that_fits_is_taken_by_its_name():
    model = signature(
        [tensor_config("pixels", dims=(3,)), tensor_config("text", Datatype.BYTES, (1,))]
    )
    sample = {"other": [7, 8, 9], "image_pixels": [1, 2, 3], "title": "x", "body_text": "y"}
    text = proposed(sample, model)
    assert 'field = "image_pixels"  # sample: a list of 3' in text
    assert "# also fit: other" in text
    assert "field = \"body_text\"  # sample: 'y'" in text
    decode_one(text, record(sample), model)


def test_what_is_not_found_is_left_to_the_reader():
    text = proposed({"a": 1, "b": "x"}, signature())
    assert "# Nothing in the sample fits: 1 numbers are left, expected 4." in text
    assert mapped(text).inputs[0].fields[0].path.text == "?"


def test_a_sequence_is_that_of_the_key_or_of_an_id():
    sample = {"car_id": 7, "v": [1, 2, 3, 4]}
    text = proposed(sample, sequence_model(), key=b"k-1")
    assert "id = \"key\"  # sample: 'k-1'" in text
    assert decode_one(text, record(sample, key=b"k-1"), sequence_model()).sequence_id == "k-1"
    text = proposed(sample, sequence_model())
    assert mapped(text).sequence.id.text == "car_id"
    assert decode_one(text, record(sample), sequence_model()).sequence_id == "7"
    assert mapped(proposed({"v": [1, 2, 3, 4]}, sequence_model())).sequence.id is None


def test_an_output_that_has_the_name_of_a_passed_field_gets_another_one():
    model = signature(outputs=[tensor_config("id"), tensor_config("error")])
    text = proposed({"id": 1, "v": [1, 2, 3, 4]}, model)
    names = [result.mapping.name for result in plan(text, model).results]
    assert names == ["id_output", "error_output"]
