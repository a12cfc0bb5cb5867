"""SEMANTICS §2.10: single calls over gRPC, by tritonclient and by Triton's own message definitions."""

import queue
import threading

import grpc as grpc_core
import numpy as np
import pytest
import tritonclient.grpc
from compat_kit import ONES, SIXTEEN, add_sub, eventually, given, settled
from compat_models import FAULT, TYPES
from compat_rules import rule
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

Code = grpc_core.StatusCode


@pytest.fixture
def stub(target):
    """Triton's own stub, for what its client cannot send."""
    with grpc_core.insecure_channel(target.grpc) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def request(model="echo", **contents):
    """Return an infer request for ``echo`` with typed contents of INPUT0."""
    tensor = service_pb2.ModelInferRequest.InferInputTensor(
        name="INPUT0", datatype="FP32", shape=[1, 2], **contents
    )
    return service_pb2.ModelInferRequest(model_name=model, inputs=[tensor])


def refused(call):
    """Return status and text of an RPC that must fail."""
    with pytest.raises(grpc_core.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details()


@rule("PB-02", "PB-03", "SV-05", "TC-03")
def test_health_over_grpc(grpc):
    assert grpc.is_server_live()
    assert grpc.is_server_ready()
    assert grpc.is_model_ready("versions")
    assert grpc.is_model_ready("versions", "1")


@rule("SV-05")
def test_readiness_of_what_is_not_there(stub):
    def ready(**names):
        return stub.ModelReady(service_pb2.ModelReadyRequest(**names))

    for names in ({"name": "nobody"}, {"name": "versions", "version": "9"}):
        try:
            assert not ready(**names).ready
        except grpc_core.RpcError as error:
            assert error.code() is Code.NOT_FOUND  # noqa: PT017  # either answer is false to a client


@rule("SV-02")
def test_a_server_that_is_not_ready_says_so_over_grpc(strict):
    with tritonclient.grpc.InferenceServerClient(strict.grpc) as client:
        assert client.is_server_live()
        assert not client.is_server_ready()
        assert client.is_model_ready("echo")


@rule("PB-60", "PB-61", "PB-62")
def test_metadata_and_configuration_over_grpc(grpc):
    server = grpc.get_server_metadata()
    assert server.name
    assert {"classification", "sequence", "statistics"} <= set(server.extensions)
    model = grpc.get_model_metadata("simple")
    assert (model.name, list(model.versions)) == ("simple", ["1"])
    assert [(t.name, t.datatype, list(t.shape)) for t in model.inputs] == [
        (f"INPUT{i}", "INT32", [-1, 16]) for i in range(2)
    ]
    config = grpc.get_model_config("slow").config
    assert config.max_batch_size == 1
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 4
    assert config.instance_group[0].count == 1


@rule("PB-63")
def test_the_index_over_grpc(grpc, strict):
    found = {
        (each.name, each.version): each.state for each in grpc.get_model_repository_index().models
    }
    assert found["versions", "1"] == found["versions", "2"] == "READY"
    with tritonclient.grpc.InferenceServerClient(strict.grpc) as client:
        broken = {each.name: each for each in client.get_model_repository_index().models}["broken"]
    assert broken.state == "UNAVAILABLE"
    assert broken.reason


@rule("PB-10", "PB-31")
def test_load_and_unload_are_refused_over_grpc(grpc):
    """MC-01."""
    for call in (grpc.load_model, grpc.unload_model):
        with pytest.raises(
            InferenceServerException, match="explicit model load / unload"
        ) as caught:
            call("echo")
        assert caught.value.status() == "StatusCode.UNAVAILABLE"


@rule("GR-01")
def test_the_client_infers_over_grpc(grpc):
    asked = [tritonclient.grpc.InferRequestedOutput(f"OUTPUT{i}") for i in range(2)]
    result = grpc.infer(
        "simple", add_sub(tritonclient.grpc), outputs=asked, request_id="r", timeout=5_000_000
    )
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), SIXTEEN + ONES)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), SIXTEEN - ONES)
    response = result.get_response()
    assert (response.id, response.model_name, response.model_version) == ("r", "simple", "1")
    assert len(response.raw_output_contents) == 2
    assert not response.outputs[0].HasField("contents")


@rule("GR-01", "PB-05")
def test_the_asynchronous_call_and_a_version(grpc):
    results: queue.Queue = queue.Queue()
    inputs = add_sub(tritonclient.grpc, *(x.astype(np.float32) for x in (SIXTEEN, ONES)), "FP32")
    grpc.async_infer(
        "versions",
        inputs,
        lambda result, error: results.put((result, error)),
        model_version="2",
    )
    result, error = results.get(timeout=20)
    assert error is None
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), SIXTEEN - ONES)


