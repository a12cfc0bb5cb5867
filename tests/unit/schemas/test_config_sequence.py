"""Reading ``sequence_batching`` (SEMANTICS §1.7): every field, its default, and what cannot be read."""

import pytest
from headrace.schemas.config_text import (
    config_from_json,
    config_from_message,
    config_to_json,
    parse_config,
)
from headrace.schemas.errors import ConfigError
from headrace.schemas.model_config import (
    ControlInput,
    ControlKind,
    InitialState,
    SequenceBatching,
    SequenceStrategy,
    StateConfig,
)
from headrace.schemas.tensor import Datatype

FILE = "models/m/config.pbtxt"


def read(text):
    return config_from_message(parse_config(text, FILE), file=FILE, directory_name="m")


def sequences(text, batch=4):
    """Read what stands in the braces of ``sequence_batching``."""
    return read(f"max_batch_size: {batch} sequence_batching {{ {text} }}").sequence_batching


def control(text, name="C"):
    return f'control_input {{ name: "{name}" control {{ {text} }} }}'


def test_without_sequence_batching_there_is_none():
    config = read("max_batch_size: 4 dynamic_batching {}")
    assert config.sequence_batching is None
    assert config.controls == config.states == ()
    assert config.batch_axes == config.constants == {}


def test_SB01_SB04_SB11_defaults_of_an_empty_one():
    """Direct, a slot per row of a batch, idle after a second."""
    assert sequences("") == SequenceBatching(
        strategy=SequenceStrategy.DIRECT,
        max_idle_us=1_000_000,
        max_candidates=4,
        preferred_batch_size=(4,),
    )
    assert sequences("", batch=0).max_candidates == 1


def test_SB02_SB04_direct_as_given():
    found = sequences(
        """max_sequence_idle_microseconds: 5000
           direct { max_queue_delay_microseconds: 70 minimum_slot_utilization: 0.5 }"""
    )
    assert found.strategy is SequenceStrategy.DIRECT
    assert found.max_idle_us == 5_000
    assert found.max_queue_delay_us == 70
    assert found.min_slot_utilization == 0.5


@pytest.mark.parametrize(
    ("ready", "slots", "text"), [(4, 5, "0.8"), (1, 3, "0.33333334"), (2, 3, "0.6666667"), (7, 10, "0.7"),
                                 (1, 10, "0.1"), (3, 3, "1")]
)  # fmt: skip
def test_SB02_a_share_that_is_reached_in_32_bits_is_reached(ready, slots, text):
    """The field has 32 bits, in which 0.8 is a little more; four of five slots are enough all the same."""
    share = sequences(f"direct {{ minimum_slot_utilization: {text} }}").min_slot_utilization
    assert ready / slots >= share
    assert (ready - 1) / slots < share


def test_SB03_oldest_as_given_and_by_default():
    found = sequences(
        """oldest { max_candidate_sequences: 9 preferred_batch_size: [4, 2, 4]
                    max_queue_delay_microseconds: 100 preserve_ordering: true }"""
    )
    assert found.strategy is SequenceStrategy.OLDEST
    assert (found.max_candidates, found.preferred_batch_size) == (9, (2, 4))
    assert (found.max_queue_delay_us, found.preserve_ordering) == (100, True)
    plain = sequences("oldest {}")
    assert (plain.max_candidates, plain.preferred_batch_size) == (4, (4,))
    assert (plain.max_queue_delay_us, plain.preserve_ordering) == (0, False)
    single = sequences("oldest {}", batch=0)
    assert (single.max_candidates, single.preferred_batch_size) == (1, (1,))


def test_PB62_defaults_are_written_into_the_message_and_survive_the_wire():
    """A gateway reads what a worker says of itself, and means the same by it."""
    text = """max_batch_size: 4 sequence_batching { oldest {}
        state { input_name: "s" output_name: "t" data_type: TYPE_FP32 dims: [2, -1] }
        control_input { name: "c" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [0, 1] } } }
        parameters { key: "batch_axis.s" value { string_value: "1" } }
        parameters { key: "constant.k" value { string_value: "7" } }"""
    config = read(text)
    shown = config_to_json(config)
    assert shown["sequence_batching"]["max_sequence_idle_microseconds"] == 1_000_000
    assert shown["sequence_batching"]["oldest"]["max_candidate_sequences"] == 4
    assert shown["sequence_batching"]["oldest"]["preferred_batch_size"] == [4]
    again = config_from_json(shown)
    assert again.sequence_batching == config.sequence_batching
    assert (again.batch_axes, again.constants) == ({"s": 1}, {"k": "7"})
    assert again.message == config.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1]",
         ControlInput("C", ControlKind.START, Datatype.INT32, 0, 1)),
        ("kind: CONTROL_SEQUENCE_READY fp32_false_true: [-1, 2.5]",
         ControlInput("C", ControlKind.READY, Datatype.FP32, -1, 2.5)),
        ("kind: CONTROL_SEQUENCE_END bool_false_true: [false, true]",
         ControlInput("C", ControlKind.END, Datatype.BOOL, False, True)),
        ("kind: CONTROL_SEQUENCE_END bool_false_true: [true, false]",
         ControlInput("C", ControlKind.END, Datatype.BOOL, True, False)),
        *[(f"kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_{name}",
           ControlInput("C", ControlKind.CORRID, Datatype("BYTES" if name == "STRING" else name)))
          for name in ("UINT64", "INT64", "UINT32", "INT32", "STRING")],
    ],
)  # fmt: skip
def test_SB05_a_control_of_each_kind_and_type(text, expected):
    found = sequences(control(text))
    assert found.controls == (expected,)
    assert found.control(expected.kind) == expected
    others = [kind for kind in ControlKind if kind is not expected.kind]
    assert [found.control(kind) for kind in others] == [None] * 3


