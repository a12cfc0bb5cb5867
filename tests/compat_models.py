"""The model repository of the compatibility suite: the same names, tensors and policies for Headrace and for Triton.

Headrace serves ONNX files and scripts of its identity backend. The Triton at hand has no backend but python, so there
each model is ``compat/triton_model.py``, which plays the same by the same parameters.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import onnx_models

TYPES = (
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "BF16", "BYTES"),
)
"""Datatypes of the tensors of ``types``, in order (SEMANTICS PB-44)."""

FAULT = 666
"""First element of a request that the models ``echo`` and ``repeat`` answer with an error."""

FAILURE = 667
"""The same of a request on which the whole execution of ``echo`` fails."""

SLOW_MS = 250
"""What each execution of ``slow`` takes."""

DYNAMIC = "dynamic_batching { }"
DECOUPLED = "model_transaction_policy { decoupled: true }"
POLICY = """dynamic_batching {
  default_queue_policy {
    timeout_action: REJECT
    default_timeout_microseconds: 20000000
    allow_timeout_override: true
    max_queue_size: 4
  }
}"""
SEQUENCES = """sequence_batching {
  max_sequence_idle_microseconds: 60000000
  direct { }
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "END" control [ { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } ] }
  ]
}"""


@dataclass(frozen=True)
class Model:
    """One model of the repository.

    Attributes:
        inputs: Each ``NAME DATATYPE DIMS``, with ``optional`` behind where it is.
        outputs: The same.
        rows: ``max_batch_size``.
        more: Configuration text that both servers read.
        script: Parameters of the identity backend, which the python model understands too.
        make: Makes the ONNX file of a version; None is the identity backend.
        versions: Numbers of its versions.
        labels: Lines of the first output's label file.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    rows: int = 8
    more: str = ""
    script: Mapping[str, str] = field(default_factory=dict)
    make: Callable[[int], onnx.ModelProto] | None = None
    versions: tuple[int, ...] = (1,)
    labels: tuple[str, ...] = ()


def _pairs(*specs: str, optional: str = "") -> tuple[tuple[str, ...], tuple[str, ...]]:
    return (
        tuple(f"INPUT{i} {spec} {optional}".strip() for i, spec in enumerate(specs)),
        tuple(f"OUTPUT{i} {spec}" for i, spec in enumerate(specs)),
    )


COUNTED = (
    ("INPUT0 INT32 1", "COUNT INT32 1"),
    ("OUTPUT0 INT32 1", "OUTPUT1 INT32 1"),
)
"""Tensors of a model that answers INPUT0 as often as COUNT says."""

MODELS: Mapping[str, Model] = {
    "simple": Model(*_pairs("INT32 16", "INT32 16"), more=DYNAMIC, make=onnx_models.add_sub),
    "versions": Model(
        *_pairs("FP32 16", "FP32 16"),
        more="version_policy { all { } }",
        make=lambda v: onnx_models.add_sub(v, "FP32"),
        versions=(1, 2),
    ),
    "echo": Model(
        *_pairs("FP32 -1"),
        more=DYNAMIC,
        script={"error_if": f"INPUT0={FAULT}", "fail_if": f"INPUT0={FAILURE}"},
    ),
    "strings": Model(*_pairs("BYTES -1")),
    "word": Model(*_pairs("BYTES 1")),
    "types": Model(*_pairs(*(f"{word} -1" for word in TYPES), optional="optional"), rows=0),
    "scores": Model(*_pairs("FP32 4"), rows=4, labels=("pear", "plum", "apple")),
    "matrix": Model(*_pairs("FP32 -1,-1"), rows=0),
    "optional": Model(
        ("INPUT0 FP32 2,2", "INPUT1 FP32 2,2 optional"), ("OUTPUT0 FP32 2,2", "OUTPUT1 FP32 2,2")
    ),
    "total": Model(*_pairs("INT32 1"), rows=4, more=SEQUENCES, script={"accumulate": "true"}),
    "repeat": Model(
        *COUNTED,
        rows=0,
        more=DECOUPLED,
        script={"responses": "COUNT", "error_if": f"INPUT0={FAULT}"},
    ),
    "late": Model(
        *COUNTED, rows=0, more=DECOUPLED, script={"responses": "COUNT", "response_error_at": "2"}
    ),
    "slow": Model(
        *_pairs("FP32 1"), rows=1, more=POLICY, script={"execute_delay_ms": str(SLOW_MS)}
    ),
}
"""Name → model."""

BROKEN = Model(*_pairs("FP32 4"))
"""A model whose files are none that can be loaded."""


def write_headrace(root: Path, models: Mapping[str, Model] = MODELS) -> Path:
    """Write the repository that Headrace serves; returns ``root``."""
    for name, model in models.items():
        backend = "identity" if model.make is None else "onnxruntime"
        _write(root / name, model, backend, model.script)
        if model.make is not None:
            for version in model.versions:
                onnx.save(model.make(version), root / name / str(version) / "model.onnx")
    return root


def write_triton(root: Path, models: Mapping[str, Model] = MODELS) -> Path:
    """Write the repository that Triton serves; returns ``root``."""
    # The script that starts Triton adds models of its own to a repository without this one.
    for name, model in {**models, "mlp": MODELS["echo"]}.items():
        play = {} if model.make is None else {"play": "add_sub"}
        _write(root / name, model, "python", {**model.script, **play})
        for version in model.versions:
            source = Path(__file__).parent / "compat" / "triton_model.py"
            shutil.copy(source, root / name / str(version) / "model.py")
    return root


def write_broken(root: Path, target: str) -> Path:
    """Write a repository of ``echo``, and of ``broken``, which does not load; returns ``root``."""
    write = write_headrace if target == "headrace" else write_triton
    write(root, {"echo": MODELS["echo"]})
    backend, file = (
        ("onnxruntime", "model.onnx") if target == "headrace" else ("python", "model.py")
    )
    _write(root / "broken", BROKEN, backend, {})
    (root / "broken" / "1" / file).write_text("this is no model")
    return root


def _write(folder: Path, model: Model, backend: str, script: Mapping[str, str]) -> None:
    for version in model.versions:
        (folder / str(version)).mkdir(parents=True)
    labels = ' label_filename: "labels.txt"' if model.labels else ""
    if model.labels:
        (folder / "labels.txt").write_text("".join(f"{line}\n" for line in model.labels))
    parameters = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in script.items()
    )
    (folder / "config.pbtxt").write_text(
        f'name: "{folder.name}"\n'
        f'backend: "{backend}"\n'
        f"max_batch_size: {model.rows}\n"
        f"{''.join(_tensor('input', spec) for spec in model.inputs)}"
        f"{''.join(_tensor('output', spec, labels) for spec in model.outputs)}"
        "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
        f"{model.more}\n{parameters}"
    )


def _tensor(kind: str, spec: str, more: str = "") -> str:
    name, datatype, dims, *optional = spec.split()
    datatype = datatype.replace("BYTES", "STRING")
    flag = " optional: true" if optional else ""
    return (
        f'{kind} [ {{ name: "{name}" data_type: TYPE_{datatype} '
        f"dims: [ {dims} ]{flag}{more} }} ]\n"
    )
