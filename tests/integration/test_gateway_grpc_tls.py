"""gRPC over TLS, with and without a client's certificate, with Triton's own client."""

import asyncio

import grpc
import numpy as np
import pytest
import tritonclient.grpc as client_module
from certificates import authority, signed
from gateway_kit import Worker, running
from grpc_kit import serving_grpc
from headrace.schemas.errors import ConfigError
from headrace.streams.grpc_settings import GrpcTls, credentials
from headrace.streams.memory import MemoryLog
from tritonclient.utils import InferenceServerException


@pytest.fixture(scope="module")
def pems(tmp_path_factory):
    """Return a folder with the files of an authority, a server and a client that it has signed."""
    folder = tmp_path_factory.mktemp("pems")
    ca = authority(folder)
    for name in ("server", "client"):
        signed(folder, name, ca)
    authority(folder, "other")
    return folder


def infer(target, **how):
    """Infer over TLS with the synchronous client."""
    values = np.ones((1, 2), np.float32)
    tensor = client_module.InferInput("INPUT0", [1, 2], "FP32")
    tensor.set_data_from_numpy(values)
    with client_module.InferenceServerClient(target, ssl=True, **how) as client:
        return client.infer("echo", [tensor], client_timeout=10).as_numpy("OUTPUT0").tolist()


async def test_a_client_that_knows_the_servers_certificate_is_served(pems):
    log = MemoryLog()
    tls = GrpcTls(pems / "server.pem", pems / "server.key")
    async with running(Worker(log)), serving_grpc(log, tls=tls) as served:
        known = {"root_certificates": str(pems / "ca.pem")}
        assert await asyncio.to_thread(infer, served.target, **known) == [[1.0, 1.0]]
        with pytest.raises(InferenceServerException) as caught:
            await asyncio.to_thread(
                infer, served.target, root_certificates=str(pems / "other.pem")
            )
        assert caught.value.status() == str(grpc.StatusCode.UNAVAILABLE)


async def test_mutual_tls_wants_the_clients_certificate(pems):
    log = MemoryLog()
    tls = GrpcTls(pems / "server.pem", pems / "server.key", pems / "ca.pem", mutual=True)
    async with running(Worker(log)), serving_grpc(log, tls=tls) as served:
        known = {"root_certificates": str(pems / "ca.pem")}
        own = {
            "private_key": str(pems / "client.key"),
            "certificate_chain": str(pems / "client.pem"),
        }
        assert await asyncio.to_thread(infer, served.target, **known, **own) == [[1.0, 1.0]]
        with pytest.raises(InferenceServerException):
            await asyncio.to_thread(infer, served.target, **known)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"grpc-server-key = .*k\.pem: the file cannot be read"):
        credentials(GrpcTls(tmp_path / "c.pem", tmp_path / "k.pem"))
