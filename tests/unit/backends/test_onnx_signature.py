"""Completion from a model's tensors (SEMANTICS AC-01, AC-02) and the checks of what is configured."""

from __future__ import annotations

import pytest
from backend_kit import parsed
from headrace.backends.onnx_signature import check_config, complete_config
from headrace.backends.onnx_tensors import ModelTensor, ModelTensors
from headrace.schemas.errors import ConfigError
from headrace.schemas.tensor import Datatype

FLOAT = "tensor(float)"
OPEN = ModelTensors(
    inputs=(ModelTensor("x", FLOAT, (-1, 128)), ModelTensor("mask", "tensor(bool)", (-1, -1))),
    optional=(),
    outputs=(ModelTensor("y", FLOAT, (-1, 10)),),
)
FIXED = ModelTensors(
    inputs=(ModelTensor("x", FLOAT, (1, 4)),),
    optional=(),
    outputs=(ModelTensor("y", FLOAT, (1, 4)),),
)
OUTPUT_Y = 'output [{ name: "y" data_type: TYPE_FP32 dims: [10] }]'
INPUT_X = 'input [{ name: "x" data_type: TYPE_FP32 dims: [4] }]'


def complete(text: str, tensors: ModelTensors, default: int = 4):
    return complete_config(parsed(text), tensors, default, "m/1/model.onnx")


def test_AC02_open_first_dims_make_a_batching_model() -> None:
    """All first dims open: the default batch size, an empty dynamic batcher, dims without the batch axis."""
    config = complete("", OPEN)
    assert config.max_batch_size == 4
    assert config.message.HasField("dynamic_batching")
    assert config.dynamic_batching is not None
    assert config.dynamic_batching.preferred_batch_size == (4,)
    assert config.dynamic_batching.max_queue_delay_us == 0
    assert [(t.name, t.datatype, t.dims) for t in config.inputs] == [
        ("x", Datatype.FP32, (128,)),
        ("mask", Datatype.BOOL, (-1,)),
    ]
    assert [(t.name, t.datatype, t.dims) for t in config.outputs] == [("y", Datatype.FP32, (10,))]


@pytest.mark.parametrize(
    ("default", "size", "batches"), [(8, 8, True), (1, 1, False), (0, 0, False)]
)
def test_AC02_the_default_batch_size_is_a_setting(default, size, batches) -> None:
    """The dynamic batcher is added only above 1; with 0 the batch axis stays a dim of its own."""
    config = complete("", OPEN, default)
    assert config.max_batch_size == size
    assert (config.dynamic_batching is not None) is batches
    assert config.inputs[0].dims == ((128,) if size else (-1, 128))


def test_AC01_the_users_batch_size_and_scheduler_win() -> None:
    config = complete("max_batch_size: 32", OPEN)
    assert config.max_batch_size == 32
    assert config.dynamic_batching is not None
    config = complete("max_batch_size: 1", OPEN)
    assert config.max_batch_size == 1
    assert config.dynamic_batching is None
    text = "max_batch_size: 16 dynamic_batching { max_queue_delay_microseconds: 100 }"
    config = complete(text, OPEN)
    assert config.dynamic_batching is not None
    assert config.dynamic_batching.max_queue_delay_us == 100
    config = complete("max_batch_size: 16 sequence_batching { }", OPEN)
    assert config.message.WhichOneof("scheduling_choice") == "sequence_batching"


def test_AC02_a_fixed_first_dim_does_not_batch() -> None:
    config = complete("", FIXED)
    assert config.max_batch_size == 0
    assert config.dynamic_batching is None
    assert config.inputs[0].dims == (1, 4)


@pytest.mark.parametrize("tensors", [FIXED, ModelTensors(OPEN.inputs, (), FIXED.outputs)])
def test_AC02_asking_for_batches_of_a_model_that_has_none_is_refused(tensors) -> None:
    """The sentence names the tensor whose first dimension is fixed."""
    with pytest.raises(ConfigError, match="does not support batching") as caught:
        complete("max_batch_size: 8", tensors)
    assert "m/1/model.onnx: max_batch_size = 8" in str(caught.value)
    assert "[1, 4]" in str(caught.value)


