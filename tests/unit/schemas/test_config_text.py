"""Text and JSON forms of a model configuration: what is accepted is kept, what is wrong is named."""

import json

import pytest
from headrace.schemas.config_text import (
    config_from_json,
    config_from_message,
    config_to_json,
    parse_config,
)
from headrace.schemas.errors import ConfigError
from hypothesis import given, settings
from hypothesis import strategies as st

FILE = "models/m/config.pbtxt"

EVERY_FIELD = """
name: "m" platform: "onnxruntime_onnx" backend: "onnxruntime" runtime: "lib.so"
version_policy: { specific: { versions: [1, 3] } }
max_batch_size: 8
input [ { name: "a" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [3, -1, 8] reshape: { shape: [3, -1, 2, 4] }
          is_shape_tensor: true allow_ragged_batch: true optional: true is_non_linear_format_io: true } ]
output [ { name: "b" data_type: TYPE_STRING dims: [1] reshape: { shape: [] } label_filename: "labels.txt"
           is_shape_tensor: true is_non_linear_format_io: true } ]
batch_input [ { kind: BATCH_ITEM_SHAPE target_name: "s" data_type: TYPE_INT32 source_input: "a" } ]
batch_output [ { target_name: "b" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "a" } ]
optimization { graph { level: 1 } priority: PRIORITY_MAX
  cuda { graphs: true busy_wait_events: true output_copy_stream: true
         graph_spec { batch_size: 1 input { key: "a" value { dim: [1] } }
                      graph_lower_bound { batch_size: 1 input { key: "a" value { dim: [1] } } } } }
  execution_accelerators { gpu_execution_accelerator { name: "tensorrt" parameters { key: "k" value: "v" } }
                           cpu_execution_accelerator { name: "openvino" } }
  input_pinned_memory { enable: false } output_pinned_memory { enable: true }
  gather_kernel_buffer_threshold: 3 eager_batching: true }
sequence_batching { oldest { max_candidate_sequences: 4 preferred_batch_size: 2 preserve_ordering: true }
  max_sequence_idle_microseconds: 5 iterative_sequence: true
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }
  state { input_name: "i" output_name: "o" data_type: TYPE_FP32 dims: [1] use_growable_memory: true
          initial_state { name: "z" data_type: TYPE_FP32 dims: [1] zero_data: true } } }
instance_group [ { name: "g" kind: KIND_GPU count: 2 gpus: [0, 1] profile: ["p"] passive: true host_policy: "h"
  secondary_devices { kind: KIND_NVDLA device_id: 1 }
  rate_limiter { resources { name: "R" global: true count: 2 } priority: 2 } } ]
default_model_filename: "x.onnx"
cc_model_filenames { key: "8.0" value: "y.onnx" }
metric_tags { key: "team" value: "search" }
parameters { key: "intra_op_thread_count" value: { string_value: "2" } }
model_warmup { name: "w" batch_size: 2 count: 3
  inputs { key: "a" value: { data_type: TYPE_FP32 dims: [3, 4, 8] random_data: true } } }
model_operations { op_library_filename: "ops.so" }
model_transaction_policy { decoupled: true }
model_repository_agents { agents { name: "checksum" parameters { key: "MD5:1/model.onnx" value: "00" } } }
response_cache { enable: true }
model_metrics { metric_control { metric_identifier { family: "f" } histogram_options { buckets: [1, 2] } } }
"""


def failure(text):
    """Return the error that a text is refused with."""
    with pytest.raises(ConfigError) as caught:
        config_from_message(parse_config(text, FILE), file=FILE, directory_name="m")
    return caught.value


def test_every_field_of_the_schema_is_accepted_and_kept():
    """SEMANTICS §1.2-1.9: the message is the whole configuration, and JSON brings it back unchanged."""
    message = parse_config(EVERY_FIELD, FILE)
    given = {field.name for field, _ in message.ListFields()}
    every = {field.name for field in message.DESCRIPTOR.fields}
    assert given == every - {"dynamic_batching", "ensemble_scheduling"}  # one scheduler at a time
    config = config_from_message(message, file=FILE, directory_name="m")
    assert config.message == message
    assert config_from_json(json.loads(json.dumps(config_to_json(config)))).message == message


