"""A mapping that does not fit its model is refused at start, with the nearest name."""

import pytest
from headrace.schemas.errors import ConfigError
from headrace.schemas.mapping_check import solved_shape
from headrace.schemas.mapping_format import ResultField
from headrace.schemas.tensor import Datatype
from mapping_kit import FIELDS, SOURCE, decoder, plan, sequence_model
from wire_kit import signature, tensor_config

TWO = signature(
    [tensor_config("features"), tensor_config("text", Datatype.BYTES, (1,), optional=True)],
    [tensor_config("probability", dims=(3,)), tensor_config("label", Datatype.INT64, (1,))],
)
FEATURES = SOURCE + '[inputs.features]\nfield = "f"\n'


def one(datatype, dims, **rest):
    return signature([tensor_config("x", datatype, dims, **rest)])


def test_a_mapping_that_fits_makes_a_plan_in_the_signatures_order():
    found = plan(FEATURES, TWO)
    features, text = found.inputs
    assert (features.mapping.encoding, features.shape, text) == ("list", (4,), None)
    assert [result.mapping.name for result in found.results] == ["probability", "label"]


@pytest.mark.parametrize(
    ("datatype", "dims", "said", "encoding", "shape"),
    [
        (Datatype.FP32, (1,), 'field = "a"', "number", (1,)),
        (Datatype.FP32, (), 'field = "a"', "number", ()),
        (Datatype.FP32, (1, 1), 'field = "a"', "number", (1, 1)),
        (Datatype.BYTES, (1,), 'field = "a"', "string", (1,)),
        (Datatype.INT64, (3,), 'field = "a"', "list", (3,)),
        (Datatype.INT64, (-1,), 'field = "a"', "list", (-1,)),
        (Datatype.INT64, (-1,), 'fields = ["a", "b"]', "number", (2,)),
        (Datatype.BYTES, (-1,), 'fields = ["a", "b"]', "string", (2,)),
        (Datatype.FP32, (-1, 2), 'fields = ["a", "b"]', "number", (1, 2)),
        (Datatype.FP32, (-1, -1), 'fields = ["a", "b"]', "number", (2, 1)),
        (Datatype.FP32, (-1, 2), 'field = "a"', "nested", (-1, 2)),
        (Datatype.FP32, (-1, 2), 'field = "a"\nshape = [8, 2]', "nested", (8, 2)),
        (Datatype.UINT8, (-1, 2), 'field = "a"\nencoding = "bytes"', "bytes", (-1, 2)),
    ],
)
def test_what_is_not_said_follows_from_the_input(datatype, dims, said, encoding, shape):
    found = plan(f"{SOURCE}[inputs.x]\n{said}", one(datatype, dims)).inputs[0]
    assert (found.mapping.encoding, found.shape) == (encoding, shape)


@pytest.mark.parametrize(
    ("shape", "count", "solved"),
    [
        ((4,), 4, (4,)),
        ((4,), 5, None),
        ((), 1, ()),
        ((-1,), 0, (0,)),
        ((-1, 3), 6, (2, 3)),
        ((-1, 3), 7, None),
        ((2, -1, -1), 6, (2, 3, 1)),
        ((0, -1), 0, None),
    ],
)
def test_a_shape_is_solved_for_its_elements(shape, count, solved):
    assert solved_shape(shape, count) == solved


def test_result_fields_say_what_a_record_has():
    text = FEATURES + (
        '[results]\npass = ["id"]\n[results.fields]\np = "probability"\nl = "label"\n'
        'best = {output = "probability", label = true}\ntop = {output = "probability", top_k = 2}'
    )
    assert plan(text, TWO).result_fields() == (
        ResultField("id", None),
        ResultField("p", Datatype.FP32, (3,)),
        ResultField("l", Datatype.INT64),
        ResultField("best", Datatype.BYTES, is_text=True),
        ResultField("top", None, is_classes=True),
        ResultField("error", Datatype.BYTES, is_text=True),
    )


def test_labels_are_the_mappings_own_or_the_models():
    text = FEATURES + (
        '[results.fields]\na = {output = "probability", label = true}\n'
        'b = {output = "probability", label = true, labels = ["x"]}\n'
    )
    a, b = plan(text, TWO, {"probability": ["m"]}).results
    assert (a.labels, b.labels) == (["m"], ("x",))


X = SOURCE + "[inputs.x]\n"