def test_AC02_only_the_absent_side_is_filled() -> None:
    """Listed outputs stay as they are; inputs are filled, and the batch size with them."""
    config = complete(OUTPUT_Y, OPEN)
    assert config.outputs == parsed(OUTPUT_Y).outputs
    assert [t.name for t in config.inputs] == ["x", "mask"]
    assert config.max_batch_size == 4


def test_AC02_nothing_is_filled_where_both_sides_are_listed() -> None:
    """Not even the batch size; the same object comes back."""
    config = parsed(f"{INPUT_X} {OUTPUT_Y}")
    assert complete_config(config, OPEN, 4, "f") is config


def test_AC02_tensors_without_item_dims_become_one_reshaped_to_none() -> None:
    """[N] on a batching model is dims [1] with reshape []; a scalar elsewhere is dims [1] alone."""
    batching = ModelTensors(
        (ModelTensor("x", FLOAT, (-1, 4)),), (), (ModelTensor("label", "tensor(int64)", (-1,)),)
    )
    label = complete("", batching).outputs[0]
    assert (label.dims, label.reshape) == ((1,), ())
    scalar = ModelTensors((ModelTensor("v", FLOAT, ()),), (), (ModelTensor("d", FLOAT, ()),))
    config = complete("", scalar)
    assert config.max_batch_size == 0
    assert [(t.dims, t.reshape) for t in (*config.inputs, *config.outputs)] == [((1,), None)] * 2


def test_AC01_inputs_with_a_value_of_their_own_are_not_filled() -> None:
    tensors = ModelTensors(OPEN.inputs, (ModelTensor("bias", FLOAT, (10,)),), OPEN.outputs)
    assert [t.name for t in complete("", tensors).inputs] == ["x", "mask"]


def test_AC01_what_is_listed_must_agree_with_the_model() -> None:
    text = 'output [{ name: "y" data_type: TYPE_FP64 dims: [10] }]'
    with pytest.raises(ConfigError, match="TYPE_FP64"):
        complete(text, OPEN)


def test_a_tensor_without_a_V2_datatype_is_refused_by_name() -> None:
    odd = ModelTensors(OPEN.inputs, (), (ModelTensor("all", "seq(tensor(float))", (-1,)),))
    with pytest.raises(ConfigError, match=r"output\.all.*seq\(tensor\(float\)\)"):
        complete("", odd)


def test_completion_leaves_the_parsed_configuration_alone() -> None:
    config = parsed("")
    before = config.message.SerializeToString()
    complete_config(config, OPEN, 4, "f")
    assert config.message.SerializeToString() == before