START = "kind: CONTROL_SEQUENCE_START"
CORRID = "kind: CONTROL_SEQUENCE_CORRID"
AT = "sequence_batching.control_input[C].control"


@pytest.mark.parametrize(
    ("text", "field", "value", "expected"),
    [
        (control(START), AT, "none", "expected exactly one of int32_false_true, fp32_false_true, bool_false_true"),
        (control(f"{START} int32_false_true: [0, 1] bool_false_true: [false, true]"), AT,
         "int32_false_true, bool_false_true", "expected exactly one of"),
        (control(f"{START} int32_false_true: [1]"), f"{AT}.int32_false_true", "[1]", "expected exactly two values"),
        (control(f"{START} fp32_false_true: [0, 1, 2]"), f"{AT}.fp32_false_true", "[0.0, 1.0, 2.0]",
         "expected exactly two values"),
        (control(f"{START} data_type: TYPE_INT32"), AT, "none", "expected exactly one of"),
        (control(CORRID), f"{AT}.data_type", "TYPE_INVALID", "expected one of TYPE_UINT64"),
        (control(f"{CORRID} data_type: TYPE_FP32"), f"{AT}.data_type", "TYPE_FP32", "expected one of TYPE_UINT64"),
        (control(f"{CORRID} data_type: TYPE_UINT64 int32_false_true: [0, 1]"), f"{AT}.int32_false_true", "[0, 1]",
         "expected none with CONTROL_SEQUENCE_CORRID"),
        ('control_input { name: "C" }', AT, "[]", "expected exactly one kind"),
        (f'control_input {{ name: "C" control {{ {START} fp32_false_true: [0, 1] }} control {{ {CORRID} }} }}', AT,
         "[CONTROL_SEQUENCE_START, CONTROL_SEQUENCE_CORRID]", "expected exactly one kind"),
        (f"control_input {{ control {{ {START} }} }}", "sequence_batching.control_input[0].control", "none",
         "expected exactly one of"),
    ],
)  # fmt: skip
def test_SB05_what_is_no_control_is_refused_by_field_and_value(text, field, value, expected):
    with pytest.raises(ConfigError) as caught:
        sequences(text)
    assert caught.value.file == FILE
    assert (caught.value.field, caught.value.value) == (field, value)
    assert expected in caught.value.expected


def state(rest, given="S"):
    return (
        f'state {{ input_name: "{given}" output_name: "T" data_type: TYPE_FP32 dims: [2] {rest} }}'
    )


def test_SB07_SB08_states_as_given():
    found = sequences(
        state("use_same_buffer_for_input_output: true")
        + state("use_growable_memory: true", given="S2")
        + state('initial_state { name: "i" data_type: TYPE_FP32 dims: [2] zero_data: true }')
        + state('initial_state { name: "i" data_type: TYPE_FP32 dims: [2] data_file: "f" }')
    )
    plain = StateConfig("S", "T", Datatype.FP32, (2,))
    zero, from_file = (
        InitialState("i", Datatype.FP32, (2,), zero_data=True),
        InitialState("i", Datatype.FP32, (2,), data_file="f"),
    )
    assert found.states == (
        StateConfig("S", "T", Datatype.FP32, (2,), use_same_buffer=True),
        StateConfig("S2", "T", Datatype.FP32, (2,), use_growable_memory=True),
        StateConfig("S", "T", Datatype.FP32, (2,), zero),
        StateConfig("S", "T", Datatype.FP32, (2,), from_file),
    )
    assert sequences(state("")).states == (plain,)


@pytest.mark.parametrize(
    ("text", "field", "value", "expected"),
    [
        ('state { input_name: "S" output_name: "T" dims: [1] }', "data_type", "TYPE_INVALID", "expected one of"),
        (state("initial_state { zero_data: true } initial_state { name: 'b' zero_data: true }"), "initial_state",
         "['', 'b']", "expected at most one"),
        (state('initial_state { name: "i" }'), "initial_state", "", "expected one of zero_data, data_file"),
        (state('initial_state { name: "i" zero_data: true }'), "initial_state.data_type", "TYPE_INVALID",
         "expected one of"),
    ],
)  # fmt: skip
def test_SB08_what_is_no_state_is_refused_by_field_and_value(text, field, value, expected):
    with pytest.raises(ConfigError) as caught:
        sequences(text)
    assert caught.value.file == FILE
    assert caught.value.field == f"sequence_batching.state[S].{field}"
    assert caught.value.value == value
    assert expected in caught.value.expected


def test_SB12_the_earlier_name_of_iterative_sequences_is_unknown_as_in_the_schema():
    with pytest.raises(ConfigError, match="unknown field") as caught:
        sequences("generative_sequence: true")
    assert caught.value.field == "sequence_batching.generative_sequence"


@pytest.mark.parametrize("value", ["-1", "", "one", "1.0", " 1", "²"])
def test_a_batch_axis_is_a_number(value):
    with pytest.raises(ConfigError, match="expected a non-negative integer") as caught:
        read(f'parameters {{ key: "batch_axis.x" value {{ string_value: "{value}" }} }}')
    assert caught.value.field == "parameters[batch_axis.x]"
    assert caught.value.value == repr(value)
