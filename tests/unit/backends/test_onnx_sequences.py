"""What sequence batching asks of an ONNX file: controls, states, batch axes and constants (SEMANTICS SB-05…SB-09)."""

from __future__ import annotations

import numpy as np
import pytest
from backend_kit import parsed
from headrace.backends.onnx_feeds import constant_feeds, feed_shapes, fetch_shapes
from headrace.backends.onnx_signature import check_config, complete_config
from headrace.backends.onnx_tensors import ModelTensor, ModelTensors
from headrace.schemas.errors import ConfigError
from headrace.schemas.tensor import Datatype

FILE = "m/1/model.onnx"
FLOAT, INT64 = "tensor(float)", "tensor(int64)"
SILERO = ModelTensors(
    inputs=(
        ModelTensor("input", FLOAT, (-1, -1)),
        ModelTensor("state", FLOAT, (2, -1, 128)),
        ModelTensor("sr", INT64, ()),
    ),
    optional=(),
    outputs=(ModelTensor("output", FLOAT, (-1, 1)), ModelTensor("stateN", FLOAT, (-1, -1, -1))),
)
"""As Silero VAD's file declares itself."""


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }} '


def state(*, given="state", made="stateN", datatype="TYPE_FP32", dims="[2, 128]") -> str:
    return f'state {{ input_name: "{given}" output_name: "{made}" data_type: {datatype} dims: {dims} }} '


AXES = parameter("batch_axis.state", "1") + parameter("batch_axis.stateN", "1")
RATE = parameter("constant.sr", "16000")
GOOD = f"max_batch_size: 64 sequence_batching {{ oldest {{}} {state()} }} {AXES} {RATE}"


def complete(text: str, tensors: ModelTensors = SILERO, default: int = 4):
    return complete_config(parsed(text), tensors, default, FILE)


def test_AC02_a_sequence_model_is_completed_with_what_clients_send_and_get():
    """Controls, states and constants are the server's: they are no inputs and outputs (SB-06, SB-09)."""
    config = complete(GOOD)
    assert [(t.name, t.datatype, t.dims) for t in config.inputs] == [
        ("input", Datatype.FP32, (-1,))
    ]
    assert [(t.name, t.datatype, t.dims) for t in config.outputs] == [
        ("output", Datatype.FP32, (1,))
    ]
    assert config.max_batch_size == 64
    assert config.dynamic_batching is None
    assert config.sequence_batching is not None
    assert config.sequence_batching.max_candidates == 64


def test_AC02_the_batch_size_of_a_sequence_model_is_filled_in_and_what_follows_from_it():
    """SB-03: candidates and preferred sizes follow the batch size that auto-complete chose, not the 0 before."""
    config = complete(GOOD.replace("max_batch_size: 64", ""))
    assert config.max_batch_size == 4
    assert config.dynamic_batching is None
    assert config.sequence_batching is not None
    assert config.sequence_batching.max_candidates == 4
    assert config.sequence_batching.preferred_batch_size == (4,)


def test_AC02_a_state_whose_batch_axis_is_not_said_keeps_the_model_from_batching():
    config_text = f"sequence_batching {{ {state(dims='[2, -1, 128]')} }} {RATE}"
    assert complete(config_text).max_batch_size == 0
    with pytest.raises(ConfigError, match="the first dimension of 'state' is not open") as caught:
        complete(f"max_batch_size: 2 {config_text}")
    assert caught.value.expected.endswith("say so by the parameter batch_axis.state")
    with pytest.raises(ConfigError, match="dimension 2, the batch axis, of 'state' is not open"):
        complete(f"max_batch_size: 2 {config_text} {parameter('batch_axis.state', '2')}")


def test_AC02_a_scalar_that_keeps_a_model_from_batching_may_be_a_constant():
    with pytest.raises(ConfigError, match="the first dimension of 'sr' is not open") as caught:
        complete(GOOD.replace(RATE, ""))
    assert caught.value.expected.endswith("give it by the parameter constant.sr")


def test_a_misspelt_parameter_is_named_before_what_follows_from_it():
    """Without ``batch_axis.state`` the model would not batch, and that would be no help."""
    for key in ("batch_axis.state", "constant.sr"):
        with pytest.raises(ConfigError) as caught:
            complete(GOOD.replace(f'"{key}"', f'"{key}x"'))
        assert caught.value.field == f"parameters[{key}x]"


