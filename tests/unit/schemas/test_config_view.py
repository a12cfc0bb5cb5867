"""The typed view of a configuration and the defaults that are written into the message."""

import pytest
from headrace.schemas.config_tensors import data_type_of
from headrace.schemas.config_text import config_to_json, parse_config
from headrace.schemas.config_view import config_from_message, resolve
from headrace.schemas.errors import ConfigError
from headrace.schemas.model_config import (
    Accelerator,
    BatchInput,
    BatchInputKind,
    BatchOutput,
    InstanceGroup,
    InstanceKind,
    QueuePolicy,
    TensorConfig,
    TimeoutAction,
    VersionPolicy,
    VersionPolicyKind,
    WarmupInput,
)
from headrace.schemas.tensor import Datatype
from tritonclient.grpc import model_config_pb2 as pb

FILE = "models/m/config.pbtxt"


def read(text, directory_name="m"):
    return config_from_message(parse_config(text, FILE), file=FILE, directory_name=directory_name)


def failure(text):
    with pytest.raises(ConfigError) as caught:
        read(text)
    return caught.value


def test_MR_04_name_defaults_to_the_directory_and_must_equal_it():
    assert read("").name == "m"
    assert read('name: "m"').name == "m"
    error = failure('name: "other"')
    assert str(error) == (
        f"{FILE}: name = other: directory name must equal model name, expected 'm'"
    )
    assert read('name: "other"', directory_name="").name == "other"


@pytest.mark.parametrize("datatype", list(Datatype))
def test_MR_20_every_datatype_has_its_configuration_name(datatype):
    """``TYPE_`` in front, and ``STRING`` for BYTES."""
    name = "TYPE_STRING" if datatype is Datatype.BYTES else f"TYPE_{datatype.value}"
    assert pb.DataType.Name(data_type_of(datatype)) == name
    (tensor,) = read(f'input {{ name: "x" data_type: {name} dims: [1] }}').inputs
    assert tensor.datatype is datatype


def test_MR_20_a_tensor_without_datatype_is_refused():
    error = failure('output { name: "y" dims: [1] }')
    assert (error.file, error.field, error.value) == (FILE, "output[0].data_type", "TYPE_INVALID")
    assert "expected one of TYPE_BOOL, TYPE_UINT8" in error.expected
    assert "TYPE_INVALID" not in error.expected


def test_MR_21_tensors_keep_all_that_the_path_of_a_request_needs():
    config = read(
        """input { name: "x" data_type: TYPE_FP32 dims: [-1, 4] optional: true allow_ragged_batch: true }
           output { name: "y" data_type: TYPE_STRING dims: [1] reshape { shape: [] } label_filename: "l.txt" }"""
    )
    assert config.inputs == (
        TensorConfig("x", Datatype.FP32, (-1, 4), optional=True, allow_ragged_batch=True),
    )
    assert config.outputs == (
        TensorConfig("y", Datatype.BYTES, (1,), reshape=(), label_filename="l.txt"),
    )


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("", VersionPolicy(VersionPolicyKind.LATEST, 1)),
        ("version_policy { latest {} }", VersionPolicy(VersionPolicyKind.LATEST, 1)),
        ("version_policy { latest { num_versions: 3 } }", VersionPolicy(VersionPolicyKind.LATEST, 3)),
        ("version_policy { all {} }", VersionPolicy(VersionPolicyKind.ALL)),
        ("version_policy { specific { versions: [3, 1] } }",
         VersionPolicy(VersionPolicyKind.SPECIFIC, versions=(3, 1))),
    ],
)  # fmt: skip
def test_MR_06_version_policies(text, policy):
    config = read(text)
    assert config.version_policy == policy
    assert config.message.HasField("version_policy")


