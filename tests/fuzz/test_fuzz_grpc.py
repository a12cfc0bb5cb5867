"""Bytes that are no request, over gRPC: never INTERNAL or UNKNOWN, never a hang, never a dead gateway.

A hundred cases of each kind in CI; ``make fuzz CASES=100000`` plays a third of so many of each.
"""

import asyncio
import os
import threading
from contextlib import AsyncExitStack

import grpc
import grpc.aio
import pytest
from gateway_kit import Worker, running
from grpc_kit import SERVICE, infer_request, serving_grpc
from headrace.streams.memory import MemoryLog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

GIVEN = int(os.environ.get("HEADRACE_FUZZ_CASES", "0"))
CASES = GIVEN // 3 or 100
CASE_S = 10.0
FINE = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.UNAVAILABLE,  # model control is refused so (MC-01)
}
FIELDS = st.integers(1, 20)
SIZES = st.integers(0, 2**64 - 1)


def varint(number):
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))


def field(number, kind, payload=b"", claimed=None):
    """Return a field of any wire type; its length may be another than its payload's."""
    head = varint(number << 3 | kind)
    if kind == 2:
        return head + varint(len(payload) if claimed is None else claimed) + payload
    return head + payload


LEAVES = st.one_of(
    st.builds(field, FIELDS, st.integers(0, 7), st.binary(max_size=12)),
    st.builds(field, FIELDS, st.just(2), st.binary(max_size=12), SIZES),
    st.builds(lambda n, v: field(n, 0, varint(v)), FIELDS, SIZES),
)
FREE = st.recursive(
    LEAVES,
    lambda inner: st.builds(
        lambda number, parts: field(number, 2, b"".join(parts)),
        FIELDS,
        st.lists(inner, max_size=4),
    ),
    max_leaves=12,
)


def deep(number, depth):
    """Return messages in messages."""
    value = b""
    for _ in range(depth):
        value = field(number, 2, value)
    return value


DEEP = st.builds(deep, st.sampled_from([5, 6, 1]), st.integers(1, 2_000))
TEXTS = st.text(max_size=20) | st.sampled_from(
    ["echo", "\x00\r\n\x7f", "1", "x" * 9_000, "-1", "\u2028"]
)
NUMBERS = st.integers(-(2**63), 2**63 - 1)


@st.composite
def nearly_right(draw):
    """Return a request in which some things are wrong, and perhaps its bytes too."""
    message = infer_request()
    message.id = draw(TEXTS)
    message.model_version = draw(st.sampled_from(["", "1", "2", "x", "9" * 30]))
    tensor = message.inputs[0]
    tensor.name = draw(st.sampled_from(["INPUT0", "INPUT1", ""]) | TEXTS)
    tensor.datatype = draw(st.sampled_from(["FP32", "BYTES", "FP16", "", "INT32"]) | TEXTS)
    tensor.shape[:] = draw(st.lists(NUMBERS | st.integers(-1, 3), max_size=70))
    if draw(st.booleans()):
        message.ClearField("raw_input_contents")
    if draw(st.booleans()):
        message.raw_input_contents.append(draw(st.binary(max_size=20)))
    if draw(st.booleans()):
        tensor.contents.fp32_contents.extend(draw(st.lists(st.floats(width=32), max_size=3)))
    for name in draw(st.lists(st.sampled_from(KEYS) | TEXTS, max_size=3)):
        parameter = message.parameters[name]
        kind = draw(
            st.sampled_from(
                ["bool_param", "int64_param", "string_param", "uint64_param", "double_param"]
            )
        )
        values = {
            "bool_param": st.booleans(),
            "int64_param": NUMBERS,
            "string_param": TEXTS,
            "uint64_param": SIZES,
            "double_param": st.floats(),
        }
        setattr(parameter, kind, draw(values[kind]))
    for name in draw(st.lists(st.sampled_from(["OUTPUT0", "OUTPUT1"]), max_size=3)):
        message.outputs.add(name=name)
    value = message.SerializeToString()
    cut = draw(st.integers(0, len(value)))
    how = draw(st.sampled_from(["whole", "cut", "flipped", "more"]))
    if how == "cut":
        return value[:cut]
    if how == "more":
        return value + draw(st.binary(max_size=8))
    if how == "flipped" and value:
        at = min(cut, len(value) - 1)
        return value[:at] + bytes([value[at] ^ draw(st.integers(1, 255))]) + value[at + 1 :]
    return value