def test_AC02_an_input_whose_batch_axis_is_placed_is_filled_without_it():
    tensors = ModelTensors(
        (ModelTensor("x", FLOAT, (3, -1, 5)),), (), (ModelTensor("y", FLOAT, (7, -1)),)
    )
    text = parameter("batch_axis.x", "1") + parameter("batch_axis.y", "1")
    config = complete(text, tensors)
    assert config.max_batch_size == 4
    assert [t.dims for t in (*config.inputs, *config.outputs)] == [(3, 5), (7,)]


def test_SB09_a_state_that_is_declared_as_output_is_checked_as_both():
    declared = """output { name: "output" data_type: TYPE_FP32 dims: [1] }
                  output { name: "stateN" data_type: TYPE_FP32 dims: [2, 128] }"""
    assert [t.name for t in complete(f"{GOOD} {declared}").outputs] == ["output", "stateN"]
    with pytest.raises(ConfigError, match=r"output\.stateN\.data_type = TYPE_INT64"):
        complete(f"{GOOD} {declared.replace('FP32 dims: [2', 'INT64 dims: [2')}")


@pytest.mark.parametrize(
    ("text", "field", "value", "expected"),
    [
        (GOOD.replace('"state"', '"h"'), "sequence_batching.state[h].input_name", "h", "no input of this name"),
        (GOOD.replace('output_name: "stateN"', 'output_name: "h"'), "sequence_batching.state[state].output_name",
         "h", "no output of this name"),
        (GOOD.replace("TYPE_FP32", "TYPE_FP64"), "sequence_batching.state[state].data_type", "TYPE_FP64",
         "expected data_type TYPE_FP32"),
        (GOOD.replace("[2, 128]", "[2, 64]"), "sequence_batching.state[state].dims", "[2, 64]",
         "an open dimension 1 among the item's dims, since max_batch_size > 0 makes the whole shape [2, -1, 64]"),
        (GOOD.replace("[2, 128]", "[2]"), "sequence_batching.state[state].dims", "[2]", "[2, -1]"),
        (GOOD.replace("batch_axis.stateN", "batch_axis.stateM"), "parameters[batch_axis.stateM]", "stateM",
         "the model has no tensor of this name"),
        (GOOD.replace("constant.sr", "constant.rate"), "parameters[constant.rate]", "rate",
         "the model has no input of this name"),
        (GOOD.replace(RATE, ""), "input.sr.dims", "[1]", "the model's tensor is INT64 []"),
    ],
)  # fmt: skip
def test_SB07_what_contradicts_the_file_is_refused_by_field_and_value(
    text, field, value, expected
):
    listed = """input { name: "input" data_type: TYPE_FP32 dims: [-1] }
                output { name: "output" data_type: TYPE_FP32 dims: [1] }"""
    if "constant.sr" not in text and "constant.rate" not in text:
        listed += 'input { name: "sr" data_type: TYPE_INT64 dims: [1] }'
    with pytest.raises(ConfigError) as caught:
        check_config(parsed(f"{text} {listed}"), SILERO, FILE)
    assert (caught.value.file, caught.value.field, caught.value.value) == (FILE, field, value)
    assert expected in caught.value.expected


@pytest.mark.parametrize(
    ("given", "made", "expected"),
    [
        ((FLOAT, (2, 4, 128)), (FLOAT, (-1, -1, -1)), "an open dimension 1 among"),
        ((FLOAT, (2, -1, 128)), (FLOAT, (2, 4, 128)), "an open dimension 1 among"),
        ((FLOAT, (2, -1, 128)), (FLOAT, (3, -1, 128)), "the whole shape [2, -1, 128]"),
        ((FLOAT, (2, -1, 128)), ("tensor(double)", (2, -1, 128)), "expected data_type TYPE_FP64"),
    ],
)  # fmt: skip
def test_SB07_both_tensors_of_a_state_must_fit_it(given, made, expected):
    """Also where batches are of one size in the file: it would fail at the first batch of another."""
    tensors = ModelTensors(
        (SILERO.inputs[0], ModelTensor("state", *given), SILERO.inputs[2]),
        (),
        (SILERO.outputs[0], ModelTensor("stateN", *made)),
    )
    listed = """input { name: "input" data_type: TYPE_FP32 dims: [-1] }
                output { name: "output" data_type: TYPE_FP32 dims: [1] }"""
    with pytest.raises(ConfigError) as caught:
        check_config(parsed(f"{GOOD} {listed}"), tensors, FILE)
    assert caught.value.field.startswith("sequence_batching.state[state].d")
    assert expected in caught.value.expected