TYPED = {
    "BOOL": ("bool_contents", [True, False]),
    "UINT8": ("uint_contents", [0, 255]),
    "UINT16": ("uint_contents", [0, 65_535]),
    "UINT32": ("uint_contents", [0, 2**32 - 1]),
    "UINT64": ("uint64_contents", [0, 2**64 - 1]),
    "INT8": ("int_contents", [-128, 127]),
    "INT16": ("int_contents", [-32_768, 32_767]),
    "INT32": ("int_contents", [-(2**31), 2**31 - 1]),
    "INT64": ("int64_contents", [-(2**63), 2**63 - 1]),
    "FP32": ("fp32_contents", [0.5, -1.25]),
    "FP64": ("fp64_contents", [0.1, -1e300]),
    "BYTES": ("bytes_contents", [b"", b"a\0b"]),
}


@rule("GR-01", "PB-44")
@pytest.mark.parametrize("datatype", TYPED)
def test_typed_contents(stub, datatype):
    number = TYPES.index(datatype)
    field, values = TYPED[datatype]
    tensor = service_pb2.ModelInferRequest.InferInputTensor(
        name=f"INPUT{number}", datatype=datatype, shape=[2], contents={field: values}
    )
    asked = service_pb2.ModelInferRequest.InferRequestedOutputTensor(name=f"OUTPUT{number}")
    answer = stub.ModelInfer(
        service_pb2.ModelInferRequest(model_name="types", inputs=[tensor], outputs=[asked])
    )
    result = tritonclient.grpc.InferResult(answer)
    assert result.as_numpy(f"OUTPUT{number}").tolist() == values


