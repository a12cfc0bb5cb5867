"""Ragged batches (SEMANTICS MR-25, §1.4) of a real ONNX model, from records to answers."""

import numpy as np
import onnx
import pytest
from headrace.consumers.encoding import encode_part
from headrace.consumers.execution import execute
from headrace.repository.repository import Repository
from headrace.schemas.answers import ResponseEncoder
from headrace.schemas.batch import Batch
from headrace.schemas.codec import decode_response, encode_request
from headrace.schemas.infer import InferRequest
from headrace.schemas.requests import RequestDecoder
from headrace.schemas.tensor import Tensor
from onnx import TensorProto, helper
from wire_kit import TP0, Rec

CONFIG = """
max_batch_size: 8
input [{ name: "x" data_type: TYPE_FP32 dims: [-1] allow_ragged_batch: true }]
batch_input [{ kind: BATCH_ELEMENT_COUNT target_name: "counts" data_type: TYPE_INT32 source_input: "x" }]
output [
  { name: "twice" data_type: TYPE_FP32 dims: [-1] },
  { name: "count" data_type: TYPE_INT32 dims: [1] reshape { shape: [] } }
]
batch_output [{ target_name: "twice" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "x" }]
dynamic_batching { }
"""


@pytest.fixture
def version(tmp_path):
    """A model that doubles each element and gives the number of elements of each request."""
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["x", "x"], ["twice"]),
            helper.make_node("Identity", ["counts"], ["count"]),
        ],
        "ragged",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [None]),
            helper.make_tensor_value_info("counts", TensorProto.INT32, [None]),
        ],
        [
            helper.make_tensor_value_info("twice", TensorProto.FLOAT, [None]),
            helper.make_tensor_value_info("count", TensorProto.INT32, [None]),
        ],
    )
    folder = tmp_path / "ragged" / "1"
    folder.mkdir(parents=True)
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), folder / "model.onnx")
    (tmp_path / "ragged" / "config.pbtxt").write_text(CONFIG)
    repository = Repository([tmp_path])
    assert repository.load() == {}
    yield repository.models["ragged"].versions[1]
    repository.close()


def answers(version, *rows):
    """Run requests of these rows as one batch; returns executions, and id → outputs or error text."""
    records = []
    for offset, row in enumerate(rows):
        tensor = Tensor.from_numpy("x", np.array(row, "<f4"))
        value, headers = encode_request(InferRequest((tensor,), id=str(offset)))
        records.append(Rec(value, tuple(headers), offset))
    decoded = RequestDecoder({1: version.signature}, model_name="ragged").decode(TP0, 1, records)
    assert decoded.failures == []
    batch = Batch(version.signature, decoded.by_version[1])
    execution = execute(version.instances[0], batch, repeatable=True, decoupled=False)
    found = {}
    for part in execution.parts:
        encoded, failed = encode_part(ResponseEncoder(version.signature), part, decoupled=False)
        found |= {entry.id: str(error) for entry, error in failed}
        for entry, value, headers in encoded:
            response = decode_response(value, headers)
            found[entry.id] = {t.name: t.numpy().tolist() for t in response.outputs}
    return execution.executions, found


def test_MR25_requests_of_different_lengths_share_an_execution(version):
    """Also one without elements (DB-34); each gets what was made of its own elements."""
    executions, found = answers(version, [[1, 2, 3]], [[]], [[4, 5]])
    assert executions == 1
    assert found == {
        "0": {"twice": [[2, 4, 6]], "count": [[3]]},
        "1": {"twice": [[]], "count": [[0]]},
        "2": {"twice": [[8, 10]], "count": [[2]]},
    }


def test_B36_an_output_by_request_does_not_fit_a_request_of_two_rows_and_costs_its_neighbour_nothing(
    version,
):
    """The helper counts requests, so ``count`` has 2 rows where the batch has 3: run singly, one of them fits."""
    executions, found = answers(version, [[1, 2], [3, 4]], [[5, 6, 7]])
    assert executions == 3
    assert found["1"] == {"twice": [[10, 12, 14]], "count": [[3]]}
    assert "output 'count', expected 2 rows" in found["0"]
