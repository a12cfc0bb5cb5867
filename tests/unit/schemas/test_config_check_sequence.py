"""Whether a sequence batcher makes sense (SEMANTICS SB-02…SB-09, SB-13), and the parameters that name tensors."""

import pytest
from headrace.schemas.config_check import check_config
from headrace.schemas.config_text import config_from_message, parse_config
from headrace.schemas.errors import ConfigError

FILE = "models/m/config.pbtxt"
TENSORS = """input { name: "x" data_type: TYPE_FP32 dims: [4] }
             output { name: "y" data_type: TYPE_FP32 dims: [4] } """


def check(text, **how):
    config = config_from_message(parse_config(text, FILE), file=FILE, directory_name="m")
    check_config(config, file=FILE, **how)


def sequences(text, batch=8, rest=""):
    return f"{TENSORS} max_batch_size: {batch} sequence_batching {{ {text} }} {rest}"


def control(name, kind="START", values="fp32_false_true: [0, 1]"):
    return (
        f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_{kind} {values} }} }} '
    )


def state(*, given="s", made="t", dims="[2, 128]", datatype="TYPE_FP32", rest=""):
    return f"""state {{ input_name: "{given}" output_name: "{made}" data_type: {datatype} dims: {dims}
                        {rest} }} """


def initial(*, name="i", datatype="TYPE_FP32", dims="[2, 128]", data="zero_data: true"):
    return state(
        rest=f'initial_state {{ name: "{name}" data_type: {datatype} dims: {dims} {data} }}'
    )


def parameter(key, value):
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }} '


SILERO = """
    name: "m" backend: "onnxruntime" max_batch_size: 64
    input { name: "input" data_type: TYPE_FP32 dims: [576] }
    output { name: "output" data_type: TYPE_FP32 dims: [1] }
    sequence_batching {
      oldest { max_candidate_sequences: 128 preferred_batch_size: [32, 64] max_queue_delay_microseconds: 2000 }
      max_sequence_idle_microseconds: 30000000
      state { input_name: "state" output_name: "stateN" data_type: TYPE_FP32 dims: [2, 128]
              initial_state { name: "silence" data_type: TYPE_FP32 dims: [2, 128] zero_data: true } }
    }
    parameters { key: "batch_axis.state" value { string_value: "1" } }
    parameters { key: "batch_axis.stateN" value { string_value: "1" } }
    parameters { key: "constant.sr" value { string_value: "16000" } }
"""


@pytest.mark.parametrize(
    "text",
    [
        SILERO,
        sequences(""),
        sequences("", batch=0),
        sequences("direct { max_queue_delay_microseconds: 5 minimum_slot_utilization: 1 }"),
        sequences("oldest { preferred_batch_size: [1, 8] max_candidate_sequences: 3 }"),
        sequences(control("a") + control("b", "END") + control("c", "READY", "bool_false_true: [false, true]")
                  + control("d", "CORRID", "data_type: TYPE_STRING")),
        sequences(state(dims="[-1, 3]", rest="use_same_buffer_for_input_output: true use_growable_memory: true")),
        sequences(state() + state(given="s2", made="t2")),
        sequences(initial(data='data_file: "f"')),
        # SB-09: a state that is returned too is declared as an output of the same tensor
        sequences(state(made="y", dims="[4]")),
        sequences(state(made="y", dims="[-1]")),
        # inputs and outputs are two sets of names
        sequences(state(given="y", made="x")),
        sequences(control("y")),
        sequences(state(), rest=parameter("batch_axis.s", "2") + parameter("batch_axis.t", "0")),
        sequences(control("a"), rest=parameter("batch_axis.a", "1")),
        f"{TENSORS} max_batch_size: 8 {parameter('batch_axis.x', '1')} {parameter('batch_axis.y', '1')}",
        f"{TENSORS} {parameter('constant.k', 'true,false')}",
    ],
)  # fmt: skip
def test_what_makes_sense_is_accepted(text):
    check(text)


