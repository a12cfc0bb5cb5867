"""Records as people have them: a payment of 30 numbers among other fields, in JSON or Avro, scored by a small network.

Payment number ``n`` carries row ``n % POOL`` of a fixed pool, rounded so that its numbers look as people write them.
A result has the payment's number and the network's 10 outputs, whoever made it.
"""

from __future__ import annotations

import io
import itertools
import json
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import numpy.typing as npt
from headrace.schemas.avro import long
from onnx import TensorProto, checker, helper, numpy_helper, save

from benchmarks.workload import MAX_BATCH_ROWS, POOL, TOLERANCE, Floats
from benchmarks.workload import pool as wide_pool

MODEL = "fraud"
INPUT = "features"
OUTPUT = "scores"
SIZES = (30, 128, 10)
FIELDS = tuple(f"f{i:02}" for i in range(SIZES[0]))
_SEED = 30128
Numbers = npt.NDArray[np.int64]

SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Payment",
        "fields": [
            {"name": "payment", "type": "long"},
            {"name": "currency", "type": "string"},
            *({"name": name, "type": "float"} for name in FIELDS),
        ],
    }
)
RESULT_SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Score",
        "fields": [
            {"name": "payment", "type": ["null", "long"], "default": None},
            {
                "name": OUTPUT,
                "type": ["null", {"type": "array", "items": "float"}],
                "default": None,
            },
            {"name": "error", "type": ["null", "string"], "default": None},
        ],
    }
)


def weights() -> Iterator[tuple[Floats, Floats]]:
    """Yield weight [in, out] and bias [out] of each layer."""
    rng = np.random.default_rng(_SEED)
    for fan_in, fan_out in itertools.pairwise(SIZES):
        scale = np.float32(1 / np.sqrt(fan_in))
        matrix = rng.standard_normal((fan_in, fan_out), dtype=np.float32) * scale
        yield matrix, rng.standard_normal(fan_out, dtype=np.float32) * np.float32(0.1)


@cache
def pool() -> Floats:
    """Return the rows [POOL, 30]."""
    return np.round(wide_pool()[:, : SIZES[0]], 4)


@cache
def expected() -> Floats:
    """Return numpy's answer [POOL, 10] to each row."""
    (first, bias), (second, last) = weights()
    answer: Floats = np.maximum(pool() @ first + bias, 0) @ second + last
    return answer


def write_repository(folder: Path) -> Path:
    """Write a model repository with the network, and return the ONNX file in it."""
    version = folder / MODEL / "1"
    version.mkdir(parents=True)
    (folder / MODEL / "config.pbtxt").write_text(
        f"""name: "{MODEL}"
backend: "onnxruntime"
max_batch_size: {MAX_BATCH_ROWS}
input [{{ name: "{INPUT}", data_type: TYPE_FP32, dims: [{SIZES[0]}] }}]
output [{{ name: "{OUTPUT}", data_type: TYPE_FP32, dims: [{SIZES[-1]}] }}]
dynamic_batching {{ }}
instance_group [{{ kind: KIND_CPU, count: 1 }}]
parameters [
  {{ key: "intra_op_thread_count", value: {{ string_value: "1" }} }},
  {{ key: "inter_op_thread_count", value: {{ string_value: "1" }} }}
]
"""
    )
    (first, bias), (second, last) = weights()
    named = {"W0": first, "B0": bias, "W1": second, "B1": last}
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", [INPUT, "W0", "B0"], ["z"]),
            helper.make_node("Relu", ["z"], ["a"]),
            helper.make_node("Gemm", ["a", "W1", "B1"], [OUTPUT]),
        ],
        MODEL,
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["batch", SIZES[0]])],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", SIZES[-1]])],
        [numpy_helper.from_array(array, name) for name, array in named.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    save(model, str(version / "model.onnx"))
    return version / "model.onnx"


def write_mapping(folder: Path, source: str, target: str, word: str) -> Path:
    """Write the mapping of a run, and the schemas beside it; ``word`` is ``json`` or ``avro``."""
    schema = result = ""
    if word == "avro":
        (folder / "payment.avsc").write_text(SCHEMA)
        (folder / "score.avsc").write_text(RESULT_SCHEMA)
        schema, result = 'schema = "payment.avsc"\n', 'schema = "score.avsc"\n'
    path = folder / f"{source}.toml"
    path.write_text(
        f"""[source]
topic = "{source}"
format = "{word}"
offset_reset = "earliest"
{schema}
[inputs.{INPUT}]
fields = {json.dumps(FIELDS)}

[results]
topic = "{target}"
format = "{word}"
pass = ["payment"]
{result}"""
    )
    return path


def is_right(numbers: Numbers, answers: Floats) -> npt.NDArray[np.bool_]:
    """Tell for each answer [n, 10] whether it is the one to the payment of that number [n]."""
    verdict: npt.NDArray[np.bool_] = (
        np.abs(answers - expected()[numbers % POOL]) <= TOLERANCE
    ).all(axis=1)
    return verdict


@cache
def json_rests() -> list[bytes]:
    """Return of each row's JSON value what follows the payment's number."""
    found = []
    for row in pool():
        rest: dict[str, object] = {"currency": "EUR"}
        rest |= {name: float(f"{value:.4f}") for name, value in zip(FIELDS, row, strict=True)}
        found.append(json.dumps(rest, separators=(",", ":")).encode()[1:])
    return found


def json_value(number: int) -> bytes:
    """Return a payment in JSON."""
    return b'{"payment":%d,%b' % (number, json_rests()[number % POOL])


@cache
def avro_rests() -> list[bytes]:
    """The same in Avro: the fields stand one behind the other."""
    pack = struct.Struct(f"<{SIZES[0]}f").pack
    return [b"\x06EUR" + pack(*row) for row in pool()]


def avro_value(number: int) -> bytes:
    """Return a payment in Avro."""
    return long(number) + avro_rests()[number % POOL]


_result = fastavro.parse_schema(json.loads(RESULT_SCHEMA))


def read_result(value: bytes, word: str) -> tuple[int, Floats]:
    """Return number and outputs [10] of a result; raises whatever is wrong with it."""
    found: Any
    found = (
        json.loads(value)
        if word == "json"
        else fastavro.schemaless_reader(io.BytesIO(value), _result, None)
    )
    return found["payment"], np.array(found[OUTPUT], np.float32)