@pytest.mark.parametrize(
    ("text", "line", "field", "value", "expected"),
    [
        ('name: "m"\nmax_batchsize: 3', 2, "max_batchsize", "", "did you mean max_batch_size?"),
        ("dynamic_batching { prefered_batch_size: [1] }", 1, "dynamic_batching.prefered_batch_size", "",
         "did you mean preferred_batch_size?"),
        ("# a { comment\ninput { name: 'x{' dims: [1]\n reshape: { shap: [1] } }", 3, "input.reshape.shap", "",
         "did you mean shape?"),
        ("zzz: 1", 1, "zzz", "", "expected one of name, platform, backend"),
        ("input [ { data_type: TYPE_FP31 } ]", 1, "input.data_type", "TYPE_FP31", "did you mean TYPE_FP32?"),
        ("batch_input { kind: ODD }", 1, "batch_input.kind", "ODD", "expected one of BATCH_ELEMENT_COUNT"),
        ("max_batch_size: abc", 1, "max_batch_size", "abc", "expected an integer from -2147483648 to 2147483647"),
        ("max_batch_size: 99999999999", 1, "max_batch_size", "99999999999", "expected an integer from"),
        ("input { dims: [ -1.5 ] }", 1, "input.dims", "-1.5", "expected an integer from -9223372036854775808"),
        ("dynamic_batching { max_queue_delay_microseconds: -1 }", 1,
         "dynamic_batching.max_queue_delay_microseconds", "-1", "expected an integer from 0 to"),
        ("optimization { eager_batching: maybe }", 1, "optimization.eager_batching", "maybe",
         "expected true or false"),
        ("name: 3", 1, "name", "3", "expected a quoted UTF-8 string"),
        ("dynamic_batching: true", 1, "dynamic_batching", "true", "expected fields in braces"),
        ('name: "m', 1, "name", '"m', "missing ending quote"),
        ('backend: "b"\n parameters { key: "C:\\models" }', 2, "parameters.key", '"C:\\models"',
         "unknown escape \\m in a string"),
        ("max_batch_size 4", 1, "max_batch_size", "4", 'expected ":"'),
        ("input { dims: [1, 2", 1, "input.dims", "end of file", 'expected ","'),
        ('name: "a"\nname: "b"', 2, "name", '"b"', "expected at most once"),
        ("dynamic_batching {} sequence_batching {}", 1, "sequence_batching", "",
         "expected only one of it and dynamic_batching"),
    ],
)  # fmt: skip
def test_a_parse_error_names_line_field_value_and_what_was_expected(
    text, line, field, value, expected
):
    error = failure(text)
    assert error.file == f"{FILE}:{line}"
    assert error.field == field
    assert error.value == value
    assert expected in error.expected
    assert "\n" not in str(error)


def test_an_enum_number_without_a_name_is_refused():
    """protobuf lets any number pass; it would mean nothing."""
    error = failure("instance_group [ {}, { kind: 99 } ]")
    assert str(error) == (
        f"{FILE}: instance_group[1].kind = 99: expected one of KIND_AUTO, KIND_GPU, KIND_CPU, KIND_MODEL"
    )
    error = failure(
        "dynamic_batching { priority_queue_policy { key: 7 value { timeout_action: 5 } } }"
    )
    assert error.field == "dynamic_batching.priority_queue_policy[7].timeout_action"


@pytest.mark.parametrize(
    ("source", "field", "expected"),
    [
        ("[", "", "expected JSON"),
        ("[" * 100_000, "", "expected JSON"),
        ("[]", "ModelConfig", "expected a JSON object"),
        ({"nam": "m"}, "nam", "did you mean name?"),
        ({"input": [{"dimz": [1]}]}, "input.dimz", "did you mean dims?"),
        ({"max_batch_size": "x"}, "max_batch_size", "expected an integer from -2147483648"),
        ({"input": [{"data_type": "TYPE_Q"}]}, "input.data_type", "expected one of"),
        ({"dynamic_batching": 3}, "dynamic_batching", "'int' object is not iterable"),
    ],
)
def test_wrong_json_is_refused_by_field(source, field, expected):
    with pytest.raises(ConfigError) as caught:
        config_from_json(source, file="override")
    assert caught.value.file == "override"
    assert caught.value.field == field
    assert expected in caught.value.expected


def test_PB_62_shows_numbers_as_numbers_enums_as_names_and_map_keys_as_strings():
    text = """max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: [-1, 9007199254740993] }
        dynamic_batching { priority_levels: 18446744073709551615 default_priority_level: 1
          priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 7 } } }
        parameters { key: "k" value: { string_value: "12" } }"""
    shown = config_to_json(
        config_from_message(parse_config(text, FILE), file=FILE, directory_name="m")
    )
    assert shown["input"] == [
        {
            "name": "x",
            "data_type": "TYPE_FP32",
            "format": "FORMAT_NONE",
            "dims": [-1, 9007199254740993],
            "is_shape_tensor": False,
            "allow_ragged_batch": False,
            "optional": False,
            "is_non_linear_format_io": False,
        }
    ]
    assert shown["dynamic_batching"] == {
        "preferred_batch_size": [4],
        "max_queue_delay_microseconds": 0,
        "preserve_ordering": False,
        "priority_levels": 18446744073709551615,
        "default_priority_level": 1,
        "priority_queue_policy": {
            "1": {
                "timeout_action": "DELAY",
                "default_timeout_microseconds": 7,
                "allow_timeout_override": False,
                "max_queue_size": 0,
            }
        },
    }
    assert shown["version_policy"] == {"latest": {"num_versions": 1}}
    assert shown["parameters"] == {"k": {"string_value": "12"}}
    assert shown["name"] == "m"
    assert shown["platform"] == ""
    assert shown["instance_group"] == []
    assert "sequence_batching" not in shown


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_text_is_refused_by_one_typed_error_or_read(data):
    """Whatever a slip of the editor makes of a file, it ends in a configuration or in a `ConfigError`."""
    at = data.draw(st.integers(0, len(EVERY_FIELD)))
    cut = data.draw(st.integers(0, 40))
    put = data.draw(st.text(alphabet="{}[]<>:;,\"'#\\ \n\tax0-.\x00é", max_size=6))
    text = EVERY_FIELD[:at] + put + EVERY_FIELD[at + cut :]
    error = None
    try:
        config_from_message(parse_config(text, FILE), file=FILE, directory_name="m")
    except ConfigError as exc:
        error = exc
    assert error is None or (error.file.startswith(FILE) and error.expected)