@pytest.mark.parametrize(
    ("text", "field", "value", "expected"),
    [
        # SB-13, and decoupled models
        (sequences("", rest="response_cache { enable: true }"), "response_cache.enable", "true",
         "expected false with sequence_batching"),
        (sequences("", rest="model_transaction_policy { decoupled: true }"), "model_transaction_policy.decoupled",
         "true", "a step is answered exactly once"),
        # SB-02, SB-03
        (sequences("direct { minimum_slot_utilization: 1.5 }"), "sequence_batching.direct.minimum_slot_utilization",
         "1.5", "expected a share from 0 to 1"),
        (sequences("direct { minimum_slot_utilization: -0.25 }"), "sequence_batching.direct.minimum_slot_utilization",
         "-0.25", "expected a share from 0 to 1"),
        (sequences("direct { minimum_slot_utilization: nan }"), "sequence_batching.direct.minimum_slot_utilization",
         "nan", "expected a share from 0 to 1"),
        (sequences("oldest { max_candidate_sequences: -1 }"), "sequence_batching.oldest.max_candidate_sequences",
         "-1", "expected a positive integer"),
        (sequences("oldest { preferred_batch_size: [4, 9] }"), "sequence_batching.oldest.preferred_batch_size", "9",
         "expected sizes from 1 to max_batch_size (8)"),
        (sequences("oldest { preferred_batch_size: 0 }"), "sequence_batching.oldest.preferred_batch_size", "0",
         "expected sizes from 1 to max_batch_size (8)"),
        (sequences("oldest { preferred_batch_size: 1 }", batch=0), "sequence_batching.oldest.preferred_batch_size",
         "1", "expected sizes from 1 to max_batch_size (0)"),
        # SB-05
        (sequences(control("")), "sequence_batching.control_input[0].name", "''", "expected a tensor name"),
        (sequences(control("a") + control("b")), "sequence_batching.control_input[b].control.kind",
         "CONTROL_SEQUENCE_START", "expected each kind once, and tensor 'a' has it already"),
        (sequences(control("a") + control("a", "END")), "sequence_batching.control_input[a].name", "a",
         "expected a name of its own, and a control has this one"),
        (sequences(control("x")), "sequence_batching.control_input[x].name", "x", "an input has this one"),
        # SB-07
        (sequences(state(given="")), "sequence_batching.state[0].input_name", "''", "expected a tensor name"),
        (sequences(state(made="")), "sequence_batching.state[s].output_name", "''", "expected a tensor name"),
        (sequences(state(dims="[]")), "sequence_batching.state[s].dims", "[]", "expected at least one dimension"),
        (sequences(state(dims="[2, 0]")), "sequence_batching.state[s].dims", "0", "expected an integer >= 1"),
        (sequences(state(dims="[-2]")), "sequence_batching.state[s].dims", "-2", "expected an integer >= 1"),
        (sequences(state(given="x")), "sequence_batching.state[x].input_name", "x", "an input has this one"),
        (sequences(control("s") + state()), "sequence_batching.state[s].input_name", "s", "a control has this one"),
        (sequences(state() + state(made="u")), "sequence_batching.state[s].input_name", "s",
         "a state has this one"),
        (sequences(state() + state(given="r")), "sequence_batching.state[r].output_name", "t",
         "expected a name that no other state's output has"),
        (sequences(state(given="h"), rest='batch_input { target_name: "h" data_type: TYPE_INT32 source_input: "x" }'),
         "sequence_batching.state[h].input_name", "h", "a batch_input has this one"),
        # SB-09
        (sequences(state(made="y", dims="[4]", datatype="TYPE_INT32")), "sequence_batching.state[s].data_type",
         "INT32", "expected FP32, as output 'y' is declared"),
        (sequences(state(made="y", dims="[3]")), "sequence_batching.state[s].dims", "[3]",
         "expected [4], as output 'y' is declared"),
        (sequences(state(made="y", dims="[4, 1]")), "sequence_batching.state[s].dims", "[4, 1]",
         "expected [4], as output 'y' is declared"),
        # SB-08
        (sequences(initial(name="")), "sequence_batching.state[s].initial_state.name", "''", "expected a name"),
        (sequences(initial(datatype="TYPE_FP64")), "sequence_batching.state[s].initial_state.data_type", "FP64",
         "expected the state's, FP32"),
        (sequences(initial(dims="[2, -1]")), "sequence_batching.state[s].initial_state.dims", "[2, -1]",
         "expected fixed sizes"),
        (sequences(initial(dims="[2, 64]")), "sequence_batching.state[s].initial_state.dims", "[2, 64]",
         "expected sizes that fit the state's dims [2, 128]"),
        (sequences(initial(dims="[256]")), "sequence_batching.state[s].initial_state.dims", "[256]",
         "expected sizes that fit the state's dims [2, 128]"),
        (sequences(initial(dims="[]")), "sequence_batching.state[s].initial_state.dims", "[]",
         "expected sizes that fit the state's dims [2, 128]"),
        (sequences(initial(data='data_file: ""')), "sequence_batching.state[s].initial_state.data_file", "''",
         "expected the name of a file"),
        # our own parameters
        (f"{TENSORS} {parameter('batch_axis.x', '1')}", "parameters[batch_axis.x]", "1",
         "expected none, since max_batch_size is 0"),
        (sequences(state(), rest=parameter("batch_axis.z", "1")), "parameters[batch_axis.z]", "1",
         "expected a tensor that has a batch axis: x, y, s, t"),
        (sequences(state(), rest=parameter("batch_axis.s", "3")), "parameters[batch_axis.s]", "3",
         "expected 0 to 2, the number of dims of 's'"),
        (sequences("", rest=parameter("batch_axis.x", "2")), "parameters[batch_axis.x]", "2", "expected 0 to 1"),
        (sequences(control("a"), rest=parameter("batch_axis.a", "2")), "parameters[batch_axis.a]", "2",
         "expected 0 to 1"),
        (f"{TENSORS} {parameter('constant.x', '1')}", "parameters[constant.x]", "x", "an input has this one"),
        (sequences(state(), rest=parameter("constant.s", "1")), "parameters[constant.s]", "s",
         "a state has this one"),
        (sequences(control("a"), rest=parameter("constant.a", "1")), "parameters[constant.a]", "a",
         "a control has this one"),
        (f"{TENSORS} {parameter('constant.k', ' ')}", "parameters[constant.k]", "' '", "expected a value"),
    ],
)  # fmt: skip
def test_nonsense_is_refused_by_field_and_value(text, field, value, expected):
    """One sentence each: where, what stands there, what was expected."""
    with pytest.raises(ConfigError) as caught:
        check(text)
    assert caught.value.file == FILE
    assert (caught.value.field, caught.value.value) == (field, value)
    assert expected in caught.value.expected


