"""The table of what is understood and not done: refused with a reason, or warned about."""

import re

import pytest
from headrace.schemas.config_rules import (
    HINTS,
    REFUSED,
    REFUSED_PARAMETERS,
    check_decoupled,
    check_supported,
)
from headrace.schemas.config_text import parse_config
from headrace.schemas.errors import ConfigError

FILE = "models/m/config.pbtxt"

SERVED = {
    "name", "platform", "backend", "version_policy", "max_batch_size",
    "input.name", "input.data_type", "input.format", "input.dims", "input.reshape",
    "input.allow_ragged_batch", "input.optional",
    "output.name", "output.data_type", "output.dims", "output.reshape", "output.label_filename",
    "batch_input", "batch_output", "dynamic_batching",
    "instance_group.name", "instance_group.kind", "instance_group.count", "instance_group.gpus",
    "optimization.graph", "optimization.execution_accelerators",
    "default_model_filename", "metric_tags", "parameters", "model_warmup",
    "model_transaction_policy.decoupled",
    "sequence_batching.max_sequence_idle_microseconds", "sequence_batching.direct", "sequence_batching.oldest",
    "sequence_batching.control_input", "sequence_batching.state.input_name", "sequence_batching.state.output_name",
    "sequence_batching.state.data_type", "sequence_batching.state.dims", "sequence_batching.state.initial_state",
}  # fmt: skip
"""Fields that Headrace reads and acts on."""


def leaves(descriptor, path=""):
    """Yield every dotted path to a plain value of the schema, not entering maps."""
    for field in descriptor.fields:
        inner = field.message_type
        if inner is None or inner.GetOptions().map_entry:
            yield f"{path}{field.name}"
        else:
            yield from leaves(inner, f"{path}{field.name}.")
            yield f"{path}{field.name}"


def test_every_field_of_the_schema_is_served_refused_or_a_hint():
    """No field of Triton's schema is ignored in silence, and no rule names a field that does not exist."""
    schema = set(leaves(parse_config("", FILE).DESCRIPTOR))
    decided = SERVED | {rule.path for rule in (*REFUSED, *HINTS)}
    assert decided <= schema
    inner = {path for path in schema if any(p.startswith(f"{path}.") for p in schema)}
    undecided = {
        path
        for path in schema - inner
        if not any(path == known or path.startswith(f"{known}.") for known in decided)
    }
    assert undecided == set()


REFUSALS = [
        ("sequence_batching { iterative_sequence: true }", "sequence_batching.iterative_sequence", "true",
         "expected false: this release calls a model once per request"),
        ("ensemble_scheduling {}", "ensemble_scheduling", "{}", "does not chain models"),
        ('platform: "ensemble"', "platform", "ensemble", "does not chain models"),
        ('model_repository_agents { agents { name: "checksum" } }', "model_repository_agents.agents[0]",
         '{name: "checksum"}', "no repository agent"),
        ('model_operations { op_library_filename: "a.so" }', "model_operations.op_library_filename",
         "['a.so']", "no custom operators"),
        ('runtime: "x"', "runtime", "x", "expected none"),
        ('cc_model_filenames { key: "8.0" value: "a" }', "cc_model_filenames", "{'8.0': 'a'}",
         "default_model_filename"),
        ("instance_group { passive: true }", "instance_group[0].passive", "true", "expected false"),
        ("instance_group { secondary_devices { device_id: 1 } }", "instance_group[0].secondary_devices[0]",
         "{device_id: 1}", "one device"),
        ('instance_group { profile: "0" }', "instance_group[0].profile", "['0']", "no optimization profile"),
        ("input { is_shape_tensor: true }", "input[0].is_shape_tensor", "true", "shape tensors"),
        ("output [ {}, { is_shape_tensor: true } ]", "output[1].is_shape_tensor", "true", "shape tensors"),
        ('parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "b.so" } }',
         "parameters[TRITON_BATCH_STRATEGY_PATH]", "b.so", "no batching library")]  # fmt: skip


@pytest.mark.parametrize(("text", "field", "value", "expected"), REFUSALS)
def test_what_would_change_results_is_refused_with_the_reason(text, field, value, expected):
    """QT-08 and all that this release does not do."""
    with pytest.raises(ConfigError) as caught:
        check_supported(parse_config(text, FILE), file=FILE)
    assert caught.value.file == FILE
    assert caught.value.field == field
    assert caught.value.value == value
    assert expected in caught.value.expected


def test_every_rule_of_the_table_has_fired_above():
    """A rule whose path is misspelt would never refuse anything."""
    fired = {re.sub(r"\[\d+\]", "", field) for _, field, _, _ in REFUSALS}
    parameters = {f"parameters[{name}]" for name in REFUSED_PARAMETERS}
    assert fired == {rule.path for rule in REFUSED} | parameters | {"platform"}


def test_hints_warn_once_each_and_refuse_nothing():
    text = """optimization { priority: PRIORITY_MAX eager_batching: true gather_kernel_buffer_threshold: 3
        input_pinned_memory { enable: true } output_pinned_memory { enable: false }
        cuda { graphs: true busy_wait_events: true output_copy_stream: true graph_spec { batch_size: 1 } } }
        instance_group { host_policy: "p"
            rate_limiter { priority: 2 resources { name: "R" count: 1 } } }
        response_cache { enable: true }
        sequence_batching { state { use_same_buffer_for_input_output: true use_growable_memory: true } }
        input { is_non_linear_format_io: true } output { is_non_linear_format_io: true }
        model_metrics { metric_control { metric_identifier { family: "f" } } }"""
    warnings = check_supported(parse_config(text, FILE), file=FILE)
    assert len(warnings) == len(HINTS)
    for rule, warning in zip(HINTS, warnings, strict=True):
        first, *rest = rule.path.split(".")
        assert warning.startswith(f"{FILE}: {first}")
        assert all(name in warning for name in rest)
        assert warning.endswith(f" is ignored: {rule.reason}")
    assert f"{FILE}: optimization.eager_batching = true is ignored: " in warnings[4]


def test_a_plain_configuration_gives_no_warning():
    text = 'name: "m" max_batch_size: 4 dynamic_batching {} instance_group { count: 2 kind: KIND_CPU }'
    assert check_supported(parse_config(text, FILE), file=FILE) == []


def test_MR_40_decoupled_is_refused_unless_the_backend_can():
    message = parse_config("model_transaction_policy { decoupled: true }", FILE)
    check_decoupled(message, file=FILE, backend="identity", supports_decoupled=True)
    with pytest.raises(ConfigError) as caught:
        check_decoupled(message, file=FILE, backend="onnxruntime", supports_decoupled=False)
    assert str(caught.value) == (
        f"{FILE}: model_transaction_policy.decoupled = true: expected false: backend 'onnxruntime' gives "
        "exactly one response per request in this release"
    )
    check_decoupled(
        parse_config("", FILE), file=FILE, backend="onnxruntime", supports_decoupled=False
    )