def test_DB_01_preferred_sizes_become_the_maximum_and_show_in_the_message():
    config = read("max_batch_size: 8 dynamic_batching {}")
    assert config.dynamic_batching.preferred_batch_size == (8,)
    assert config_to_json(config)["dynamic_batching"]["preferred_batch_size"] == [8]
    config = read("max_batch_size: 8 dynamic_batching { preferred_batch_size: [6, 2, 6] }")
    assert config.dynamic_batching.preferred_batch_size == (2, 6)
    assert list(config.message.dynamic_batching.preferred_batch_size) == [6, 2, 6]


def test_a_dynamic_batcher_without_batching_takes_one_request_at_a_time():
    config = read("dynamic_batching {}")
    assert config.dynamic_batching.preferred_batch_size == (1,)
    assert not config.message.dynamic_batching.preferred_batch_size
    assert read("max_batch_size: 8").dynamic_batching is None


def test_DB_02_to_DB_11_queue_settings_are_read_with_their_units():
    batching = read(
        """max_batch_size: 8 dynamic_batching {
             max_queue_delay_microseconds: 500 priority_levels: 18446744073709551615 default_priority_level: 2
             default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 7 max_queue_size: 3 }
             priority_queue_policy { key: 1 value { allow_timeout_override: true } } }"""
    ).dynamic_batching
    assert batching.max_queue_delay_us == 500
    assert batching.priority_levels == 2**64 - 1  # §5.6: the largest uint64 is accepted
    assert batching.policy(1) == QueuePolicy(allow_timeout_override=True)
    assert batching.policy(2) == QueuePolicy(TimeoutAction.DELAY, 7, max_queue_size=3)


def test_SB_04_idle_time_is_filled_in():
    config = read("max_batch_size: 4 sequence_batching { oldest {} }")
    assert config.message.sequence_batching.max_sequence_idle_microseconds == 1_000_000
    assert list(config.message.sequence_batching.oldest.preferred_batch_size) == [4]


def test_pinned_memory_defaults_to_true_and_a_no_is_kept():
    optimization = read(
        "optimization { input_pinned_memory { enable: false } }"
    ).message.optimization
    assert not optimization.input_pinned_memory.enable
    assert optimization.output_pinned_memory.enable


def test_ragged_helpers_are_read():
    """SEMANTICS §1.4."""
    config = read(
        """batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: ["a", "b"] data_type: TYPE_FP32
                         source_input: "x" }
           batch_output { target_name: "y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "x" }"""
    )
    assert config.batch_inputs == (
        BatchInput(BatchInputKind.BATCH_ACCUMULATED_ELEMENT_COUNT, ("a", "b"), Datatype.FP32, "x"),
    )
    assert config.batch_outputs == (BatchOutput(("y",), "x"),)


@pytest.mark.parametrize(
    ("text", "field", "value", "expected"),
    [
        ('batch_input { target_name: "a" data_type: TYPE_INT64 source_input: "x" }',
         "batch_input[0].data_type", "TYPE_INT64", "expected TYPE_INT32 or TYPE_FP32"),
        ('batch_input { target_name: "a" data_type: TYPE_INT32 }',
         "batch_input[0].source_input", "[]", "expected exactly one source input"),
        ('batch_output { target_name: "a" source_input: ["x", "y"] }',
         "batch_output[0].source_input", "['x', 'y']", "expected exactly one source input"),
    ],
)  # fmt: skip
def test_ragged_helpers_have_one_source_and_a_plain_datatype(text, field, value, expected):
    error = failure(text)
    assert (error.file, error.field, error.value, error.expected) == (FILE, field, value, expected)


