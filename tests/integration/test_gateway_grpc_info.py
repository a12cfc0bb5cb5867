"""Health, metadata, configuration, index and control over gRPC; gRPC's own health and reflection services."""

import asyncio
import socket

import grpc
import grpc.aio
import pytest
from gateway_kit import Worker, identity_config, running, silent, until
from google.protobuf import descriptor_pb2
from grpc_kit import SERVICE, infer_request, refusal, serving_grpc
from headrace.schemas.errors import ConfigError
from headrace.streams.grpc_health import SERVICE as HEALTH
from headrace.streams.grpc_protocols import REFLECTION_PACKAGES, message_class
from headrace.streams.grpc_server import GrpcServer
from headrace.streams.grpc_settings import Compression, GrpcSettings
from headrace.streams.memory import MemoryLog
from headrace.streams.status import ModelState, VersionStatus
from tritonclient.grpc import model_config_pb2
from tritonclient.grpc import service_pb2 as pb

Code = grpc.StatusCode


@pytest.fixture
def log():
    return MemoryLog()


async def test_SV01_SV02_SV05_health(log):
    """SV-05: an unknown model is not ready, and no error: Triton's clients take it for False."""
    async with serving_grpc(log) as served:
        stub = served.stub
        assert (await stub.ServerLive(pb.ServerLiveRequest())).live
        assert not (await stub.ServerReady(pb.ServerReadyRequest())).ready
        async with running(Worker(log)):
            await until(served.gateway.is_ready)
            assert (await stub.ServerReady(pb.ServerReadyRequest())).ready
            for name, version, is_ready in (
                ("echo", "", True),
                ("echo", "1", True),
                ("echo", "2", False),
                ("nope", "", False),
                ("echo", "x", False),
            ):
                request = pb.ModelReadyRequest(name=name, version=version)
                assert (await stub.ModelReady(request)).ready is is_ready


async def test_SV01_a_server_that_stops_says_so(log):
    async with running(Worker(log)), serving_grpc(log) as served:
        await until(served.gateway.is_ready)
        served.gateway.leave()
        error = await refusal(served.stub.ServerReady(pb.ServerReadyRequest()))
        assert (error.code(), error.details()) == (Code.UNAVAILABLE, "Server exiting")
        assert (await served.stub.ServerLive(pb.ServerLiveRequest())).live
        assert (await served.stub.ModelInfer(infer_request())).model_name == "echo"


async def test_PB60_PB61_PB62_PB63_metadata_config_and_index(log):
    async with running(Worker(log)) as worker, serving_grpc(log) as served:
        await until(served.gateway.is_ready)
        await worker.announce(
            versions=(
                VersionStatus(1, ModelState.READY, config=identity_config()),
                VersionStatus(3, ModelState.UNAVAILABLE, "broken", config=identity_config()),
            )
        )
        await until(lambda: len(served.gateway.fleet.index(served.gateway.now_ms())) == 2)
        stub = served.stub
        about = await stub.ServerMetadata(pb.ServerMetadataRequest())
        assert about.name == "headrace"
        assert about.version
        assert "model_repository" in about.extensions
        model = await stub.ModelMetadata(pb.ModelMetadataRequest(name="echo"))
        assert (model.name, model.platform, list(model.versions)) == ("echo", "identity", ["1"])
        (tensor,) = model.inputs
        assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("INPUT0", "FP32", [-1, -1])
        assert model.outputs[0].name == "OUTPUT0"
        config = (await stub.ModelConfig(pb.ModelConfigRequest(name="echo", version="1"))).config
        assert (config.name, config.max_batch_size) == ("echo", 8)
        assert config.input[0].data_type == model_config_pb2.TYPE_FP32
        index = await stub.RepositoryIndex(pb.RepositoryIndexRequest())
        assert [(m.name, m.version, m.state, m.reason) for m in index.models] == [
            ("echo", "1", "READY", ""),
            ("echo", "3", "UNAVAILABLE", "broken"),
        ]
        ready = await stub.RepositoryIndex(pb.RepositoryIndexRequest(ready=True))
        assert [model.version for model in ready.models] == ["1"]


async def test_MC01_MR14_PB21_PB33_refusals(log):
    async with running(Worker(log)), serving_grpc(log) as served:
        stub = served.stub
        for call, code, fragment in (
            (stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="echo")),
             Code.UNAVAILABLE, "explicit model load / unload is not allowed"),
            (stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="echo")),
             Code.UNAVAILABLE, "explicit model load / unload is not allowed"),
            (stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="a/b")),
             Code.INVALID_ARGUMENT, "path traversal"),
            (stub.RepositoryIndex(pb.RepositoryIndexRequest(repository_name="r")),
             Code.UNIMPLEMENTED, "repository_name"),
            (stub.ModelMetadata(pb.ModelMetadataRequest(name="nope")),
             Code.NOT_FOUND, "'nope' is not found"),
            (stub.ModelConfig(pb.ModelConfigRequest(name="echo", version="2")),
             Code.NOT_FOUND, "version 2 is not found"),
            (stub.ModelConfig(pb.ModelConfigRequest(name="echo", version="-2")),
             Code.INVALID_ARGUMENT, "version"),
        ):  # fmt: skip
            error = await refusal(call)
            assert (error.code(), fragment in error.details()) == (code, True), error


