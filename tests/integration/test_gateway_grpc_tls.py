"""gRPC over TLS, with and without a client's certificate, with Triton's own client."""

import asyncio
import shutil

import grpc
import numpy as np
import pytest
import tritonclient.grpc as client_module
from certificates import authority, signed
from gateway_kit import Worker, running
from grpc_kit import serving_grpc
from headrace.schemas.errors import ConfigError
from headrace.streams.grpc_tls import credentials
from headrace.streams.memory import MemoryLog
from headrace.streams.tls import ServerTls
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
    tls = ServerTls(pems / "server.pem", pems / "server.key")
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
    tls = ServerTls(pems / "server.pem", pems / "server.key", pems / "ca.pem")
    async with running(Worker(log)), serving_grpc(log, tls=tls) as served:
        known = {"root_certificates": str(pems / "ca.pem")}
        own = {
            "private_key": str(pems / "client.key"),
            "certificate_chain": str(pems / "client.pem"),
        }
        assert await asyncio.to_thread(infer, served.target, **known, **own) == [[1.0, 1.0]]
        with pytest.raises(InferenceServerException):
            await asyncio.to_thread(infer, served.target, **known)


async def test_a_renewed_certificate_holds_for_new_connections(pems, tmp_path):
    """Signed by another authority, so that clients can tell the two apart."""
    log = MemoryLog()
    pair = [tmp_path / "cert.pem", tmp_path / "cert.key"]
    for path, old in zip(pair, (pems / "server.pem", pems / "server.key"), strict=True):
        shutil.copy(old, path)
    tls = ServerTls(*pair, look_every_s=0.0)
    async with running(Worker(log)), serving_grpc(log, tls=tls) as served:
        known = {"root_certificates": str(pems / "ca.pem")}
        assert await asyncio.to_thread(infer, served.target, **known) == [[1.0, 1.0]]
        renewed = signed(tmp_path, "renewed", authority(tmp_path, "new"))
        for path, new in zip(pair, renewed, strict=True):
            shutil.copy(new, path)
        with pytest.raises(InferenceServerException):
            await asyncio.to_thread(infer, served.target, **known)
        known = {"root_certificates": str(tmp_path / "new.pem")}
        assert await asyncio.to_thread(infer, served.target, **known) == [[1.0, 1.0]]


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"k\.pem.*expected a certificate and its key in PEM"):
        credentials(ServerTls(tmp_path / "c.pem", tmp_path / "k.pem"))