def controlled(batch: int, *shapes, types=(FLOAT, "tensor(bool)", "tensor(uint64)")):
    """Return a configuration with START, READY and CORRID, and a model that takes them in these shapes."""
    tensors = ModelTensors(
        (
            ModelTensor("x", FLOAT, (-1, 1)),
            *(
                ModelTensor(name, kind, shape)
                for name, kind, shape in zip(
                    ("START", "READY", "CORRID"), types, shapes, strict=True
                )
            ),
        ),
        (),
        (ModelTensor("y", FLOAT, (-1, 1)),),
    )
    dims = "[1]" if batch else "[-1, 1]"
    text = f"""max_batch_size: {batch} input {{ name: "x" data_type: TYPE_FP32 dims: {dims} }}
        output {{ name: "y" data_type: TYPE_FP32 dims: {dims} }}
        sequence_batching {{
          control_input {{ name: "START" control {{ kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] }} }}
          control_input {{ name: "READY" control {{ kind: CONTROL_SEQUENCE_READY bool_false_true: [false, true] }} }}
          control_input {{ name: "CORRID" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }} }}
        }}"""
    return text, tensors


@pytest.mark.parametrize(
    ("batch", "shape", "feed"),
    [
        (4, (-1, 1), None),
        (4, (-1,), (-1,)),
        (4, (-1, 1, 1), (-1, 1, 1)),
        (4, (-1, -1), None),
        (0, (1,), None),
        (0, (-1,), None),
        (0, (), ()),
        (0, (1, 1), (1, 1)),
    ],
)
def test_SB06_a_control_is_fed_in_the_shape_that_the_model_takes(batch, shape, feed):
    """One element a row: [N, 1] is what a batch makes, and the rest is the same values in another shape."""
    text, tensors = controlled(batch, shape, shape, shape)
    config = parsed(text)
    check_config(config, tensors, FILE)
    expected = {} if feed is None else dict.fromkeys(("START", "READY", "CORRID"), feed)
    assert feed_shapes(config, tensors) == expected


def test_SB06_a_control_may_have_its_batch_axis_elsewhere():
    text, tensors = controlled(4, (1, -1), (-1, 1), (-1, 1))
    with pytest.raises(ConfigError, match="open dimension 0"):
        check_config(parsed(text), tensors, FILE)
    config = parsed(text + parameter("batch_axis.START", "1"))
    check_config(config, tensors, FILE)
    assert feed_shapes(config, tensors) == {"START": (1, -1)}


@pytest.mark.parametrize(
    ("batch", "shape", "expected"),
    [
        (4, (1, 1), "an open dimension 0"),
        (4, (), "an open dimension 0"),
        (4, (-1, 2), "no other size than 1"),
        (0, (2,), "shape [1]"),
    ],
)
def test_SB06_a_control_of_another_shape_is_refused(batch, shape, expected):
    text, tensors = controlled(batch, shape, (-1, 1), (-1, 1))
    with pytest.raises(ConfigError) as caught:
        check_config(parsed(text), tensors, FILE)
    assert caught.value.field == "sequence_batching.control_input[START].name"
    assert expected in caught.value.expected


def test_SB05_a_control_must_have_the_models_datatype():
    text, tensors = controlled(4, (-1, 1), (-1, 1), (-1, 1), types=(FLOAT, "tensor(bool)", INT64))
    with pytest.raises(ConfigError, match="expected data_type TYPE_INT64") as caught:
        check_config(parsed(text), tensors, FILE)
    assert caught.value.field == "sequence_batching.control_input[CORRID].control.data_type"


def test_SB06_a_control_that_the_model_needs_and_nobody_makes_is_named():
    text, tensors = controlled(4, (-1, 1), (-1, 1), (-1, 1))
    without = [line for line in text.splitlines() if "CORRID" not in line]
    with pytest.raises(ConfigError, match="does not list: 'CORRID'"):
        check_config(parsed("\n".join(without)), tensors, FILE)


def test_SB06_a_control_that_the_model_does_not_take_is_refused():
    text, tensors = controlled(4, (-1, 1), (-1, 1), (-1, 1))
    with pytest.raises(ConfigError, match="no input of this name") as caught:
        check_config(parsed(text.replace('"READY"', '"ready"')), tensors, FILE)
    assert caught.value.field == "sequence_batching.control_input[ready].name"