async def test_grpc_health_tells_readiness_and_its_changes(log):
    request = message_class("grpc.health.v1.HealthCheckRequest")
    response = message_class("grpc.health.v1.HealthCheckResponse")
    codec = (request.SerializeToString, response.FromString)
    async with serving_grpc(log) as served:
        check = served.channel.unary_unary(f"/{HEALTH}/Check", *codec)
        watch = served.channel.unary_stream(f"/{HEALTH}/Watch", *codec)
        assert (await check(request())).status == response.NOT_SERVING
        watching = watch(request(service="inference.GRPCInferenceService"))
        async with asyncio.timeout(10):
            assert (await watching.read()).status == response.NOT_SERVING
            async with running(Worker(log)):
                assert (await watching.read()).status == response.SERVING
                assert (await check(request(service="any"))).status == response.SERVING
                served.gateway.leave()
                assert (await watching.read()).status == response.NOT_SERVING
                assert (await check(request())).status == response.NOT_SERVING


@pytest.mark.parametrize("package", REFLECTION_PACKAGES)
async def test_reflection_describes_every_service(log, package):
    """What a client without our files gets is enough to rebuild all of them."""
    request = message_class(f"{package}.ServerReflectionRequest")
    response = message_class(f"{package}.ServerReflectionResponse")
    async with serving_grpc(log) as served:
        call = served.channel.stream_stream(
            f"/{package}.ServerReflection/ServerReflectionInfo",
            request.SerializeToString,
            response.FromString,
        )
        stream = call()

        async def asked(**fields):
            await stream.write(request(**fields))
            return await stream.read()

        listed = await asked(list_services="")
        names = [service.name for service in listed.list_services_response.service]
        assert "inference.GRPCInferenceService" in names
        assert HEALTH in names
        for name in names:
            found = await asked(file_containing_symbol=name)
            files = {}
            for raw in found.file_descriptor_response.file_descriptor_proto:
                file = descriptor_pb2.FileDescriptorProto.FromString(raw)
                files[file.name] = file
            assert any(
                f"{file.package}.{service.name}" == name
                for file in files.values()
                for service in file.service
            )
            assert all(needed in files for file in files.values() for needed in file.dependency)
        by_name = await asked(file_by_filename="model_config.proto")
        assert len(by_name.file_descriptor_response.file_descriptor_proto) == 1
        assert (await asked(file_by_filename="nope")).error_response.error_code == 5
        assert (await asked()).error_response.error_code == 12
        stream.cancel()


async def test_a_taken_grpc_port_is_one_sentence(log):
    async with serving_grpc(log) as served:
        with pytest.raises(ConfigError, match=r"grpc-port = 127\.0\.0\.1:"):
            await GrpcServer(served.gateway, GrpcSettings(port=served.server.port)).__aenter__()


async def test_several_servers_share_a_port_where_all_say_so(log):
    async with (
        serving_grpc(log, reuse_port=True) as served,
        GrpcServer(
            served.gateway, GrpcSettings(port=served.server.port, reuse_port=True)
        ) as other,
    ):
        assert other.port == served.server.port


async def test_SV10_B68_open_calls_are_answered_before_the_socket_closes(log):
    """And those that are open when the budget is spent end with UNAVAILABLE."""
    async with (
        running(Worker(log, script=silent)) as worker,
        serving_grpc(log, drain_timeout_s=0.1) as served,
    ):
        call = asyncio.create_task(refusal(served.stub.ModelInfer(infer_request())))
        await until(lambda: worker.held)
        closing = asyncio.create_task(served.server.__aexit__(None, None, None))
        error = await call
        assert (error.code(), "Server is stopping" in error.details()) == (
            Code.UNAVAILABLE,
            True,
        )
        await closing
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", served.server.port)) != 0


class Relay:
    """Stands between a client and a server, and counts the bytes of the answers."""

    def __init__(self, port):
        self.port = port
        self.answered = 0
        self._taken = set()

    async def take(self, reader, writer):
        """Take a connection."""
        self._taken.add(asyncio.current_task())
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self.port)
        back = asyncio.create_task(self._copy(from_server, writer, is_answer=True))
        await self._copy(reader, to_server, is_answer=False)
        for end in (to_server, writer):
            end.close()
            await end.wait_closed()
        await back

    async def ended(self):
        """Wait until all connections are closed."""
        await asyncio.gather(*self._taken)

    async def _copy(self, reader, writer, *, is_answer):
        while data := await reader.read(65_536):
            self.answered += len(data) if is_answer else 0
            writer.write(data)


@pytest.mark.parametrize("level", list(Compression))
async def test_answers_are_compressed_as_configured(log, level):
    """40 kB of zeros: they come in full, or in a few bytes."""
    async with running(Worker(log)), serving_grpc(log, compression=level) as served:
        relay = Relay(served.server.port)
        async with await asyncio.start_server(relay.take, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                call = channel.unary_unary(f"{SERVICE}/ModelInfer", None, None)
                answer = await call(infer_request([0.0] * 10_000).SerializeToString())
            await relay.ended()
        assert len(answer) > 40_000
        if level is Compression.NONE:
            assert relay.answered > 40_000
        else:
            assert relay.answered < 10_000