def test_MR_41_warm_up_samples_name_exactly_one_source_of_data():
    (sample,) = read(
        """model_warmup { name: "w" batch_size: 2
             inputs { key: "b" value { data_type: TYPE_INT8 dims: [2] input_data_file: "b.bin" } }
             inputs { key: "a" value { data_type: TYPE_FP32 dims: [1] zero_data: false } }
             inputs { key: "c" value { data_type: TYPE_FP32 dims: [1] random_data: true } } }"""
    ).warmup
    assert (sample.name, sample.batch_size, sample.count) == ("w", 2, 1)
    assert list(sample.inputs) == ["a", "b", "c"]
    assert sample.inputs["a"] == WarmupInput(Datatype.FP32, (1,), zero_data=True)
    assert sample.inputs["b"] == WarmupInput(Datatype.INT8, (2,), input_data_file="b.bin")
    assert sample.inputs["c"] == WarmupInput(Datatype.FP32, (1,), random_data=True)
    error = failure(
        'model_warmup { inputs { key: "a" value { data_type: TYPE_FP32 dims: [1] } } }'
    )
    assert (error.file, error.field) == (FILE, "model_warmup[0].inputs[a]")
    assert error.expected == "expected one of zero_data, random_data, input_data_file"


def test_parameters_accelerators_tags_and_decoupled_are_read():
    config = read(
        """parameters { key: "a" value { string_value: "1" } } metric_tags { key: "t" value: "v" }
           model_transaction_policy { decoupled: true } optimization { execution_accelerators {
             gpu_execution_accelerator { name: "tensorrt" parameters { key: "p" value: "q" } } } }"""
    )
    assert config.parameters == {"a": "1"}
    assert config.metric_tags == {"t": "v"}
    assert config.decoupled
    assert config.gpu_accelerators == (Accelerator("tensorrt", {"p": "q"}),)
    assert config.cpu_accelerators == ()


@pytest.mark.parametrize(
    ("text", "gpus", "groups"),
    [
        ("", (), [InstanceGroup("m", InstanceKind.KIND_CPU, 2)]),
        ("", (0, 1), [InstanceGroup("m", InstanceKind.KIND_GPU, 1, (0, 1))]),
        ("instance_group [ {}, { count: 3 kind: KIND_CPU }, { name: 'g' kind: KIND_MODEL } ]", (),
         [InstanceGroup("m_0", InstanceKind.KIND_CPU, 2), InstanceGroup("m_1", InstanceKind.KIND_CPU, 3),
          InstanceGroup("g", InstanceKind.KIND_MODEL, 1)]),
        ("instance_group { gpus: [1] }", (0, 1), [InstanceGroup("m_0", InstanceKind.KIND_GPU, 1, (1,))]),
        ("instance_group { gpus: [5] }", (0, 1), [InstanceGroup("m_0", InstanceKind.KIND_CPU, 2)]),
        ("instance_group { kind: KIND_GPU }", (0, 1),
         [InstanceGroup("m_0", InstanceKind.KIND_GPU, 1, (0, 1))]),
        ("instance_group { kind: KIND_GPU count: 2 }", (), [InstanceGroup("m_0", InstanceKind.KIND_GPU, 2)]),
    ],
)  # fmt: skip
def test_MR_30_MR_33_instance_groups_get_name_kind_count_and_gpus(text, gpus, groups):
    """ONNX Runtime's default on CPU is 2; ``KIND_AUTO`` is a GPU where all that are named exist."""
    config = resolve(read(text), backend="onnxruntime", default_cpu_count=2, gpus=gpus, file=FILE)
    assert list(config.instance_groups) == groups
    assert [g.name for g in config.message.instance_group] == [group.name for group in groups]
    assert config.backend == config.message.backend == "onnxruntime"


def test_reading_a_normalized_message_again_changes_nothing():
    """Auto-complete edits a message and comes back through the same door."""
    text = "max_batch_size: 8 dynamic_batching {} instance_group [ {}, {} ]"
    once = resolve(read(text), backend="b", file=FILE)
    again = resolve(config_from_message(once.message), backend="b", file=FILE)
    assert again.message == once.message
    assert again == once


def test_the_given_message_is_not_changed():
    message = parse_config("max_batch_size: 8 dynamic_batching {}", FILE)
    before = message.SerializeToString(deterministic=True)
    config = config_from_message(message, file=FILE, directory_name="m")
    resolve(config, backend="b", file=FILE)
    assert message.SerializeToString(deterministic=True) == before
    assert not config.instance_groups
