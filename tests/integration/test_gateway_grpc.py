"""ModelInfer over gRPC, from the stub to the worker's record and back (SEMANTICS §2.10)."""

import asyncio

import grpc
import numpy as np
import pytest
from gateway_kit import (
    TOPOLOGY,
    Worker,
    echo,
    identity_config,
    reply,
    running,
    silent,
    until,
)
from grpc_kit import SERVICE, floats, infer_request, refusal, serving_grpc, set_parameter
from headrace.schemas.codec import decode_request
from headrace.schemas.errors import (
    BackendError,
    DeadlineExceeded,
    InvalidRequest,
    OutOfMemory,
    QueueFull,
    Reason,
)
from headrace.schemas.infer import InferResponse
from headrace.schemas.record import (
    CONTENT_TYPE,
    CORRELATION_ID,
    DEADLINE_MS,
    IDEMPOTENCY_KEY,
    PRIORITY,
    REPLAYED,
    SEQUENCE_END,
    SEQUENCE_ID,
    SEQUENCE_ID_TYPE,
    SEQUENCE_START,
    TIMEOUT_US,
    TRACEPARENT,
    TRACESTATE,
)
from headrace.streams.cancels import read_cancel
from headrace.streams.gateway import GatewaySettings
from headrace.streams.memory import MemoryLog
from tritonclient.grpc import service_pb2

Code = grpc.StatusCode


@pytest.fixture
def log():
    return MemoryLog()


def sent(record):
    return decode_request(
        record.value, dict(record.headers)[CONTENT_TYPE].decode(), record.headers
    )


async def test_GR01_a_raw_request_travels_to_the_worker_and_back(log):
    """R5: under the request's own id; version and model are the worker's."""
    async with running(Worker(log)) as worker, serving_grpc(log) as served:
        answer = await served.stub.ModelInfer(infer_request([1.5, -2.0], [0.0, 3.0], id="r1"))
        assert (answer.id, answer.model_name, answer.model_version) == ("r1", "echo", "1")
        (output,) = answer.outputs
        assert (output.name, output.datatype, list(output.shape)) == ("OUTPUT0", "FP32", [2, 2])
        assert floats(answer) == [1.5, -2.0, 0.0, 3.0]
        assert not output.HasField("contents")
        assert sent(worker.seen[0]).inputs[0].shape == (2, 2)


TYPED = [
    ("BOOL", "bool_contents", [True, False], np.bool_),
    ("INT8", "int_contents", [-128, 127], np.int8),
    ("INT16", "int_contents", [-(2**15), 2**15 - 1], np.int16),
    ("INT32", "int_contents", [-(2**31), 2**31 - 1], np.int32),
    ("INT64", "int64_contents", [-(2**63), 2**63 - 1], np.int64),
    ("UINT8", "uint_contents", [0, 255], np.uint8),
    ("UINT16", "uint_contents", [0, 2**16 - 1], np.uint16),
    ("UINT32", "uint_contents", [0, 2**32 - 1], np.uint32),
    ("UINT64", "uint64_contents", [0, 2**64 - 1], np.uint64),
    ("FP32", "fp32_contents", [1.5, float("inf")], np.float32),
    ("FP64", "fp64_contents", [1e300, -0.0], np.float64),
]


async def test_GR01_typed_contents_of_every_datatype_come_back_raw(log):
    """One model a datatype, on one gateway."""
    workers = [
        Worker(log, f"m_{name.lower()}", versions={1: of_type(name)}, worker=f"w_{name}")
        for name, *_ in TYPED
    ]
    async with serving_grpc(log) as served, asyncio.TaskGroup() as group:
        tasks = []
        for worker in workers:
            await log.ensure(TOPOLOGY.model_specs(worker.model))
            await worker.announce()
            tasks.append(group.create_task(worker.run()))
        await until(lambda: len(served.gateway.fleet.models()) == len(TYPED))
        for name, field, values, dtype in TYPED:
            message = service_pb2.ModelInferRequest(model_name=f"m_{name.lower()}")
            tensor = message.inputs.add(name="INPUT0", datatype=name, shape=[1, 2])
            getattr(tensor.contents, field).extend(values)
            answer = await served.stub.ModelInfer(message)
            found = np.frombuffer(answer.raw_output_contents[0], dtype)
            np.testing.assert_array_equal(found, np.array(values, dtype))
        for task in tasks:
            task.cancel()