@rule("GR-01", "PB-44")
@pytest.mark.parametrize("datatype", TYPES)
def test_raw_contents(stub, datatype):
    number = TYPES.index(datatype)
    raw = {"BOOL": b"\1\0", "BYTES": b"\2\0\0\0ab\0\0\0\0"}.get(datatype, bytes(range(16)))
    size = {"BOOL": 1, "BYTES": 5, "FP16": 2, "BF16": 2}.get(datatype) or int(
        datatype[-2:].strip("PT")
    ) // 8
    shape = [len(raw) // size]
    tensor = service_pb2.ModelInferRequest.InferInputTensor(
        name=f"INPUT{number}", datatype=datatype, shape=shape
    )
    asked = service_pb2.ModelInferRequest.InferRequestedOutputTensor(name=f"OUTPUT{number}")
    answer = stub.ModelInfer(
        service_pb2.ModelInferRequest(
            model_name="types", inputs=[tensor], outputs=[asked], raw_input_contents=[raw]
        )
    )
    assert list(answer.outputs[0].shape) == shape
    assert answer.raw_output_contents == [raw]


@rule("GR-01")
@pytest.mark.parametrize(
    ("contents", "raw"),
    [
        ({"contents": {"fp32_contents": [1.0, 2.0]}}, [bytes(8)]),
        ({}, []),
        ({}, [bytes(7)]),
        ({"contents": {"fp32_contents": [1.0]}}, []),
        ({"contents": {"int_contents": [1, 2]}}, []),
    ],
)
def test_contents_that_do_not_fit_are_refused(stub, contents, raw):
    asked = request(**contents)
    asked.raw_input_contents.extend(raw)
    code, text = refused(lambda: stub.ModelInfer(asked))
    assert code is Code.INVALID_ARGUMENT
    assert text


@rule("GR-01", "PB-45")
@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_floats_are_raw_only(stub, datatype):
    number = TYPES.index(datatype)
    tensor = service_pb2.ModelInferRequest.InferInputTensor(
        name=f"INPUT{number}", datatype=datatype, shape=[1], contents={"fp32_contents": [1.0]}
    )
    asked = service_pb2.ModelInferRequest(model_name="types", inputs=[tensor])
    assert refused(lambda: stub.ModelInfer(asked))[0] is Code.INVALID_ARGUMENT


@rule("PB-31", "PB-33", "PB-34", "PB-35")
@pytest.mark.parametrize(
    ("model", "inputs", "asked", "status", "text"),
    [
        ("nobody", [], [], "NOT_FOUND", "Request for unknown model: 'nobody' is not found"),
        ("simple", [("INPUT0", ONES)], [], "INVALID_ARGUMENT", "expected 2 inputs but got 1"),
        ("echo", [("INPUT0", ONES)], [], "INVALID_ARGUMENT", "expects 'FP32'"),
        (
            "simple",
            [("INPUT0", ONES), ("INPUT1", ONES)],
            ["NOTHING"],
            "INVALID_ARGUMENT",
            "unexpected inference output 'NOTHING'",
        ),
        (
            "simple",
            [("INPUT0", ONES[:, :9]), ("INPUT1", ONES)],
            [],
            "INVALID_ARGUMENT",
            "unexpected shape for input 'INPUT0'",
        ),
    ],
)
def test_errors_have_codes_and_texts(grpc, model, inputs, asked, status, text):
    tensors = [given(tritonclient.grpc, name, values, "INT32") for name, values in inputs]
    outputs = [tritonclient.grpc.InferRequestedOutput(name) for name in asked] or None
    with pytest.raises(InferenceServerException) as caught:
        grpc.infer(model, tensors, outputs=outputs)
    assert caught.value.status() == f"StatusCode.{status}"
    assert text in caught.value.message()


@rule("PB-31")
def test_an_error_of_the_model_is_internal(grpc):
    tensor = given(tritonclient.grpc, "INPUT0", np.array([[FAULT]], np.float32), "FP32")
    with pytest.raises(InferenceServerException, match="scripted error") as caught:
        grpc.infer("echo", [tensor])
    assert caught.value.status() == "StatusCode.INTERNAL"


@rule("GR-04")
def test_a_single_call_on_a_decoupled_model(grpc):
    inputs = [
        given(tritonclient.grpc, name, np.array([1], np.int32), "INT32")
        for name in ("INPUT0", "COUNT")
    ]
    with pytest.raises(InferenceServerException, match="decoupled transaction policy") as caught:
        grpc.infer("repeat", inputs)
    assert caught.value.status() == "StatusCode.UNIMPLEMENTED"


@rule("CL-01", "CL-04", "CL-05")
def test_classes_over_grpc(grpc):
    tensor = given(tritonclient.grpc, "INPUT0", np.array([[1, 10, -3, 4]], np.float32), "FP32")
    asked = [tritonclient.grpc.InferRequestedOutput("OUTPUT0", class_count=2)]
    found = grpc.infer("scores", [tensor], outputs=asked).as_numpy("OUTPUT0")
    assert found.tolist() == [[b"10.000000:1:plum", b"4.000000:3"]]


@rule("PB-70")
@pytest.mark.parametrize("key", [815, "a word"])
def test_a_sequence_over_grpc(grpc, key):
    totals = []
    for turn, value in enumerate([5, 7, 11]):
        tensor = given(tritonclient.grpc, "INPUT0", np.array([[value]], np.int32), "INT32")
        result = grpc.infer(
            "total",
            [tensor],
            sequence_id=key,
            sequence_start=turn == 0,
            sequence_end=turn == 2,
        )
        totals.append(int(result.as_numpy("OUTPUT0")[0, 0]))
    assert totals == [5, 12, 23]


@rule("PB-47")
def test_custom_parameters_over_grpc(grpc, stub):
    tensor = given(tritonclient.grpc, "INPUT0", np.array([[1, 2]], np.float32), "FP32")
    parameters = {"mine": "text", "number": 1, "flag": True}
    result = grpc.infer("echo", [tensor], parameters=parameters, priority=1)
    assert result.as_numpy("OUTPUT0").tolist() == [[1.0, 2.0]]
    asked = request(contents={"fp32_contents": [1.0, 2.0]})
    asked.parameters["sequence_start"].string_param = "yes"
    assert refused(lambda: stub.ModelInfer(asked))[0] is Code.INVALID_ARGUMENT


@rule("GR-05")
def test_a_cancelled_call_is_not_executed(grpc):
    """Those before it run for a while, so that it waits."""

    def executed():
        (found,) = grpc.get_inference_statistics("slow").model_stats
        return found.inference_count

    tensor = given(tritonclient.grpc, "INPUT0", np.array([[1]], np.float32), "FP32")
    before, results = settled(executed), queue.Queue()

    def done(result, error):
        results.put((result, error))

    def call():
        found = grpc.async_infer("slow", [tensor], done)
        threading.Event().wait(0.1)  # time to arrive; a call that had none is cancelled on its way
        return found

    calls = [call() for _ in range(4)]
    calls[-1].cancel()
    outcomes = [results.get(timeout=20) for _ in calls]
    assert [str(error.status()) for _, error in outcomes if error] == ["StatusCode.CANCELLED"]
    grpc.infer("slow", [tensor])
    assert eventually(lambda: executed() >= before + 4 and executed(), "all others") == before + 4
