"""What makes no sense in a configuration is refused at load, and the sentence names file, field, value, rule."""

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


def tensor(rest, batch=8):
    return f"""max_batch_size: {batch} input {{ name: "x" data_type: TYPE_FP32 {rest} }}
               output {{ name: "y" data_type: TYPE_FP32 dims: [4] }}"""


def batching(rest, batch=8):
    return f"{TENSORS} max_batch_size: {batch} dynamic_batching {{ {rest} }}"


@pytest.mark.parametrize(
    ("text", "field", "value", "expected"),
    [
        # MR-22, and the fields that stand alone
        (f"{TENSORS} max_batch_size: -1", "max_batch_size", "-1", "expected a non-negative integer"),
        (f"{TENSORS} version_policy {{ specific {{}} }}", "version_policy.specific.versions", "[]",
         "expected at least one version number"),
        (f"{TENSORS} version_policy {{ specific {{ versions: [1, -2] }} }}",
         "version_policy.specific.versions", "-2", "expected version numbers >= 1"),
        # MR-21, MR-22
        ("", "input", "", "expected at least one input"),
        ('input { name: "x" data_type: TYPE_FP32 dims: [1] }', "output", "", "expected at least one output"),
        ("input { data_type: TYPE_FP32 dims: [1] }", "input[0].name", "''", "expected a tensor name"),
        (f'{TENSORS} input {{ name: "x" data_type: TYPE_FP32 dims: [1] }}', "input[1].name", "x",
         "expected each input name once"),
        (f'{TENSORS} output {{ name: "y" data_type: TYPE_FP32 dims: [1] }}', "output[1].name", "y",
         "expected each output name once"),
        (tensor(""), "input[x].dims", "[]", "expected at least one dimension"),
        (tensor("dims: [4, 0]"), "input[x].dims", "0", "expected an integer >= 1, or -1 for any size"),
        (tensor("dims: [-2]"), "input[x].dims", "-2", "expected an integer >= 1, or -1 for any size"),
        (tensor("format: FORMAT_NHWC dims: [4]"), "input[x].format", "FORMAT_NHWC",
         "expected dims of 3 dimensions with this format, not [4]"),
        # MR-23
        (tensor("dims: [4] reshape { shape: [2, 3] }"), "input[x].reshape.shape", "[2, 3]",
         "expected the element count of dims [4]"),
        (tensor("dims: [4] reshape { shape: [4, 0] }"), "input[x].reshape.shape", "0",
         "expected an integer >= 1, or -1 for any size"),
        (tensor("dims: [4] reshape { shape: [-1] }"), "input[x].reshape.shape", "[-1]",
         "expected as many -1 dimensions as dims [4] has"),
        (tensor("dims: [2, -1, 6] reshape { shape: [3, -1, 4] }"), "input[x].reshape.shape", "[3, -1, 4]",
         "expected the element count of dims [2, -1, 6]"),
        (tensor("dims: [2] reshape { shape: [] }"), "input[x].reshape.shape", "[]",
         "expected the element count of dims [2]"),
        (tensor("dims: [-1] reshape { shape: [] }"), "input[x].reshape.shape", "[]",
         "expected the element count of dims [-1]"),
        (tensor("dims: [1] reshape { shape: [] }", batch=0), "input[x].reshape.shape", "[]",
         "a model that does not batch has no scalars"),
        # MR-30
        (f"{TENSORS} instance_group {{ count: -1 }}", "instance_group[0].count", "-1",
         "expected a positive integer"),
        (f"{TENSORS} instance_group {{ name: 'g' kind: KIND_CPU gpus: [0] }}", "instance_group[g].gpus", "[0]",
         "expected none with KIND_CPU"),
        (f"{TENSORS} instance_group {{ kind: KIND_GPU gpus: [-1] }}", "instance_group[0].gpus", "[-1]",
         "expected GPU numbers >= 0"),
        # MR-41
        (f"{TENSORS} max_batch_size: 4 model_warmup {{ name: 'w' batch_size: 5 }}",
         "model_warmup[w].batch_size", "5", "expected 0 to 4"),
        (f"{TENSORS} model_warmup {{ batch_size: 2 }}", "model_warmup[0].batch_size", "2", "expected 0 to 1"),
        (f"""{TENSORS} model_warmup {{ name: 'w' inputs {{ key: "x" value {{
              data_type: TYPE_FP32 dims: [-1] zero_data: true }} }} }}""",
         "model_warmup[w].inputs[x].dims", "[-1]", "expected fixed sizes >= 0"),
        # DB-01, DB-03, DB-05, DB-07
        (batching("preferred_batch_size: [0, 4]"), "dynamic_batching.preferred_batch_size", "0",
         "expected sizes from 1 to max_batch_size (8)"),
        (batching("preferred_batch_size: [4, 9]"), "dynamic_batching.preferred_batch_size", "9",
         "expected sizes from 1 to max_batch_size (8)"),
        (batching("preferred_batch_size: [1]", batch=0), "dynamic_batching.preferred_batch_size", "1",
         "expected sizes from 1 to max_batch_size (0)"),
        (batching("priority_levels: 2"), "dynamic_batching.default_priority_level", "0",
         "expected a level from 1 to 2"),
        (batching("priority_levels: 2 default_priority_level: 3"), "dynamic_batching.default_priority_level",
         "3", "expected a level from 1 to 2"),
        (batching("priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value {} }"),
         "dynamic_batching.priority_queue_policy", "3", "expected levels from 1 to 2"),
        (batching("preserve_ordering: true priority_levels: 2 default_priority_level: 1"),
         "dynamic_batching.preserve_ordering", "true", "expected false with more than one priority level (2)"),
        (batching("""preserve_ordering: true default_queue_policy {
                     timeout_action: DELAY default_timeout_microseconds: 1 }"""),
         "dynamic_batching.preserve_ordering", "true", "whose timeout_action is DELAY"),
        (batching("""preserve_ordering: true priority_levels: 1 default_priority_level: 1
                     priority_queue_policy { key: 1 value {
                     timeout_action: DELAY default_timeout_microseconds: 1 } }"""),
         "dynamic_batching.preserve_ordering", "true", "whose timeout_action is DELAY"),
        # §1.4
        (f'{TENSORS} batch_input {{ target_name: "s" data_type: TYPE_INT32 source_input: "z" }}',
         "batch_input[0].source_input", "z", "expected an input: one of x"),
        (f'{TENSORS} batch_input {{ target_name: "x" data_type: TYPE_INT32 source_input: "x" }}',
         "batch_input[0].target_name", "x", "expected a name that no other tensor has"),
        (f'{TENSORS} batch_input {{ data_type: TYPE_INT32 source_input: "x" }}',
         "batch_input[0].target_name", "[]", "expected at least one tensor name"),
        (f'{TENSORS} batch_output {{ target_name: "z" source_input: "x" }}',
         "batch_output[0].target_name", "z", "expected an output: one of y"),
        (f'{TENSORS} batch_output {{ target_name: ["y", "y"] source_input: "x" }}',
         "batch_output[0].target_name", "y", "expected a name that no other tensor has"),
    ],
)  # fmt: skip
def test_nonsense_is_refused_by_field_and_value(text, field, value, expected):
    with pytest.raises(ConfigError) as caught:
        check(text)
    assert caught.value.file == FILE
    assert caught.value.field == field
    assert caught.value.value == value
    assert expected in caught.value.expected
    assert str(caught.value).startswith(f"{FILE}: {field}")