def of_type(datatype):
    name = datatype.replace("BYTES", "STRING")
    return identity_config(f"m_{datatype.lower()}", f"TYPE_{name}")


async def test_GR01_B55_strings_come_both_ways():
    """B55: empty ones, zero bytes, a megabyte; typed, and raw with their lengths in front."""
    items = [b"", b"a", "é".encode(), b"\x00\xff", b"x" * 2**20]
    raw = b"".join(len(item).to_bytes(4, "little") + item for item in items)
    versions = {1: identity_config(datatype="TYPE_STRING")}
    settings = GatewaySettings(max_record_bytes=4 * 2**20)
    log = MemoryLog(max_record_bytes=4 * 2**20)
    async with running(Worker(log, versions=versions)), serving_grpc(log, settings) as served:
        for as_raw in (True, False):
            message = service_pb2.ModelInferRequest(model_name="echo")
            tensor = message.inputs.add(name="INPUT0", datatype="BYTES", shape=[1, len(items)])
            if as_raw:
                message.raw_input_contents.append(raw)
            else:
                tensor.contents.bytes_contents.extend(items)
            unlimited = {"grpc.max_receive_message_length": -1}
            async with grpc.aio.insecure_channel(
                served.target, options=tuple(unlimited.items())
            ) as channel:
                call = channel.unary_unary(
                    f"{SERVICE}/ModelInfer",
                    service_pb2.ModelInferRequest.SerializeToString,
                    service_pb2.ModelInferResponse.FromString,
                )
                answer = await call(message)
            assert answer.raw_output_contents[0] == raw


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
async def test_GR01_halves_are_raw_only(log, datatype):
    versions = {1: of_type(datatype)}
    worker = Worker(log, f"m_{datatype.lower()}", versions=versions)
    async with running(worker), serving_grpc(log) as served:
        message = service_pb2.ModelInferRequest(model_name=worker.model)
        tensor = message.inputs.add(name="INPUT0", datatype=datatype, shape=[1, 2])
        tensor.contents.fp32_contents.extend([1.0, 2.0])
        error = await refusal(served.stub.ModelInfer(message))
        assert (error.code(), "raw_input_contents" in error.details()) == (
            Code.INVALID_ARGUMENT,
            True,
        )
        tensor.ClearField("contents")
        message.raw_input_contents.append(b"\x00\x3c\x00\x40")
        answer = await served.stub.ModelInfer(message)
        assert answer.raw_output_contents[0] == b"\x00\x3c\x00\x40"


async def test_PB33_models_are_looked_up_before_the_request_is_read(log):
    async with running(Worker(log)), serving_grpc(log) as served:
        for fields, code, fragment in (
            ({"model": "nope"}, Code.NOT_FOUND, "Request for unknown model: 'nope' is not found"),
            ({"model_version": "7"}, Code.NOT_FOUND, "'echo' version 7 is not found"),
            ({"model_version": "0"}, Code.NOT_FOUND, "'echo' version 0 is not found"),
        ):
            message = infer_request(**fields)
            message.inputs[0].datatype = "FP99"
            error = await refusal(served.stub.ModelInfer(message))
            assert (error.code(), fragment in error.details()) == (code, True)
        assert (await served.stub.ModelInfer(infer_request(model_version="01"))).model_name


async def test_PB31_a_text_that_no_header_can_hold_is_shortened(log):
    """A status' text is a header: 100 kB in it would end the connection."""
    async with serving_grpc(log) as served:
        error = await refusal(served.stub.ModelInfer(infer_request(model="é\n" * 50_000)))
        assert error.code() is Code.NOT_FOUND
        assert error.details().startswith("Request for unknown model: 'é\né")
        assert error.details().endswith("…")


