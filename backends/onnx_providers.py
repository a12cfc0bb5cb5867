"""Which execution providers serve an instance, from its device and the configured accelerators. Pure.

A *plan* is a list of providers in order of preference, CPU last. ONNX Runtime drops a provider that cannot
start and goes on without it; `headrace.backends.ort` compares the session with the plan, so that a model
never runs elsewhere than its configuration says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from headrace.backends.onnx_settings import BOOLEANS
from headrace.schemas.errors import ConfigError
from headrace.schemas.model_config import Accelerator, InstanceKind, ModelConfig

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"


@dataclass(frozen=True, slots=True)
class Provider:
    """An execution provider with its options, as ONNX Runtime spells both."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)


Plan: TypeAlias = tuple[Provider, ...]

TENSORRT_PRECISIONS = {
    "FP32": "",
    "FP16": "trt_fp16_enable",
    "BF16": "trt_bf16_enable",
    "INT8": "trt_int8_enable",
}
"""``precision_mode`` → provider option that switches it on."""

TENSORRT_RENAMED = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
"""Accelerator parameter → provider option, where Triton's name differs from ONNX Runtime's."""

TENSORRT_OPTIONS = frozenset(
    {
        "trt_auxiliary_streams",
        "trt_build_heuristics_enable",
        "trt_builder_optimization_level",
        "trt_context_memory_sharing_enable",
        "trt_cuda_graph_enable",
        "trt_detailed_build_log",
        "trt_dla_core",
        "trt_dla_enable",
        "trt_dump_ep_context_model",
        "trt_dump_subgraphs",
        "trt_engine_cache_enable",
        "trt_engine_cache_path",
        "trt_engine_cache_prefix",
        "trt_ep_context_embed_mode",
        "trt_ep_context_file_path",
        "trt_extra_plugin_lib_paths",
        "trt_force_sequential_engine_build",
        "trt_force_timing_cache",
        "trt_layer_norm_fp32_fallback",
        "trt_max_partition_iterations",
        "trt_min_subgraph_size",
        "trt_profile_max_shapes",
        "trt_profile_min_shapes",
        "trt_profile_opt_shapes",
        "trt_sparsity_enable",
        "trt_tactic_sources",
        "trt_timing_cache_enable",
        "trt_timing_cache_path",
    }
)
"""Accelerator parameters that go to the TensorRT provider under their own name."""

TENSORRT_SWITCHES = frozenset(
    {
        "trt_detailed_build_log",
        "trt_dump_ep_context_model",
        "trt_dump_subgraphs",
        "trt_force_sequential_engine_build",
        "trt_force_timing_cache",
        "trt_int8_use_native_calibration_table",
        "trt_layer_norm_fp32_fallback",
    }
)
"""TensorRT provider options that are true or false, besides those that end in ``_enable``."""

