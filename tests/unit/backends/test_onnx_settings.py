"""Session settings and execution providers as a configuration spells them (SEMANTICS MR-42, MR-43)."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from backend_kit import parsed
from headrace.backends import onnx_providers
from headrace.backends.onnx_providers import CPU, CUDA, OPENVINO, TENSORRT, plans
from headrace.backends.onnx_settings import GraphLevel, default_threads, read_settings
from headrace.schemas.errors import ConfigError
from headrace.schemas.model_config import InstanceKind

CPU_ONLY = ("AzureExecutionProvider", CPU)
GPU = (TENSORRT, CUDA, CPU)


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


def accelerator(side: str, name: str, **parameters: str) -> str:
    listed = " ".join(
        f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items()
    )
    return (
        f"optimization {{ execution_accelerators {{ {side}_execution_accelerator "
        f'[{{ name: "{name}" {listed} }}] }} }}'
    )


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (None, GraphLevel.ALL),
        (0, GraphLevel.ALL),
        (-1, GraphLevel.BASIC),
        (1, GraphLevel.EXTENDED),
        (2, GraphLevel.DISABLE_ALL),
    ],
)
def test_MR42_graph_levels_are_those_of_triton(level, expected) -> None:
    text = "" if level is None else f"optimization {{ graph {{ level: {level} }} }}"
    assert read_settings(parsed(text), 4).graph_level is expected


def test_MR43_parameters_reach_the_session() -> None:
    text = " ".join(
        [
            parameter("intra_op_thread_count", "3"),
            parameter("inter_op_thread_count", "2"),
            parameter("execution_mode", "1"),
            parameter("enable_mem_arena", "false"),
            parameter("enable_mem_pattern", "0"),
            parameter("memory.enable_memory_arena_shrinkage", "cpu:0"),
            parameter("share_session_between_instances", "true"),
            parameter("session.set_denormal_as_zero", "1"),
        ]
    )
    settings = read_settings(parsed(text), 64)
    assert (settings.intra_op_threads, settings.inter_op_threads) == (3, 2)
    assert settings.parallel
    assert not settings.enable_mem_arena
    assert not settings.enable_mem_pattern
    assert settings.shrink_arenas == "cpu:0"
    assert settings.share_session is True
    assert settings.entries["session.set_denormal_as_zero"] == "1"
    assert settings.entries["session.intra_op.allow_spinning"] == "0"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("intra_op_thread_count", "many", "an integer from 0 to 1024"),
        ("intra_op_thread_count", "-1", "an integer from 0 to 1024"),
        ("inter_op_thread_count", "5000", "an integer from 0 to 1024"),
        ("execution_mode", "2", "an integer from 0 to 1"),
        ("enable_mem_arena", "maybe", "true or false"),
        ("share_session_between_instances", "", "true or false"),
    ],
)
def test_a_bad_parameter_is_named_with_what_was_expected(key, value, expected) -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings(parsed(parameter(key, value)), 2)
    assert caught.value.field == f"parameters.{key}"
    assert caught.value.value == repr(value)
    assert expected in str(caught.value)


def test_an_unknown_parameter_warns_with_a_suggestion(caplog) -> None:
    with caplog.at_level(logging.WARNING):
        read_settings(parsed(parameter("intra_op_threads_count", "2")), 2)
    assert "did you mean 'intra_op_thread_count'?" in caplog.text


@pytest.mark.parametrize(
    ("cores", "groups", "threads"),
    [
        (2, "", 1),
        (2, "instance_group [{ count: 2 kind: KIND_CPU }]", 1),
        (8, "instance_group [{ count: 2 kind: KIND_CPU }]", 6),
        (8, "instance_group [{ count: 2 kind: KIND_CPU }, { count: 1 kind: KIND_CPU }]", 5),
        (8, "instance_group [{ count: 20 kind: KIND_CPU }]", 1),
        (8, "instance_group [{ count: 4 kind: KIND_GPU }]", 7),
    ],
)
def test_the_default_pool_leaves_a_core_to_the_loop(cores, groups, threads) -> None:
    """Callers, pool threads and the event loop together are as many as there are cores."""
    assert default_threads(parsed(groups), cores) == threads


def test_an_explicit_zero_is_the_runtimes_own_choice() -> None:
    """As in Triton: 0 leaves the number to ONNX Runtime."""
    assert read_settings(parsed(parameter("intra_op_thread_count", "0")), 8).intra_op_threads == 0


@pytest.mark.parametrize(
    "kind", [InstanceKind.KIND_CPU, InstanceKind.KIND_AUTO, InstanceKind.KIND_MODEL]
)
def test_MR30_without_a_gpu_all_but_KIND_GPU_run_on_cpu(kind) -> None:
    ((only,),) = plans(parsed(), kind, 0, CPU_ONLY)
    assert only.name == CPU


def test_MR30_KIND_GPU_without_a_gpu_names_the_provider_and_the_extra() -> None:
    with pytest.raises(ConfigError) as caught:
        plans(parsed(), InstanceKind.KIND_GPU, 0, CPU_ONLY)
    for word in ("KIND_GPU", CUDA, CPU, "headrace[gpu]"):
        assert word in str(caught.value)


def test_MR30_KIND_GPU_takes_its_device_and_nothing_else() -> None:
    (plan,) = plans(parsed(), InstanceKind.KIND_GPU, 3, GPU)
    assert [provider.name for provider in plan] == [CUDA, CPU]
    assert plan[0].options == {"device_id": "3"}


def test_MR30_KIND_AUTO_prefers_the_gpu_and_may_fall_back() -> None:
    first, second = plans(parsed(), InstanceKind.KIND_AUTO, 0, GPU)
    assert [provider.name for provider in first] == [CUDA, CPU]
    assert [provider.name for provider in second] == [CPU]


def test_MR42_tensorrt_options_are_translated() -> None:
    text = accelerator(
        "gpu",
        "tensorrt",
        precision_mode="FP16",
        max_workspace_size_bytes="1073741824",
        trt_engine_cache_enable="true",
        trt_engine_cache_path="/cache",
        int8_use_native_calibration_table="0",
    )
    (plan,) = plans(parsed(text), InstanceKind.KIND_GPU, 1, GPU)
    assert [provider.name for provider in plan] == [TENSORRT, CUDA, CPU]
    assert plan[0].options == {
        "trt_fp16_enable": "True",
        "trt_max_workspace_size": "1073741824",
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": "/cache",
        "trt_int8_use_native_calibration_table": "False",
        "device_id": "1",
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"precision_mode": "FP8"}, ["precision_mode = 'FP8'", "FP32, FP16, BF16, INT8"]),
        ({"trt_engine_cache_enable": "perhaps"}, ["trt_engine_cache_enable", "true or false"]),
        ({"workspace": "1"}, ["workspace", "max_workspace_size_bytes"]),
    ],
)
def test_MR42_a_bad_tensorrt_option_is_named(options, words) -> None:
    with pytest.raises(ConfigError) as caught:
        plans(parsed(accelerator("gpu", "tensorrt", **options)), InstanceKind.KIND_GPU, 0, GPU)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("side", "name", "kind", "available", "words"),
    [
        ("gpu", "tensorrt", InstanceKind.KIND_GPU, (CUDA, CPU), [TENSORRT, f"{CUDA}, {CPU}"]),
        ("gpu", "tpu", InstanceKind.KIND_GPU, GPU, ["tpu", "tensorrt, cuda"]),
        ("cpu", "openvino", InstanceKind.KIND_CPU, CPU_ONLY, [OPENVINO, CPU]),
        ("cpu", "mkl", InstanceKind.KIND_CPU, CPU_ONLY, ["mkl", "openvino"]),
    ],
)
def test_MR42_an_accelerator_that_is_not_there_is_refused(
    side, name, kind, available, words
) -> None:
    with pytest.raises(ConfigError) as caught:
        plans(parsed(accelerator(side, name)), kind, 0, available)
    for word in (f"{side}_execution_accelerator", *words):
        assert word in str(caught.value)


def test_MR42_openvino_where_it_is_offered() -> None:
    (plan,) = plans(
        parsed(accelerator("cpu", "openvino")), InstanceKind.KIND_CPU, 0, (OPENVINO, CPU)
    )
    assert [(provider.name, provider.options) for provider in plan] == [
        (OPENVINO, {"device_type": "CPU"}),
        (CPU, {}),
    ]


def test_MR43_cuda_options_of_both_spellings() -> None:
    """The accelerator's own parameters win over the older ``parameters``."""
    text = " ".join(
        [
            parameter("cudnn_conv_algo_search", "1"),
            parameter("arena_extend_strategy", "1"),
            parameter("gpu_mem_limit", "1000"),
            accelerator("gpu", "cuda", gpu_mem_limit="2000"),
        ]
    )
    (plan,) = plans(parsed(text), InstanceKind.KIND_GPU, 0, GPU)
    assert plan[0].options == {
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kSameAsRequested",
        "gpu_mem_limit": "2000",
        "device_id": "0",
    }
    with pytest.raises(ConfigError, match=r"0 \(EXHAUSTIVE\)"):
        plans(parsed(parameter("cudnn_conv_algo_search", "9")), InstanceKind.KIND_GPU, 0, GPU)


def test_one_module_imports_the_runtime() -> None:
    """A GPU library is imported in one module, so that the pure parts work without it."""
    folder = Path(onnx_providers.__file__).parent
    importing = [
        path.name
        for path in folder.glob("*.py")
        if re.search(r"^\s*(?:import|from) onnxruntime\b", path.read_text("utf-8"), re.MULTILINE)
    ]
    assert importing == ["ort.py"]