async def test_TC02_PB47_parameters_become_record_headers_and_values(log):
    """Custom ones of every type reach the worker, the standard ones as headers; priority also beyond int64."""
    async with running(Worker(log)) as worker, serving_grpc(log) as served:
        custom = {"text": "é", "flag": False, "number": -(2**63), "double": 0.5}
        message = infer_request(
            parameters={
                "sequence_id": 7,
                "sequence_start": True,
                "sequence_end": True,
                "timeout": 9,
                **custom,
            }
        )
        message.parameters["priority"].uint64_param = 2**64 - 1
        message.parameters["big"].uint64_param = 2**63 - 1
        await served.stub.ModelInfer(message)
        headers = dict(worker.seen[0].headers)
        assert headers[PRIORITY] == str(2**64 - 1).encode()
        assert headers[TIMEOUT_US] == b"9"
        assert (headers[SEQUENCE_ID], headers[SEQUENCE_ID_TYPE]) == (b"7", b"uint64")
        assert (headers[SEQUENCE_START], headers[SEQUENCE_END]) == (b"true", b"true")
        assert sent(worker.seen[0]).parameters == {**custom, "big": 2**63 - 1}
        text = infer_request()
        set_parameter(text.parameters["sequence_id"], "7")
        await served.stub.ModelInfer(text)
        headers = dict(worker.seen[1].headers)
        assert (headers[SEQUENCE_ID], headers[SEQUENCE_ID_TYPE]) == (b"7", b"string")


async def test_response_parameters_of_every_type_come_back(log):
    def told(request, record):
        answer = echo(request, record)
        parameters = {"b": True, "i": -5, "u": 2**40, "d": 0.25, "s": "é"}
        return InferResponse(answer.outputs, "", "echo", "1", parameters)

    async with running(Worker(log, script=told)), serving_grpc(log) as served:
        found = (await served.stub.ModelInfer(infer_request())).parameters
        assert (found["b"].bool_param, found["i"].int64_param) == (True, -5)
        assert (found["d"].double_param, found["s"].string_param) == (0.25, "é")
        assert found["u"].int64_param == 2**40


async def test_metadata_carries_trace_context_and_idempotency_key(log):
    async with running(Worker(log)) as worker, serving_grpc(log) as served:
        metadata = (
            ("traceparent", "00-1"),
            ("tracestate", "a=b"),
            ("idempotency-key", '"once"'),
        )
        await served.stub.ModelInfer(infer_request(), metadata=metadata)
        headers = dict(worker.seen[0].headers)
        assert (headers[TRACEPARENT], headers[TRACESTATE]) == (b"00-1", b"a=b")
        assert headers[IDEMPOTENCY_KEY]
        bad = (("idempotency-key", "x" * 10_000),)
        error = await refusal(served.stub.ModelInfer(infer_request(), metadata=bad))
        assert error.code() is not Code.INTERNAL


@pytest.mark.parametrize("is_replayed", [True, False])
async def test_P17_an_answer_that_repeats_an_earlier_one_says_so(log, is_replayed):
    """In its trailing metadata, whatever it is."""
    worker = Worker(log, script=silent)
    async with running(worker), serving_grpc(log) as served:
        call = served.stub.ModelInfer(infer_request(), metadata=(("idempotency-key", '"k"'),))
        await until(lambda: worker.held)
        (record,) = worker.held
        out = reply(record, InferResponse((), "", "echo", "1"))
        if is_replayed:
            out.headers = [*out.headers, (REPLAYED, b"true")]
        log.append([out])
        await call
        found = dict(await call.trailing_metadata()).get("idempotency-replayed")
        assert found == ("true" if is_replayed else None)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequest("no"), Code.INVALID_ARGUMENT),
        (QueueFull("no"), Code.UNAVAILABLE),
        (DeadlineExceeded("no"), Code.UNAVAILABLE),
        (DeadlineExceeded("no", reason=Reason.DEADLINE_PASSED), Code.DEADLINE_EXCEEDED),
        (BackendError("no"), Code.INTERNAL),
        (OutOfMemory("no"), Code.INTERNAL),
        (InvalidRequest("no", reason=Reason.SEQUENCE_LOST), Code.INVALID_ARGUMENT),
    ],
)
async def test_R4_PB31_a_workers_error_keeps_its_code_and_text(log, error, code):
    async with (
        running(Worker(log, script=lambda *_: error)),
        serving_grpc(log) as served,
    ):
        found = await refusal(served.stub.ModelInfer(infer_request()))
        assert (found.code(), found.details()) == (code, "no")


async def test_B63_B64_a_calls_deadline_is_carried_and_a_late_reply_dropped(log):
    """B64: the request is produced once, with its deadline, and a cancel record tells the worker."""
    worker = Worker(log, script=silent)
    async with running(worker), serving_grpc(log) as served:
        before = served.gateway.now_ms()
        call = asyncio.create_task(refusal(served.stub.ModelInfer(infer_request(), timeout=1)))
        await until(lambda: worker.held)
        assert (await call).code() is Code.DEADLINE_EXCEEDED
        await until(lambda: served.gateway.open_calls == 0)
        deadline = int(dict(worker.seen[0].headers)[DEADLINE_MS])
        assert before <= deadline <= before + 2_000
        assert len(worker.seen) == 1


