"""The classification extension over the whole service: Triton's client, JSON, and records (SEMANTICS §2.5)."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from headrace.schemas.codec import decode_response, encode_request
from headrace.schemas.infer import InferRequest, RequestedOutput
from headrace.schemas.record import CONTENT_TYPES, Out
from headrace.schemas.tensor import Tensor
from headrace.streams.grpc_server import GrpcServer
from headrace.streams.grpc_settings import GrpcSettings
from headrace.streams.memory import MemoryLog
from headrace.streams.topology import Topology
from service_kit import Producer, Service, Tap, serving, write_models
from tritonclient.utils import InferenceServerException

CONFIG = """
backend: "identity"
max_batch_size: 4
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [4] }, { name: "INPUT1" data_type: TYPE_INT32 dims: [2] }]
output [
  { name: "OUTPUT0" data_type: TYPE_FP32 dims: [4] label_filename: "fruit.txt" },
  { name: "OUTPUT1" data_type: TYPE_INT32 dims: [2] }
]
dynamic_batching { max_queue_delay_microseconds: 1000 }
"""
ROWS = np.float32([[1, 2, 3, 4], [9, 0, -1, 8]])
TOP = [["4.000000:3", "3.000000:2:cherry"], ["9.000000:0:apple", "8.000000:3"]]


@pytest.fixture(scope="module")
def http_client():
    """Triton's synchronous client; it needs the extra tritonclient[http]."""
    pytest.importorskip("geventhttpclient", reason="needs the extra tritonclient[http]")
    return pytest.importorskip("tritonclient.http")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A model whose first output has labels for three of its four places."""
    write_models(tmp_path, {"m": CONFIG})
    (tmp_path / "m" / "fruit.txt").write_text("apple\npear\ncherry\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
async def service(root: Path):
    """Worker and gateway on a memory log."""
    async with MemoryLog() as log, serving(log, root, Topology(f"t{uuid.uuid4().hex[:6]}")) as one:
        yield one


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
async def test_CL01_CL04_CL05_tritons_client_gets_classes_with_labels(
    service: Service, http_client, binary: bool
) -> None:
    """Beside an output whose values are wanted; labels past the end of their file are left out."""

    def work() -> None:
        inputs = [
            http_client.InferInput("INPUT0", [2, 4], "FP32"),
            http_client.InferInput("INPUT1", [2, 2], "INT32"),
        ]
        inputs[0].set_data_from_numpy(ROWS)
        inputs[1].set_data_from_numpy(np.int32([[1, 2], [3, 4]]))
        outputs = [
            http_client.InferRequestedOutput("OUTPUT0", binary_data=binary, class_count=2),
            http_client.InferRequestedOutput("OUTPUT1", binary_data=binary),
        ]
        with http_client.InferenceServerClient(service.url.removeprefix("http://")) as client:
            assert "classification" in client.get_server_metadata()["extensions"]
            result = client.infer("m", inputs, outputs=outputs)
        found = result.as_numpy("OUTPUT0")
        assert [[str(w, "utf-8") if binary else w for w in row] for row in found.tolist()] == TOP
        assert result.get_output("OUTPUT0")["datatype"] == "BYTES"
        assert result.as_numpy("OUTPUT1").tolist() == [[1, 2], [3, 4]]

    await asyncio.to_thread(work)


async def test_CL01_CL02_tritons_client_gets_classes_over_grpc_too(service: Service) -> None:
    """From the record's answer, as over HTTP; what cannot be had is an invalid argument."""

    def work(port: int) -> None:
        inputs = [
            grpcclient.InferInput("INPUT0", [2, 4], "FP32"),
            grpcclient.InferInput("INPUT1", [2, 2], "INT32"),
        ]
        inputs[0].set_data_from_numpy(ROWS)
        inputs[1].set_data_from_numpy(np.int32([[1, 2], [3, 4]]))
        with grpcclient.InferenceServerClient(f"127.0.0.1:{port}") as client:
            outputs = [grpcclient.InferRequestedOutput("OUTPUT0", class_count=2)]
            result = client.infer("m", inputs, outputs=outputs)
            found = result.as_numpy("OUTPUT0").tolist()
            assert [[word.decode() for word in row] for row in found] == TOP
            outputs = [grpcclient.InferRequestedOutput("OUTPUT0", class_count=-1)]
            with pytest.raises(InferenceServerException, match="expected a whole number") as bad:
                client.infer("m", inputs, outputs=outputs)
            assert "INVALID_ARGUMENT" in bad.value.status()

    async with GrpcServer(service.gateway, GrpcSettings(port=0)) as server:
        await asyncio.to_thread(work, server.port)


async def test_CL02_what_has_no_classes_is_400_and_enters_no_topic(service: Service) -> None:
    for parameters, status, text in (
        ({"classification": 2**32}, 400, "expected a whole number from 0 to"),
        ({"classification": "2"}, 500, "Unable to set 'classification'"),
        ({"classification": 1}, 200, ""),
        ({"classification": 0}, 200, ""),
    ):
        body = {
            "inputs": [
                {"name": "INPUT0", "shape": [1, 4], "datatype": "FP32", "data": [0, 1, 2, 3]},
                {"name": "INPUT1", "shape": [1, 2], "datatype": "INT32", "data": [0, 1]},
            ],
            "outputs": [{"name": "OUTPUT0", "parameters": parameters}],
        }
        async with service.session.post("/v2/models/m/infer", json=body) as response:
            found = await response.json()
            assert response.status == status, found
            assert text in found.get("error", "")
    assert service.counts("m").success == 2


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
async def test_CL05_a_record_gets_classes_too(service: Service, content_type: str) -> None:
    """In every format, from a worker that has the label file."""
    request = InferRequest(
        (Tensor.from_numpy("INPUT0", ROWS), Tensor.from_numpy("INPUT1", np.int32([[1, 2]] * 2))),
        (RequestedOutput("OUTPUT0", {"classification": 2}),),
    )
    value, headers = encode_request(request, content_type)
    topology = service.topology
    async with Tap(service.log, topology.results("m")) as tap:
        out = Out(topology.requests("m"), 0, None, value, headers)
        (source,) = await Producer(service.log, {}).send([out])
        await tap.answered([source])
        (answer,) = tap.by_source()[source]
    (output,) = decode_response(answer.value, answer.headers).outputs
    assert [[word.decode() for word in row] for row in output.numpy().tolist()] == TOP
