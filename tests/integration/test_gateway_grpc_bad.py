"""Requests over gRPC that are wrong, each in one way: Triton's codes and fragments (SEMANTICS PB-34, PB-35)."""

import asyncio
import resource

import grpc
import grpc.aio
import pytest
from gateway_kit import Worker, running
from grpc_kit import SERVICE, infer_request, refusal, serving_grpc
from headrace.streams.memory import MemoryLog
from tritonclient.grpc import service_pb2

Code = grpc.StatusCode


@pytest.fixture
def log():
    return MemoryLog()


def mixed(message):
    message.inputs[0].contents.fp32_contents.append(1.0)


def no_data(message):
    message.ClearField("raw_input_contents")


def short(message):
    message.raw_input_contents[0] = b"\0\0\0"


def two_raw(message):
    message.raw_input_contents.append(b"")


def wrong_field(message):
    message.ClearField("raw_input_contents")
    message.inputs[0].contents.int_contents.extend([1, 2])


def unknown_input(message):
    message.inputs[0].name = "INPUT9"


def no_such_type(message):
    message.inputs[0].datatype = "FP99"


def huge_shape(message):
    message.inputs[0].shape[:] = [1, 2**62]


def negative_shape(message):
    message.inputs[0].shape[:] = [1, -1]


def unknown_output(message):
    message.outputs.add(name="OUTPUT9")


def reserved(message):
    message.parameters["triton_x"].bool_param = True


def empty_parameter(message):
    message.parameters["x"].CopyFrom(service_pb2.InferParameter())


def wrong_sequence(message):
    message.parameters["sequence_id"].double_param = 1.0


def wrong_start(message):
    message.parameters["sequence_start"].int64_param = 1


def below_zero(message):
    message.parameters["priority"].int64_param = -1


def wrong_empty_final(message):
    message.parameters["triton_enable_empty_final_response"].string_param = "true"


def long_id(message):
    message.id = "x" * 9_000


def version_word(message):
    message.model_version = "one"


def version_negative(message):
    message.model_version = "-1"


BAD = {
    mixed: (Code.INVALID_ARGUMENT, "contents field must not be specified when using"),
    no_data: (Code.INVALID_ARGUMENT, "INPUT0"),
    short: (Code.INVALID_ARGUMENT, "input byte size mismatch for input"),
    two_raw: (Code.INVALID_ARGUMENT, "raw_input_contents"),
    wrong_field: (Code.INVALID_ARGUMENT, "int_contents"),
    unknown_input: (Code.INVALID_ARGUMENT, "unexpected inference input 'INPUT9'"),
    no_such_type: (Code.INVALID_ARGUMENT, "FP99"),
    huge_shape: (Code.INVALID_ARGUMENT, "elements"),
    negative_shape: (Code.INVALID_ARGUMENT, "unexpected shape for input 'INPUT0'"),
    unknown_output: (Code.INVALID_ARGUMENT, "unexpected inference output 'OUTPUT9'"),
    reserved: (Code.INVALID_ARGUMENT, "reserved"),
    empty_parameter: (Code.INVALID_ARGUMENT, "parameter 'x'"),
    wrong_sequence: (Code.INVALID_ARGUMENT, "sequence_id"),
    wrong_start: (Code.INVALID_ARGUMENT, "sequence_start"),
    below_zero: (Code.INVALID_ARGUMENT, "priority"),
    wrong_empty_final: (Code.INVALID_ARGUMENT, "triton_enable_empty_final_response"),
    long_id: (Code.INVALID_ARGUMENT, "the id has 9000 characters"),
    version_word: (Code.INVALID_ARGUMENT, "failed to get model version"),
    version_negative: (Code.INVALID_ARGUMENT, "version should be an integral value > 0"),
}


async def test_B53_PB34_PB35_bad_requests_never_enter_the_log(log):
    """Each with Triton's code and fragment, and the gateway is as well afterwards as before."""
    async with running(Worker(log)) as worker, serving_grpc(log) as served:
        for change, (code, fragment) in BAD.items():
            message = infer_request()
            change(message)
            error = await refusal(served.stub.ModelInfer(message))
            assert (change.__name__, error.code()) == (change.__name__, code)
            assert fragment in error.details(), change.__name__
        assert worker.seen == []
        assert (await served.stub.ModelInfer(infer_request())).id == ""
        assert served.gateway.open_calls == 0