async def test_a_call_without_a_deadline_ends_with_the_gateways(log):
    settings = GatewaySettings(timeout_ms=50)
    async with running(Worker(log, script=silent)), serving_grpc(log, settings) as served:
        error = await refusal(served.stub.ModelInfer(infer_request()))
        assert error.code() is Code.DEADLINE_EXCEEDED
        assert "deadline" in error.details()


async def test_GR05_B64_a_cancelled_call_becomes_a_cancel_record(log):
    worker = Worker(log, script=silent)
    async with running(worker), serving_grpc(log) as served:
        call = served.stub.ModelInfer(infer_request())
        await until(lambda: worker.held)
        call.cancel()
        await until(lambda: log.records(TOPOLOGY.cancels, 0))
        (record,) = log.records(TOPOLOGY.cancels, 0)
        cancel = read_cancel(record)
        assert cancel.model == "echo"
        assert cancel.correlation_id == dict(worker.held[0].headers)[CORRELATION_ID]
        assert (served.gateway.open_calls, served.gateway.abandoned) == (0, 1)


async def test_GR04_DC01_a_decoupled_model_is_unimplemented(log):
    versions = {1: identity_config(model_transaction_policy={"decoupled": True})}
    async with running(Worker(log, versions=versions)), serving_grpc(log) as served:
        error = await refusal(served.stub.ModelInfer(infer_request()))
        assert error.code() is Code.UNIMPLEMENTED
        assert "doesn't support models with decoupled transaction policy" in error.details()


async def test_open_calls_and_messages_are_bounded(log):
    settings = GatewaySettings(max_pending=1)
    async with (
        running(Worker(log, script=silent)) as worker,
        serving_grpc(log, settings, max_input_bytes=10_000) as served,
    ):
        open_call = served.stub.ModelInfer(infer_request())
        await until(lambda: worker.held)
        error = await refusal(served.stub.ModelInfer(infer_request()))
        assert (error.code(), "max_pending" in error.details()) == (Code.UNAVAILABLE, True)
        error = await refusal(served.stub.ModelInfer(infer_request([0.0] * 10_000)))
        assert error.code() is Code.RESOURCE_EXHAUSTED
        open_call.cancel()


async def test_a_message_that_is_read_off_the_loop_is_answered_as_any():
    """10 MB: above what is read, and what is copied, on the loop."""
    settings = GatewaySettings(max_record_bytes=64 * 2**20)
    log = MemoryLog(max_record_bytes=64 * 2**20)
    async with running(Worker(log)), serving_grpc(log, settings) as served:
        options = (("grpc.max_receive_message_length", -1),)
        async with grpc.aio.insecure_channel(served.target, options=options) as channel:
            call = channel.unary_unary(
                f"{SERVICE}/ModelInfer",
                service_pb2.ModelInferRequest.SerializeToString,
                service_pb2.ModelInferResponse.FromString,
            )
            answer = await call(infer_request([1.0] * 2_500_000))
        assert len(answer.raw_output_contents[0]) == 10_000_000


async def test_an_unknown_method_is_unimplemented(log):
    async with serving_grpc(log) as served:
        call = served.channel.unary_unary(f"{SERVICE}/Nope", None, None)
        assert (await refusal(call(b""))).code() is Code.UNIMPLEMENTED


async def test_requests_that_are_alike_are_each_their_own(log):
    """They are recognised by their bytes; ids, values, shapes and parameters are nevertheless those of each."""
    async with running(Worker(log)) as worker, serving_grpc(log) as served:
        for n in range(3):
            answer = await served.stub.ModelInfer(infer_request([float(n)], id=f"r{n}"))
            assert (answer.id, floats(answer)) == (f"r{n}", [float(n)])
        answer = await served.stub.ModelInfer(infer_request([1.0, 2.0], id="wide"))
        assert list(answer.outputs[0].shape) == [1, 2]
        await served.stub.ModelInfer(infer_request([3.0], parameters={"a": 1}))
        assert sent(worker.seen[-1]).parameters == {"a": 1}
        error = await refusal(served.stub.ModelInfer(infer_request([3.0], shape=[1, 2])))
        assert error.code() is Code.INVALID_ARGUMENT
        assert len(worker.seen) == 5
