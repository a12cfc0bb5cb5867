"""The schema of results in Avro: as people read it, and what it refuses."""

import json

import pytest
from headrace.schemas.avro_records import FramedAvro, PlainAvro
from headrace.schemas.avro_results import result_schema
from headrace.schemas.errors import ConfigError, InvalidRequest
from headrace.schemas.framing import framed
from headrace.schemas.mapping_format import ResultField
from headrace.schemas.tensor import Datatype

FIELDS = [
    ResultField("id", None),
    ResultField("score", Datatype.FP32),
    ResultField("label", Datatype.BYTES, is_text=True),
    ResultField("boxes", Datatype.FP64, (-1, 4), is_optional=False),
]


def test_fields_are_typed_by_the_outputs_and_by_what_is_passed_through():
    schema = json.loads(result_schema("fraud-v2 (eu)", FIELDS, {"id": ["null", "string"]}))
    assert (schema["namespace"], schema["name"]) == ("headrace.results", "FraudV2EuResult")
    assert schema["fields"] == [
        {"name": "id", "type": ["null", "string"], "default": None},
        {"name": "score", "type": ["null", "float"], "default": None},
        {"name": "label", "type": ["null", "string"], "default": None},
        {
            "name": "boxes",
            "type": {"type": "array", "items": {"type": "array", "items": "double"}},
        },
    ]


@pytest.mark.parametrize("name", ["dense/BiasAdd:0", "1st", "größe", "", "a.b"])
def test_a_name_that_avro_does_not_take_is_refused(name):
    with pytest.raises(ConfigError, match="no name that Avro takes"):
        result_schema("m", [ResultField(name, Datatype.FP32)])


@pytest.mark.parametrize("name", ["", "é", "7b", "a-b.c"])
def test_any_model_has_a_record_name(name):
    PlainAvro(result_schema(name, FIELDS))


def test_a_number_without_sign_that_is_too_large_is_refused():
    plain = PlainAvro(result_schema("m", [ResultField("n", Datatype.UINT64)]))
    assert plain.read(plain.write({"n": 2**63 - 1})) == {"n": 2**63 - 1}
    with pytest.raises(InvalidRequest, match="field 'n' of the result is 9223372036854775808"):
        plain.write({"n": 2**63})


def test_a_schema_that_gained_a_field_reads_old_results_and_old_readers_new_ones():
    old = result_schema("m", FIELDS)
    new = result_schema("m", [*FIELDS, ResultField("more", Datatype.FP32)])
    value = {"id": 5, "score": 0.5, "label": "cat", "boxes": [[1.0]]}
    for reader, writer, expected in ((new, old, {**value, "more": None}), (old, new, value)):
        results = FramedAvro(reader)
        results.learn(1, writer)
        assert results.read(framed(1) + PlainAvro(writer).write(value)) == expected
