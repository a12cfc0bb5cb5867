"""The same work with memory: a recurrent network of the MLP's very weights, whose second layer looks back in time.

``h' = relu(x·W0 + B0 + h·W1/2 + B1)``, ``LOGITS = h'·W2 + B2``: as many multiplications per row as the MLP, and a state
of 512 floats, 2 kB. Half of W1 keeps it stable over any number of steps, so that numpy's answers stay comparable; a
state that is one step behind or ahead still differs by far more than the tolerance.

Request number ``n`` is the step ``n // live`` of sequence ``n % live`` and carries row ``n % POOL`` of the workload.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, checker, helper, numpy_helper, save

from benchmarks.workload import (
    INPUT,
    MAX_BATCH_ROWS,
    OUTPUT,
    POOL,
    SIZES,
    TOLERANCE,
    Floats,
    pool,
    weights,
)

MODEL = "recurrent"
STATE = SIZES[1]
STATE_BYTES = 4 * STATE
IDLE_US = 3_600_000_000
"""Longest silence of a sequence, µs: none may expire while others are measured."""
CANDIDATES = 1024
"""Slots of ``oldest``: more than there are sequences, as that strategy is used; ``direct`` has one per row."""


@cache
def parameters(state: int = STATE) -> list[tuple[Floats, Floats]]:
    """Return weight and bias of input, recurrence and output.

    A larger state is that of several such networks side by side, with turned inputs and the mean of their answers.
    """
    (first, bias0), (second, bias1), (last, bias2) = weights()
    copies = state // STATE
    if copies * STATE != state:
        raise ValueError(f"a state of {state} floats is no multiple of {STATE}")
    inputs = np.concatenate([np.roll(first, k, axis=0) for k in range(copies)], axis=1)
    recurrence = np.kron(np.eye(copies, dtype=np.float32), second / 2)
    return [
        (inputs, np.tile(bias0, copies)),
        (recurrence.astype(np.float32), np.tile(bias1, copies)),
        (np.tile(last, (copies, 1)) / np.float32(copies), bias2),
    ]


def step(rows: Floats, before: Floats) -> tuple[Floats, Floats]:
    """Return answers [n, 10] and states [n, state] of rows [n, 128] after states [n, state]."""
    (w0, b0), (w1, b1), (w2, b2) = parameters(before.shape[1])
    after: Floats = np.maximum(rows @ w0 + b0 + before @ w1 + b1, 0)
    answers: Floats = after @ w2 + b2
    return answers, after


@cache
def expected(live: int, count: int) -> Floats:
    """Return numpy's answers [count, 10] to the first requests of ``live`` sequences."""
    states = np.zeros((live, STATE), np.float32)
    found = np.empty((count, SIZES[-1]), np.float32)
    for at in range(0, count, live):
        rows = pool()[np.arange(at, min(at + live, count)) % POOL]
        found[at : at + len(rows)], states[: len(rows)] = step(rows, states[: len(rows)])
    return found


def is_right(live: int, numbers: npt.NDArray[np.int64], answers: Floats) -> npt.NDArray[np.bool_]:
    """Tell for each answer [n, 10] whether it is that of the request of that number [n], all before it stepped once."""
    count = int(numbers.max()) + 1 if len(numbers) else 0
    verdict: npt.NDArray[np.bool_] = (
        np.abs(answers - expected(live, count)[numbers]) <= TOLERANCE
    ).all(axis=1)
    return verdict


def write_onnx(path: Path, state: int = STATE) -> None:
    """Write the network as an ONNX file with a free batch axis."""
    constants = []
    for name, (weight, bias) in zip("XHY", parameters(state), strict=True):
        constants.append(numpy_helper.from_array(weight, f"W{name}"))
        constants.append(numpy_helper.from_array(bias, f"B{name}"))
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", [INPUT, "WX", "BX"], ["seen"]),
            helper.make_node("Gemm", ["STATE", "WH", "BH"], ["kept"]),
            helper.make_node("Add", ["seen", "kept"], ["sum"]),
            helper.make_node("Relu", ["sum"], ["STATE_OUT"]),
            helper.make_node("Gemm", ["STATE_OUT", "WY", "BY"], [OUTPUT]),
        ],
        MODEL,
        [_floats(INPUT, SIZES[0]), _floats("STATE", state)],
        [_floats(OUTPUT, SIZES[-1]), _floats("STATE_OUT", state)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    save(model, str(path))


def _floats(name: str, size: int) -> object:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])


def configuration(
    strategy: str,
    *,
    state: int = STATE,
    rows: int = MAX_BATCH_ROWS,
    candidates: int = CANDIDATES,
    every: int = 0,
) -> str:
    """Return the text of config.pbtxt: one instance, one thread, as the MLP's.

    Args:
        strategy: ``direct`` or ``oldest``.
        state: Floats of the state.
        rows: Rows of a batch at most.
        candidates: Sequences that have a slot with ``oldest``.
        every: Snapshot after so many steps; 0 leaves it to the worker's own setting, which is on commit.
    """
    options = f"max_candidate_sequences: {candidates}" if strategy == "oldest" else ""
    snapshots = f'{{ key: "snapshot_every", value: {{ string_value: "{every}" }} }},'
    return f"""name: "{MODEL}"
backend: "onnxruntime"
max_batch_size: {rows}
input [{{ name: "{INPUT}", data_type: TYPE_FP32, dims: [{SIZES[0]}] }}]
output [{{ name: "{OUTPUT}", data_type: TYPE_FP32, dims: [{SIZES[-1]}] }}]
sequence_batching {{
  max_sequence_idle_microseconds: {IDLE_US}
  {strategy} {{ {options} }}
  state [{{ input_name: "STATE", output_name: "STATE_OUT", data_type: TYPE_FP32, dims: [{state}] }}]
}}
instance_group [{{ kind: KIND_CPU, count: 1 }}]
parameters [
  {snapshots if every else ""}
  {{ key: "intra_op_thread_count", value: {{ string_value: "1" }} }},
  {{ key: "inter_op_thread_count", value: {{ string_value: "1" }} }}
]
"""


def write_repository(folder: Path, strategy: str, *, state: int = STATE, every: int = 0) -> Path:
    """Write a model repository with the network; returns its folder."""
    version = folder / MODEL / "1"
    version.mkdir(parents=True)
    text = configuration(strategy, state=state, every=every)
    (folder / MODEL / "config.pbtxt").write_text(text)
    write_onnx(version / "model.onnx", state)
    return folder
