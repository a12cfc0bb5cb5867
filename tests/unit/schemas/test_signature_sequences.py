"""What a sequence model's signature takes, gives and refuses (SEMANTICS SB-06, SB-09, SQ-01, SQ-02, SQ-14)."""

import pytest
from headrace.schemas.config_text import config_from_message, parse_config
from headrace.schemas.errors import InvalidRequest
from headrace.schemas.infer import RequestedOutput
from headrace.schemas.model_config import ControlKind
from headrace.schemas.signature import Signature
from headrace.schemas.tensor import Datatype, Tensor

TENSORS = """input { name: "x" data_type: TYPE_FP32 dims: [4] }
             input { name: "hint" data_type: TYPE_FP32 dims: [1] optional: true }
             output { name: "y" data_type: TYPE_FP32 dims: [4] }"""
STATE = 'state { input_name: "s" output_name: "t" data_type: TYPE_FP32 dims: [2, -1] }'


def signature(sequences="", *, batch=8, rest=""):
    text = f"max_batch_size: {batch} {TENSORS} sequence_batching {{ {sequences} }} {rest}"
    return Signature(config_from_message(parse_config(text, "f"), directory_name="m"), 3)


def corrid(datatype):
    return f"""control_input {{ name: "ID" control {{
               kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_{datatype} }} }}"""


def fp32(name, *shape):
    size = 4
    for dim in shape:
        size *= dim
    return Tensor(name, Datatype.FP32, shape, bytes(size))


AXIS = 'parameters { key: "batch_axis.%s" value { string_value: "1" } }'


def test_SB07_states_are_specs_of_their_two_tensors():
    found = signature(STATE, rest=AXIS % "t")
    (state,) = found.states
    assert (state.input.name, state.output.name) == ("s", "t")
    for spec in (state.input, state.output):
        assert (spec.datatype, spec.dims, spec.index) == (Datatype.FP32, (2, -1), 0)
        assert spec.batched
        assert not spec.fixed
    assert (state.input.batch_axis, state.output.batch_axis) == (0, 1)
    assert found.is_sequence


def test_states_of_a_model_without_batching_have_no_batch_axis():
    (state,) = signature(STATE, batch=0).states
    assert (state.input.batched, state.input.batch_axis) == (False, 0)


def test_batch_axes_are_the_models_and_not_the_wires():
    """Records have the batch axis in front, wherever the model has it."""
    found = signature(rest=AXIS % "x" + AXIS % "y")
    assert [spec.batch_axis for spec in (*found.inputs, *found.outputs)] == [1, 0, 1]
    assert found.input("x").wire_dims() == [-1, 4]
    assert found.admit([fp32("x", 3, 4)]).rows == 3


def test_SB05_controls_are_in_the_order_of_the_configuration():
    start = 'control_input { name: "B" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } }'
    found = signature(corrid("UINT64") + start)
    assert [(control.name, control.kind) for control in found.controls] == [
        ("ID", ControlKind.CORRID),
        ("B", ControlKind.START),
    ]


@pytest.mark.parametrize("name", ["ID", "s"])
def test_SB06_a_client_must_not_send_a_control_or_a_state(name):
    """It is no input: by its name where the number of inputs could be right, by the number else."""
    found = signature(corrid("UINT64") + STATE)
    with pytest.raises(InvalidRequest, match=f"unexpected inference input '{name}' for model 'm'"):
        found.admit([fp32("x", 1, 4), fp32(name, 1, 1)])
    with pytest.raises(InvalidRequest, match="expected number of inputs between 1 and 2"):
        found.admit([fp32("x", 1, 4), fp32("hint", 1, 1), fp32(name, 1, 1)])


def test_SB09_a_state_is_returned_only_where_it_is_declared_as_output():
    with pytest.raises(InvalidRequest, match="unexpected inference output 't' for model 'm'"):
        signature(STATE).check_outputs([RequestedOutput("t")])
    declared = 'output { name: "t" data_type: TYPE_FP32 dims: [2, -1] }'
    signature(STATE, rest=declared).check_outputs([RequestedOutput("t")])


@pytest.mark.parametrize("sequence_id", [0, ""])
def test_SQ01_a_step_has_an_id(sequence_id):
    with pytest.raises(InvalidRequest) as caught:
        signature().check_sequence(sequence_id, 1)
    assert caught.value.detail == (
        "inference request to model 'm' must specify a non-zero or non-empty correlation ID"
    )


def test_SQ01_is_said_before_SQ02():
    with pytest.raises(InvalidRequest, match="correlation ID"):
        signature(corrid("STRING")).check_sequence(0, 2)


def test_SQ02_a_step_has_one_row():
    with pytest.raises(InvalidRequest, match=(
        "inference request to model 'm' must specify batch-size 1 due to requirements of sequence batcher"
    )):  # fmt: skip
        signature().check_sequence(7, 2)
    signature().check_sequence(7, 1)


@pytest.mark.parametrize("datatype", ["UINT64", "INT64", "UINT32", "INT32"])
def test_SQ14_a_number_is_expected_where_CORRID_is_one(datatype):
    found = signature(corrid(datatype))
    found.check_sequence(2**64 - 1, 1)
    with pytest.raises(InvalidRequest) as caught:
        found.check_sequence("7", 1)
    assert caught.value.detail == (
        f"sequence batching control 'CORRID' data-type is 'BYTES', but model 'm' expects '{datatype}'"
    )


def test_SQ14_text_is_expected_where_CORRID_is_text():
    found = signature(corrid("STRING"))
    found.check_sequence("7", 1)
    with pytest.raises(
        InvalidRequest, match="data-type is 'UINT64', but model 'm' expects 'BYTES'"
    ):
        found.check_sequence(7, 1)


@pytest.mark.parametrize("sequence_id", [7, "7"])
def test_SQ14_without_a_CORRID_control_both_kinds_are_taken(sequence_id):
    signature(STATE).check_sequence(sequence_id, 1)


def test_other_models_take_requests_with_and_without_id():
    text = f"max_batch_size: 8 {TENSORS}"
    found = Signature(config_from_message(parse_config(text, "f"), directory_name="m"), 1)
    assert not found.is_sequence
    assert found.states == found.controls == ()
    found.check_sequence(0, 8)
    found.check_sequence("a", 8)