KEYS = [
    "sequence_id",
    "sequence_start",
    "sequence_end",
    "priority",
    "timeout",
    "binary_data_output",
    "triton_enable_empty_final_response",
    "triton_final_response",
    "shared_memory_region",
    "classification",
]
METHODS = [
    method.name
    for method in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
]
UNARY = [name for name in METHODS if name != "ModelStreamInfer"]


@st.composite
def setting(draw):
    """Return a method that changes settings, and a request of it in which names are right and values may be."""
    method = draw(st.sampled_from(["LogSettings", "TraceSetting", "SystemSharedMemoryRegister"]))
    if method == "SystemSharedMemoryRegister":
        message = service_pb2.SystemSharedMemoryRegisterRequest(
            name=draw(TEXTS), key=draw(TEXTS), offset=draw(SIZES), byte_size=draw(SIZES)
        )
    elif method == "TraceSetting":
        message = service_pb2.TraceSettingRequest(model_name=draw(st.sampled_from(["", "echo"])))
        for name in draw(st.lists(st.sampled_from(TRACES), max_size=3)):
            values = st.sampled_from(["OFF", "TIMESTAMPS", "1", "-1", "9" * 30]) | TEXTS
            message.settings[name].value.extend(draw(st.lists(values, max_size=2)))
    else:
        message = service_pb2.LogSettingsRequest()
        for name in draw(st.lists(st.sampled_from(LOGS), max_size=3)):
            target = message.settings[name]
            match draw(st.integers(0, 3)):
                case 0:
                    target.bool_param = draw(st.booleans())
                case 1:
                    target.uint32_param = draw(st.integers(0, 2**32 - 1))
                case 2:
                    target.string_param = draw(TEXTS)
    return method, message.SerializeToString()


LOGS = ["log_file", "log_info", "log_error", "log_verbose_level", "log_format", "other"]
TRACES = ["trace_file", "trace_level", "trace_rate", "trace_count", "log_frequency", "other"]


class Loop:
    """An event loop in a thread of its own, for tests that are no coroutines."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture(scope="module")
def gateway():
    """One gateway for all cases; it must be well after each and at the end."""
    loop = Loop()
    stack = AsyncExitStack()

    async def start():
        log = MemoryLog()
        await stack.enter_async_context(running(Worker(log)))
        return await stack.enter_async_context(serving_grpc(log))

    served = loop.run(start())
    yield loop, served
    assert loop.run(asks_well(served)) == "still here"
    loop.run(stack.aclose())
    loop.close()


async def asks_well(served):
    return (await served.stub.ModelInfer(infer_request(id="still here"))).id


async def outcome(served, method, value):
    async with asyncio.timeout(CASE_S):
        try:
            await served.channel.unary_unary(f"{SERVICE}/{method}", None, None)(value)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details()
    return grpc.StatusCode.OK, ""


pytestmark = pytest.mark.timeout(120 + CASES)

cases = settings(
    max_examples=CASES,
    deadline=None,
    database=None,
    derandomize=not GIVEN,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@cases
@given(value=nearly_right() | FREE | DEEP | st.binary(max_size=64))
def test_ModelInfer_takes_any_bytes(gateway, value):
    loop, served = gateway
    code, text = loop.run(outcome(served, "ModelInfer", value))
    assert code in FINE, (code, text)
    assert served.gateway.open_calls == 0


@cases
@given(call=st.tuples(st.sampled_from(UNARY), FREE | DEEP | st.binary(max_size=64)) | setting())
def test_every_method_takes_any_bytes(gateway, call):
    loop, served = gateway
    method, value = call
    code, text = loop.run(outcome(served, method, value))
    assert code in FINE, (method, code, text)


@cases
@given(values=st.lists(nearly_right() | FREE | st.binary(max_size=64), min_size=1, max_size=5))
def test_ModelStreamInfer_answers_each_of_any_bytes_and_goes_on(gateway, values):
    loop, served = gateway

    async def talk():
        stream = served.channel.stream_stream(f"{SERVICE}/ModelStreamInfer", None, None)()
        async with asyncio.timeout(CASE_S):
            for value in values:
                await stream.write(value)
            await stream.write(infer_request(id="last").SerializeToString())
            await stream.done_writing()
            answers = [answer async for answer in stream]
            return answers, await stream.code()

    answers, code = loop.run(talk())
    assert code is grpc.StatusCode.OK
    assert len(answers) == len(values) + 1
    last = service_pb2.ModelStreamInferResponse.FromString(answers[-1])
    assert (last.error_message, last.infer_response.id) == ("", "last")