def test_a_ragged_tensor_has_no_batch_axis_to_place():
    ragged = """max_batch_size: 8
        input { name: "x" data_type: TYPE_FP32 dims: [-1] allow_ragged_batch: true }
        output { name: "y" data_type: TYPE_FP32 dims: [4] }
        output { name: "z" data_type: TYPE_FP32 dims: [-1] }
        batch_output { target_name: "z" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "x" } """
    for name in ("x", "z"):
        with pytest.raises(ConfigError, match="expected a tensor that has a batch axis: y"):
            check(ragged + parameter(f"batch_axis.{name}", "1"))


def test_a_reshaped_tensor_has_its_batch_axis_among_the_models_own_dims():
    text = """max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: [6] reshape { shape: [2, 3] } }
              output { name: "y" data_type: TYPE_FP32 dims: [4] }"""
    check(text + parameter("batch_axis.x", "2"))
    with pytest.raises(ConfigError, match="expected 0 to 2"):
        check(text + parameter("batch_axis.x", "3"))


def test_what_auto_complete_may_still_fill_in_is_left_alone_before_it():
    """The batch size may rise and tensors may come; what is given must make sense already."""
    text = f"""sequence_batching {{ oldest {{ preferred_batch_size: 4 }} {state()} }}
               {parameter("batch_axis.s", "1")}"""
    check(text, is_complete=False)
    with pytest.raises(ConfigError, match="expected at least one dimension"):
        check(f"sequence_batching {{ {state(dims='[]')} }}", is_complete=False)