@pytest.mark.parametrize(
    "text",
    [
        tensor("dims: [4] reshape { shape: [2, 1, 2] }"),
        tensor("dims: [2, 4, -1, 6] reshape { shape: [8, -1, 1, 6] }"),
        tensor("dims: [1] reshape { shape: [] }"),
        tensor("dims: [3, 224, 224] format: FORMAT_NCHW"),
        batching("preferred_batch_size: [1, 8]"),
        batching("priority_levels: 18446744073709551615 default_priority_level: 18446744073709551615"),
        batching("preserve_ordering: true default_queue_policy { timeout_action: DELAY }"),
        batching("preserve_ordering: true default_queue_policy { default_timeout_microseconds: 5 }"),
        batching("", batch=0),
        f'{TENSORS} batch_output {{ target_name: "y" source_input: "x" }}',
        'input { name: "x" data_type: TYPE_FP32 dims: [1] } output { name: "x" data_type: TYPE_FP32 dims: [1] }',
        f'{TENSORS} model_warmup {{ name: "off" batch_size: 0 }}',
    ],
)  # fmt: skip
def test_what_triton_accepts_is_accepted(text):
    check(text)


def test_what_auto_complete_may_still_fill_in_is_left_alone_before_it():
    """A batch size of 0 and absent tensors may change; what is given must make sense already."""
    text = "dynamic_batching { preferred_batch_size: [4] } model_warmup { batch_size: 3 }"
    check(text, is_complete=False)
    with pytest.raises(ConfigError, match="expected at least one dimension"):
        check('input { name: "x" data_type: TYPE_FP32 }', is_complete=False)