def test_scalar_states_of_a_model_without_batching_have_dims_of_one():
    """AC-02 for states: a scalar is configured as [1], and fed and fetched as the model has it."""
    tensors = ModelTensors(
        (ModelTensor("x", FLOAT, ()), ModelTensor("s", FLOAT, ())),
        (),
        (ModelTensor("y", FLOAT, ()), ModelTensor("sN", FLOAT, ())),
    )
    config = complete(
        f"sequence_batching {{ {state(given='s', made='sN', dims='[1]')} }}", tensors
    )
    assert feed_shapes(config, tensors) == {"x": (), "s": ()}
    assert fetch_shapes(config, tensors) == {"y": (1,), "sN": (1,)}
    assert feed_shapes(complete(GOOD), SILERO) == fetch_shapes(complete(GOOD), SILERO) == {}


def constant(text: str, kind: str, shape: tuple[int, ...]):
    """Return what a model input of this type and shape is fed."""
    tensors = ModelTensors((ModelTensor("c", kind, shape),), (), ())
    return constant_feeds(parsed(parameter("constant.c", text)), tensors, FILE)["c"]


@pytest.mark.parametrize(
    ("text", "kind", "shape", "expected"),
    [
        ("16000", INT64, (), np.array(16000, np.int64)),
        ("16000", INT64, (1,), np.array([16000], np.int64)),
        (" -1, +2,3 ", "tensor(int8)", (3,), np.array([-1, 2, 3], np.int8)),
        ("1,2,3,4", FLOAT, (2, 2), np.array([[1, 2], [3, 4]], np.float32)),
        ("1,2,3,4", FLOAT, (-1, 2), np.array([[1, 2], [3, 4]], np.float32)),
        ("1,2,3,4", FLOAT, (-1,), np.array([1, 2, 3, 4], np.float32)),
        ("0.5", "tensor(float16)", (), np.array(0.5, np.float16)),
        ("1e-3", "tensor(double)", (1, 1), np.array([[1e-3]])),
        ("1.5", "tensor(bfloat16)", (), np.array(0x3FC0, np.uint16)),
        ("true,false", "tensor(bool)", (2,), np.array([True, False])),
        ("18446744073709551615", "tensor(uint64)", (), np.array(2**64 - 1, np.uint64)),
    ],
)
def test_a_constant_has_the_models_datatype_and_shape(text, kind, shape, expected):
    """Whole numbers are exact, and nobody may write to what every run is fed."""
    array = constant(text, kind, shape)
    assert array.dtype == expected.dtype
    assert array.shape == expected.shape
    np.testing.assert_array_equal(array, expected)
    assert not array.flags.writeable


@pytest.mark.parametrize(
    ("text", "kind", "shape", "expected"),
    [
        ("16k", INT64, (), "expected integers that INT64 can hold"),
        ("1.0", INT64, (), "expected integers that INT64 can hold"),
        ("128", "tensor(int8)", (), "expected integers that INT8 can hold"),
        ("-1", "tensor(uint64)", (), "expected integers that UINT64 can hold"),
        ("true", INT64, (), "expected integers that INT64 can hold"),
        ("1,,2", INT64, (3,), "expected integers that INT64 can hold"),
        ("1", "tensor(bool)", (), "expected true or false that BOOL can hold"),
        ("nan", FLOAT, (), "expected finite numbers that FP32 can hold"),
        ("1e39", FLOAT, (), "expected finite numbers that FP32 can hold"),
        ("70000", "tensor(float16)", (), "expected finite numbers that FP16 can hold"),
        ("x", FLOAT, (), "expected finite numbers that FP32 can hold"),
        ("a", "tensor(string)", (), "expected a model input of numbers or booleans"),
        ("1", "seq(tensor(float))", (), "expected a plain one"),
        ("1,2", INT64, (), "whose shape is [], not 2"),
        ("1,2,3", INT64, (2,), "whose shape is [2], not 3"),
        ("1,2,3", INT64, (-1, 2), "whose shape is [-1, 2], not 3"),
        ("1", INT64, (-1, -1), "whose shape is [-1, -1], not 1"),
        ("1", INT64, (0,), "whose shape is [0], not 1"),
    ],
)
def test_a_constant_that_does_not_fit_is_refused(text, kind, shape, expected):
    with pytest.raises(ConfigError) as caught:
        constant(text, kind, shape)
    assert caught.value.field == "parameters[constant.c]"
    assert caught.value.file == FILE
    assert expected in caught.value.expected


def test_a_constant_may_replace_a_value_that_the_file_has_itself():
    tensors = ModelTensors(SILERO.inputs, (ModelTensor("gain", FLOAT, (1,)),), SILERO.outputs)
    config = complete(GOOD + parameter("constant.gain", "2"), tensors)
    assert constant_feeds(config, tensors, FILE)["gain"].tolist() == [2.0]
