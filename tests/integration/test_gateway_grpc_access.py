"""Who may call over gRPC: restricted groups, bearer tokens, forwarded metadata (SEMANTICS PB-22, PB-48)."""

import hashlib

import grpc
import pytest
from gateway_kit import Worker, running
from grpc_kit import infer_request, refusal, serving_grpc
from headrace.schemas.codec import decode_request
from headrace.schemas.record import CONTENT_TYPE
from headrace.streams.access import GRPC, Access, Group, Tokens, read_restrictions
from headrace.streams.forwarding import Forwarding
from headrace.streams.grpc_health import SERVICE as HEALTH
from headrace.streams.memory import MemoryLog
from tritonclient.grpc import service_pb2 as pb

Code = grpc.StatusCode


@pytest.fixture
def log():
    return MemoryLog()


async def stream_status(stub, metadata=()):
    """Return how a stream with one request that no model takes ends."""
    stream = stub.ModelStreamInfer(metadata=(*metadata, ("triton_grpc_error", "true")))
    await stream.write(infer_request(model="nope"))
    return await stream.code()


async def test_PB22_a_restricted_group_wants_its_header_and_others_do_not(log):
    """Triton's code and text; the stream is asked as the call is."""
    access = Access(read_restrictions(["inference,trace:key=secret"], GRPC))
    async with running(Worker(log)), serving_grpc(log, access=access) as served:
        stub = served.stub
        for metadata in ((), (("triton-grpc-protocol-key", "wrong"),), (("key", "secret"),)):
            error = await refusal(stub.ModelInfer(infer_request(), metadata=metadata))
            assert error.code() is Code.UNAVAILABLE
            assert error.details() == (
                "This protocol is restricted, expecting header 'triton-grpc-protocol-key'"
            )
            assert await stream_status(stub, metadata) is Code.UNAVAILABLE
        right = (("triton-grpc-protocol-key", "secret"),)
        assert (await stub.ModelInfer(infer_request(), metadata=right)).model_name == "echo"
        assert await stream_status(stub, right) is Code.NOT_FOUND
        assert (
            await refusal(stub.TraceSetting(pb.TraceSettingRequest()))
        ).code() is Code.UNAVAILABLE
        assert (await stub.ServerLive(pb.ServerLiveRequest())).live
        assert (await stub.ServerMetadata(pb.ServerMetadataRequest())).name == "headrace"


async def test_a_bearer_token_is_wanted_by_all_but_health(log):
    tokens = Tokens([hashlib.sha256(b"t1").digest()])
    access = Access({}, lambda: tokens, free=(Group.HEALTH,))
    async with running(Worker(log)), serving_grpc(log, access=access) as served:
        stub = served.stub
        for metadata in ((), (("authorization", "Bearer t2"),), (("authorization", "t1"),)):
            error = await refusal(stub.ModelInfer(infer_request(), metadata=metadata))
            assert error.code() is Code.UNAUTHENTICATED
            assert await stream_status(stub, metadata) is Code.UNAUTHENTICATED
        right = (("authorization", "Bearer t1"),)
        assert (await stub.ModelInfer(infer_request(), metadata=right)).model_name == "echo"
        assert (await stub.ServerReady(pb.ServerReadyRequest())) is not None
        check = served.channel.unary_unary(f"/{HEALTH}/Check", None, None)
        assert await check(b"")


async def test_PB48_metadata_that_match_become_parameters(log):
    forwarding = Forwarding("^x-", option="", never=("x-secret",))
    async with (
        running(Worker(log)) as worker,
        serving_grpc(log, forwarding=forwarding) as served,
    ):
        metadata = (("x-who", "me"), ("y", "no"), ("x-secret", "no"))
        await served.stub.ModelInfer(infer_request(), metadata=metadata)
        stream = served.stub.ModelStreamInfer(metadata=metadata)
        await stream.write(infer_request())
        await stream.read()
        stream.cancel()
        for record in worker.seen:
            kind = dict(record.headers)[CONTENT_TYPE].decode()
            found = decode_request(record.value, kind, record.headers).parameters
            assert found == {"x-who": "me"}
        assert len(worker.seen) == 2