@pytest.mark.parametrize(
    ("text", "model", "words"),
    [
        (
            SOURCE + '[inputs.feature]\nfield = "f"',
            TWO,
            "inputs.feature: model 'm' has no such input, did you mean 'features'?",
        ),
        (
            SOURCE + '[inputs.zzz]\nfield = "f"',
            TWO,
            "inputs.zzz: model 'm' has no such input, expected one of features, text",
        ),
        (
            SOURCE + '[inputs.text]\nfield = "f"',
            TWO,
            "inputs: model 'm' needs the input 'features' (input 'features', FP32 [4]), expected a table",
        ),
        (
            FEATURES + 'datatype = "FP64"',
            TWO,
            "inputs.features.datatype = FP64: model 'm' has FP32 there",
        ),
        (
            FEATURES + "shape = [5]",
            TWO,
            "features.shape = [5]: expected a shape that fits dims [4]",
        ),
        (FEATURES + "shape = [4, 1]", TWO, "expected a shape that fits dims [4]"),
        (
            FEATURES + 'encoding = "string"',
            TWO,
            "encoding = string: expected number, list, nested",
        ),
        (
            FEATURES + 'encoding = "number"',
            TWO,
            "inputs.features.fields: 1 field with encoding 'number' give so many elements, expected 4 of input",
        ),
        (
            SOURCE + '[inputs.features]\nfields = ["a", "b", "c"]',
            TWO,
            "3 fields with encoding 'number' give so many elements, expected 4",
        ),
        (
            X + 'field = "a"\nencoding = "number"',
            one(Datatype.BYTES, (1,)),
            "expected string, list",
        ),
        (
            X + 'field = "a"\nencoding = "bytes"',
            one(Datatype.BYTES, (2,)),
            "such a field is one element",
        ),
        (
            X + 'field = "a"\nencoding = "list"',
            one(Datatype.FP32, (-1, -1)),
            "a shape with one -1",
        ),
        (
            X + 'field = "a"\nencoding = "nested"',
            one(Datatype.FP32, ()),
            "expected number or string",
        ),
        (FEATURES + '[sequence]\nid = "key"', TWO, "sequence: model 'm' has no sequence_batching"),
        (
            FEATURES + '[results.fields]\ns = "probabilities"',
            TWO,
            "results.fields.s = probabilities: model 'm' has no such output, did you mean 'probability'?",
        ),
        (
            FEATURES + '[results]\npass = ["label"]',
            TWO,
            "results: the result has 'label' already, expected a table [results.fields] that names",
        ),
        (
            FEATURES + '[results]\nformat = "v2"\npass = ["a"]',
            TWO,
            "results.pass: expected none with format 'v2'",
        ),
        (
            FEATURES + '[results]\nformat = "v2"\n[results.fields]\na = "label"',
            TWO,
            "results.fields: ",
        ),
        (
            FIELDS + '[results.fields]\na = {output = "y", label = true}',
            signature(outputs=[tensor_config("y", Datatype.BYTES, (3,))]),
            "results.fields.a: class result not available for output 'y' due to unsupported type 'BYTES'",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_nearest_name(text, model, words):
    with pytest.raises(ConfigError) as caught:
        plan(text, model)
    assert words in str(caught.value)
    assert str(caught.value).startswith("fraud.toml: ")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ('field = "a"\nencoding = "list"\ndefault = [1, 2, 3]', "field 'a' is a list of 3"),
        ('fields = ["a", "b", "c", {path = "d", default = "x"}]', "field 'd' is 'x'"),
        ('fields = ["a", "b", "c", "d"]\ndefault = 1e300', "field 'a' is 1e+300"),
    ],
)
def test_a_default_that_fits_no_element_is_refused(said, words):
    with pytest.raises(ConfigError, match=r"inputs.x.default") as caught:
        decoder(X + said)
    assert f"the default does not fit: {words}, expected" in str(caught.value)


def test_a_sequence_model_needs_to_know_its_sequences():
    with pytest.raises(
        ConfigError, match=r"sequence: model 'm' has sequence_batching, expected a table"
    ):
        plan(FIELDS, sequence_model())


def test_the_id_has_the_type_that_the_models_control_takes():
    number = sequence_model(Datatype.UINT64)
    assert plan(FIELDS + '[sequence]\nid = "key"', number).mapping.sequence.id_type == "uint64"
    text = FIELDS + '[sequence]\nid = "key"\ntype = "uint64"'
    assert plan(text, sequence_model()).mapping.sequence.id_type == "uint64"
    with pytest.raises(
        ConfigError, match=r"sequence.type = string: expected uint64, for the control"
    ):
        plan(text.replace("uint64", "string"), number)