@pytest.mark.parametrize(
    "value",
    [
        b"\xff",
        b"\x0a\xff\xff\xff\xff\x0f",
        b"\x0a\x05abc",
        b"\x00",
        b"\x2a\x02\x08",
        b"\x0a\x01\xff",
    ],
    ids=["tag", "huge length", "cut short", "field 0", "broken inside", "no UTF-8"],
)
async def test_bytes_that_are_no_message_are_invalid_in_every_method(log, value):
    async with running(Worker(log)), serving_grpc(log) as served:
        for method in ("ModelInfer", "ModelReady", "RepositoryIndex", "TraceSetting"):
            call = served.channel.unary_unary(f"{SERVICE}/{method}", None, None)
            error = await refusal(call(value))
            assert error.code() in (Code.INVALID_ARGUMENT, Code.UNIMPLEMENTED), (method, error)
        assert (await served.stub.ServerLive(service_pb2.ServerLiveRequest())).live


async def test_PB24_a_compressed_message_unfolds_to_no_more_than_is_taken(log):
    """30 MB of zeros in 30 kB; gRPC's core stops unfolding at the bound, and the gateway is as well as before."""
    async with running(Worker(log)), serving_grpc(log, max_input_bytes=2**20) as served:
        options = (("grpc.max_send_message_length", -1),)
        async with grpc.aio.insecure_channel(
            served.target, options=options, compression=grpc.Compression.Gzip
        ) as channel:
            call = channel.unary_unary(f"{SERVICE}/ModelInfer", None, None)
            assert (await refusal(call(bytes(30_000_000)))).code() is Code.RESOURCE_EXHAUSTED
        assert (await served.stub.ModelInfer(infer_request())).model_name == "echo"


async def test_connections_are_bounded(log):
    """A further one is closed; once one of the others has gone there is room again."""
    own = (("grpc.use_local_subchannel_pool", 1),)  # or channels share a connection
    live = service_pb2.ServerLiveRequest()

    def channel(target):
        return grpc.aio.insecure_channel(target, options=own)

    async with serving_grpc(log, max_connections=2) as served:
        assert (await served.stub.ServerLive(live)).live
        async with channel(served.target) as second, channel(served.target) as third:
            path = f"{SERVICE}/ServerLive"
            assert await second.unary_unary(path, None, None)(b"") == b"\x08\x01"
            error = await refusal(third.unary_unary(path, None, None)(b""))
            assert error.code() is Code.UNAVAILABLE
            await second.close()
            call = third.unary_unary(path, None, None)
            assert await call(b"", timeout=20, wait_for_ready=True) == b"\x08\x01"


@pytest.mark.parametrize("field", ["inputs", "outputs"])
async def test_PB34_PB35_more_tensors_than_the_model_has_are_refused_before_they_are_read(
    log, field
):
    """An empty one is two bytes of the message: of half a million none is made."""
    message = infer_request()
    tag = {"inputs": b"\x2a\x00", "outputs": b"\x32\x00"}[field]
    value = message.SerializeToString() + tag * 500_000
    async with running(Worker(log)) as worker, serving_grpc(log) as served:
        call = served.channel.unary_unary(f"{SERVICE}/ModelInfer", None, None)
        await refusal(call(value[:-2]))  # what the parser itself takes is not counted
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        error = await refusal(call(value))
        assert error.code() is Code.INVALID_ARGUMENT
        words = {
            "inputs": "input '' already exists in request",
            "outputs": "unexpected inference output ''",
        }
        assert words[field] in error.details()
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000
        assert worker.seen == []


async def test_a_connection_that_says_nothing_is_closed(log):
    async with serving_grpc(log, handshake_timeout_s=0.2) as served:
        host, _, port = served.target.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(20):
            while await reader.read(1_000):  # its own settings come, then the end
                pass
        writer.close()
        assert (await served.stub.ServerLive(service_pb2.ServerLiveRequest())).live