CUDA_CHOICES = {
    "cudnn_conv_algo_search": {"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"},
    "arena_extend_strategy": {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"},
}
"""Model ``parameters`` of the older spelling: number → the CUDA provider's word."""

CUDA_PLAIN = ("gpu_mem_limit", "do_copy_in_default_stream")
"""Model ``parameters`` of the older spelling that go to the CUDA provider as they are."""


def plans(
    config: ModelConfig, kind: InstanceKind, device_id: int, available: Sequence[str]
) -> tuple[Plan, ...]:
    """Return the plans to try for an instance, the best first; only ``KIND_AUTO`` has more than one.

    Args:
        config: Its accelerators and ``parameters`` choose providers and their options.
        kind: ``KIND_CPU`` and ``KIND_MODEL`` run on CPU, ``KIND_GPU`` on the GPU, ``KIND_AUTO`` on the GPU
            where there is one, else on CPU.
        device_id: Number of the GPU.
        available: Providers that the installed ONNX Runtime offers.

    Raises:
        ConfigError: A provider that is asked for is not offered, or an accelerator or one of its parameters
            is unknown; names it and what there is.
    """
    if kind is InstanceKind.KIND_GPU:
        if CUDA not in available:
            raise ConfigError(
                f"needs {CUDA}, but the installed onnxruntime offers {', '.join(available)}; "
                'install it with: pip install "headrace[gpu]"',
                field="instance_group.kind",
                value=kind,
            )
        return (_gpu_plan(config, device_id, available),)
    if kind is InstanceKind.KIND_AUTO and CUDA in available:
        return (_gpu_plan(config, device_id, available), _cpu_plan(config, available))
    return (_cpu_plan(config, available),)


def _cpu_plan(config: ModelConfig, available: Sequence[str]) -> Plan:
    found: list[Provider] = []
    for accelerator in config.cpu_accelerators:
        if accelerator.name != "openvino":
            raise _unknown("cpu", accelerator, "openvino")
        _need(OPENVINO, "cpu", accelerator, available)
        found.append(Provider(OPENVINO, {"device_type": "CPU", **accelerator.parameters}))
    return (*found, Provider(CPU))


def _gpu_plan(config: ModelConfig, device_id: int, available: Sequence[str]) -> Plan:
    found: list[Provider] = []
    cuda = dict(_cuda_parameters(config.parameters))
    for accelerator in config.gpu_accelerators:
        match accelerator.name:
            case "tensorrt":
                _need(TENSORRT, "gpu", accelerator, available)
                options = _tensorrt_options(accelerator)
                found.append(Provider(TENSORRT, {**options, "device_id": str(device_id)}))
            case "cuda":
                cuda.update(accelerator.parameters)
            case _:
                raise _unknown("gpu", accelerator, "tensorrt, cuda")
    cuda["device_id"] = str(device_id)
    return (*found, Provider(CUDA, cuda), Provider(CPU))


def _tensorrt_options(accelerator: Accelerator) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, value in accelerator.parameters.items():
        if key == "precision_mode":
            switch = TENSORRT_PRECISIONS.get(value)
            if switch is None:
                raise _bad(key, value, f"one of {', '.join(TENSORRT_PRECISIONS)}")
            if switch:
                options[switch] = "True"
            continue
        name = TENSORRT_RENAMED.get(key, key)
        if name == key and key not in TENSORRT_OPTIONS:
            known = ", ".join(sorted({"precision_mode", *TENSORRT_RENAMED, *TENSORRT_OPTIONS}))
            raise _bad(key, value, f"a parameter of the tensorrt accelerator: {known}")
        options[name] = _truth(key, value) if _is_switch(name) else value
    return options


def _is_switch(name: str) -> bool:
    return name.endswith("_enable") or name in TENSORRT_SWITCHES


def _truth(key: str, value: str) -> str:
    boolean = BOOLEANS.get(value.lower())
    if boolean is None:
        raise _bad(key, value, "true or false")
    # The Python binding of this provider takes no other spelling.
    return str(boolean)


def _cuda_parameters(parameters: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, words in CUDA_CHOICES.items():
        if key in parameters:
            word = words.get(parameters[key])
            if word is None:
                raise ConfigError(
                    f"expected one of {', '.join(f'{k} ({v})' for k, v in words.items())}",
                    field=f"parameters.{key}",
                    value=repr(parameters[key]),
                )
            options[key] = word
    options.update({key: parameters[key] for key in CUDA_PLAIN if key in parameters})
    return options


def _need(provider: str, side: str, accelerator: Accelerator, available: Sequence[str]) -> None:
    if provider not in available:
        raise ConfigError(
            f"needs {provider}, but the installed onnxruntime offers {', '.join(available)}",
            field=f"optimization.execution_accelerators.{side}_execution_accelerator",
            value=accelerator.name,
        )


def _unknown(side: str, accelerator: Accelerator, known: str) -> ConfigError:
    return ConfigError(
        f"unknown execution accelerator, expected one of: {known}",
        field=f"optimization.execution_accelerators.{side}_execution_accelerator",
        value=accelerator.name,
    )


def _bad(key: str, value: str, expected: str) -> ConfigError:
    return ConfigError(
        f"expected {expected}",
        field=f"optimization.execution_accelerators.gpu_execution_accelerator.tensorrt.{key}",
        value=repr(value),
    )