BATCHING = "max_batch_size: 8"
MASK = '{ name: "mask" data_type: TYPE_BOOL dims: [-1] }'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            f'{BATCHING} input [{{ name: "X" data_type: TYPE_FP32 dims: [128] }}]',
            ["input.name = X", "no input of this name", "'x' (FP32 [-1, 128])"],
        ),
        (
            f'{BATCHING} input [{{ name: "x" data_type: TYPE_FP64 dims: [128] }}, {MASK}]',
            ["input.x.data_type = TYPE_FP64", "expected data_type TYPE_FP32"],
        ),
        (
            f'{BATCHING} input [{{ name: "x" data_type: TYPE_FP32 dims: [64] }}, {MASK}]',
            ["input.x.dims = [64]", "FP32 [-1, 128]", "[-1, 64]"],
        ),
        (
            f'{BATCHING} input [{{ name: "x" data_type: TYPE_FP32 dims: [128, 1] }}, {MASK}]',
            ["input.x.dims = [128, 1]", "[-1, 128, 1]"],
        ),
        (
            f'{BATCHING} input [{{ name: "x" data_type: TYPE_FP32 dims: [128] }}]',
            ["input", "does not list: 'mask' (BOOL [-1, -1])"],
        ),
        (
            (
                f'{BATCHING} input [{{ name: "x" data_type: TYPE_FP32 dims: [128] optional: true }},'
                f" {MASK}]"
            ),
            ["input.x", "expected a required input"],
        ),
        (
            (
                f'{BATCHING} input [{{ name: "x" data_type: TYPE_FP32 dims: [128] }}, {MASK}]'
                ' output [{ name: "z" data_type: TYPE_FP32 dims: [10] }]'
            ),
            ["output.name = z", "no output of this name", "'y' (FP32 [-1, 10])"],
        ),
        (
            (
                f'{BATCHING} input [{{ name: "x" data_type: TYPE_FP32 dims: [128]'
                f" allow_ragged_batch: true }}, {MASK}]"
            ),
            ["input.x.allow_ragged_batch", "expected shape [-1] for a ragged input"],
        ),
    ],
)
def test_a_contradiction_names_the_tensor_and_what_the_model_has(text, words) -> None:
    with pytest.raises(ConfigError) as caught:
        check_config(parsed(text), OPEN, "m/1/model.onnx")
    for word in ("m/1/model.onnx", *words):
        assert word in str(caught.value)


def test_MR23_the_reshaped_dims_are_what_must_fit() -> None:
    text = 'max_batch_size: 8 input [{ name: "x" data_type: TYPE_FP32 dims: [8, 16] %s }]'
    tensors = ModelTensors((OPEN.inputs[0],), (), ())
    check_config(parsed(text % "reshape { shape: [128] }"), tensors, "f")
    with pytest.raises(ConfigError, match=r"input\.x\.dims = \[8, 16\]"):
        check_config(parsed(text % ""), tensors, "f")


def test_an_open_size_fits_any_on_either_side() -> None:
    text = (
        'input [{ name: "x" data_type: TYPE_FP32 dims: [-1, 4] }]'
        'output [{ name: "y" data_type: TYPE_FP32 dims: [2, 4] }]'
    )
    tensors = ModelTensors(
        (ModelTensor("x", FLOAT, (3, 4)),), (), (ModelTensor("y", FLOAT, (-1, -1)),)
    )
    check_config(parsed(text), tensors, "f")


def test_a_scalar_is_configured_with_ones() -> None:
    tensors = ModelTensors((ModelTensor("v", FLOAT, ()),), (), ())
    text = 'input [{ name: "v" data_type: TYPE_FP32 dims: [%s] }]'
    check_config(parsed(text % "1"), tensors, "f")
    with pytest.raises(ConfigError, match=r"dims \[1\] for a scalar"):
        check_config(parsed(text % "2"), tensors, "f")
    with pytest.raises(ConfigError, match="open first dimension"):
        check_config(parsed(f"max_batch_size: 2 {text % '1'}"), tensors, "f")


def test_MR25_ragged_inputs_and_their_helpers_fit_flat_tensors() -> None:
    """§1.4: helpers count as inputs, and a scattered output keeps its own dims."""
    tensors = ModelTensors(
        (ModelTensor("flat", FLOAT, (-1,)), ModelTensor("ends", "tensor(int32)", (-1,))),
        (),
        (ModelTensor("total", FLOAT, (-1,)),),
    )
    text = """
        max_batch_size: 4
        input [{ name: "flat" data_type: TYPE_FP32 dims: [-1] allow_ragged_batch: true }]
        batch_input [{ kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ends"
                       data_type: TYPE_%s source_input: "flat" }]
        output [{ name: "total" data_type: TYPE_FP32 dims: [-1, 7] }]
        batch_output [{ target_name: "total" kind: BATCH_SCATTER_WITH_INPUT_SHAPE
                        source_input: "flat" }]
    """
    check_config(parsed(text % "INT32"), tensors, "f")
    with pytest.raises(ConfigError, match=r"batch_input\.ends\.data_type = TYPE_FP32"):
        check_config(parsed(text % "FP32"), tensors, "f")
