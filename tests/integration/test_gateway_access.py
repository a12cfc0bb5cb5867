"""Who may call the gateway over HTTP: restricted groups, tokens, forwarded headers, TLS (SEMANTICS PB-22, PB-48)."""

import asyncio
import contextlib
import json
import logging
import ssl

import aiohttp
import numpy as np
import pytest
from certificates import authority, signed
from gateway_kit import Worker, running, serving
from headrace.schemas.codec import decode_request
from headrace.schemas.record import CONTENT_TYPE
from headrace.streams.access import HTTP, Access, Group, read_restrictions
from headrace.streams.forwarding import Forwarding
from headrace.streams.http_routes import Kind, resolve
from headrace.streams.memory import MemoryLog
from headrace.streams.reloaded import Reloaded
from headrace.streams.tls import ServerTls
from headrace.streams.token_file import read_tokens

BODY = {"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}
ROUTES = {
    Group.HEALTH: [
        ("GET", "/v2/health/live"),
        ("GET", "/v2/health/ready"),
        ("GET", "/v2/models/echo/ready"),
        ("GET", "/v2/models/echo/versions/1/ready"),
    ],
    Group.METADATA: [("GET", "/v2"), ("GET", "/v2/models/echo"), ("GET", "/v2/openapi.json")],
    Group.INFERENCE: [("POST", "/v2/models/echo/infer")],
    Group.MODEL_CONFIG: [("GET", "/v2/models/echo/config")],
    Group.MODEL_REPOSITORY: [
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/repository/models/echo/load"),
        ("POST", "/v2/repository/models/echo/unload"),
    ],
    Group.SHARED_MEMORY: [
        ("GET", "/v2/systemsharedmemory/status"),
        ("POST", "/v2/cudasharedmemory/region/r/register"),
    ],
    Group.STATISTICS: [("GET", "/v2/models/stats"), ("GET", "/v2/models/echo/stats")],
    Group.TRACE: [("GET", "/v2/trace/setting"), ("POST", "/v2/models/echo/trace/setting")],
    Group.LOGGING: [("GET", "/v2/logging"), ("POST", "/v2/logging")],
}


@pytest.fixture
def log():
    return MemoryLog()


async def ask(session, method, path, **headers):
    """Return status, body and headers of a call with headers (``_`` is a hyphen)."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    payload = json.dumps(BODY) if path.endswith("infer") else "{}" if method == "POST" else None
    async with session.request(method, path, data=payload, headers=named) as response:
        return response.status, await response.text(), response.headers


@pytest.mark.parametrize("group", Group)
async def test_PB22_a_restricted_group_asks_for_its_header_on_each_of_its_routes(log, group):
    access = Access(read_restrictions([f"{group}:X-Key=value"], HTTP))
    expected = {"error": "This API is restricted, expecting header 'X-Key'"}
    async with running(Worker(log)), serving(log, access=access) as (_, session):
        for own, routes in ROUTES.items():
            for method, path in routes:
                if resolve(path).kind is Kind.ABSENT:
                    continue  # 501 whoever asks
                status, text, _ = await ask(session, method, path)
                if own is group:
                    assert (status, json.loads(text)) == (403, expected), path
                    assert (await ask(session, method, path, X_Key="other"))[0] == 403, path
                    assert (await ask(session, method, path, x_key="value"))[0] != 403, path
                else:
                    assert status != 403, path


async def test_PB22_what_is_no_route_stays_404_and_a_wrong_verb_asks_for_the_header_first(log):
    access = Access(read_restrictions(["inference:X-Key=value"], HTTP))
    async with running(Worker(log)), serving(log, access=access) as (_, session):
        assert (await ask(session, "GET", "/v2/nothing"))[0] == 404
        assert (await ask(session, "GET", "/v2/models/echo/infer"))[0] == 403
        assert (await ask(session, "GET", "/v2/models/echo/infer", X_Key="value"))[0] == 405


async def test_a_call_without_a_token_is_401_and_says_which_scheme(log, tmp_path, caplog):
    path = tmp_path / "tokens"
    path.write_text("client-a: secret-token\n")
    access = Access({}, Reloaded((path,), lambda: read_tokens(path), what="tokens"))
    with caplog.at_level(logging.DEBUG):
        async with running(Worker(log)) as worker, serving(log, access=access) as (_, session):
            for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic x"}):
                status, text, found = await ask(
                    session, "POST", "/v2/models/echo/infer", **headers
                )
                assert status == 401
                assert "Authorization" in json.loads(text)["error"]
                assert found["WWW-Authenticate"] == 'Bearer realm="headrace"'
            assert worker.seen == []
            good = {"Authorization": "Bearer secret-token"}
            assert (await ask(session, "POST", "/v2/models/echo/infer", **good))[0] == 200
            assert (await ask(session, "GET", "/v2/health/live"))[0] == 401
            record = worker.seen[0]
            assert b"secret-token" not in record.value + repr(record.headers).encode()
    assert "secret-token" not in caplog.text


async def test_PB48_headers_become_parameters_of_the_record(log):
    forwarding = Forwarding("^x-tenant$|^sequence", option="--http-header-forward-pattern")
    async with running(Worker(log)) as worker, serving(log, forwarding=forwarding) as (_, session):
        path = "/v2/models/echo/infer"
        assert (await ask(session, "POST", path, X_TENANT="a", X_Other="b"))[0] == 200
        (record,) = worker.seen
        content_type = dict(record.headers)[CONTENT_TYPE].decode()
        request = decode_request(record.value, content_type, record.headers)
        assert request.parameters == {"X-TENANT": "a"}
        async with session.post(path, json=BODY, headers={"sequence_id": "5"}) as response:
            assert response.status == 400
            assert "'sequence_id' is reserved for Triton usage" in await response.text()
        assert len(worker.seen) == 1


# TLS.


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """An authority, a server and a client that it has signed, and a server that another one has."""
    folder = tmp_path_factory.mktemp("tls")
    ca, other = authority(folder), authority(folder, "other")
    return {
        "ca": ca,
        "server": signed(folder, "server", ca),
        "client": signed(folder, "client", ca),
        "stranger": signed(folder, "stranger", other),
    }


def url_of(session):
    return str(session._base_url).partition("://")[2].rstrip("/")


@pytest.mark.parametrize("mutual", [False, True])
async def test_tritons_client_infers_over_https(log, pairs, mutual):
    client_module = pytest.importorskip("tritonclient.http")
    server, ca, own = pairs["server"], pairs["ca"].cert, pairs["client"]
    tls = ServerTls(server.cert, server.key, ca if mutual else None)
    options = {"ca_certs": str(ca)}
    if mutual:
        options |= {"certfile": str(own.cert), "keyfile": str(own.key)}
    values = np.array([[1.5, -2.0]], np.float32)
    async with running(Worker(log)), serving(log, tls=tls) as (_, session):

        def work():
            how = {"ssl": True, "ssl_options": options}
            with client_module.InferenceServerClient(url_of(session), **how) as client:
                tensor = client_module.InferInput("INPUT0", [1, 2], "FP32")
                tensor.set_data_from_numpy(values)
                return client.infer("echo", [tensor]).as_numpy("OUTPUT0")

        np.testing.assert_array_equal(await asyncio.to_thread(work), values)


async def live(url, *, ca, own=None):
    """Ask for liveness over a connection of its own; returns the status."""
    context = ssl.create_default_context(cafile=ca)
    if own is not None:
        context.load_cert_chain(own.cert, own.key)
    connector = aiohttp.TCPConnector(ssl=context)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"https://{url}/v2/health/live") as response,
    ):
        return response.status


async def test_mutual_tls_refuses_whom_no_known_authority_has_signed(log, pairs):
    server, ca = pairs["server"], pairs["ca"].cert
    tls = ServerTls(server.cert, server.key, ca)
    async with serving(log, tls=tls) as (_, session):
        url = url_of(session)
        assert await live(url, ca=ca, own=pairs["client"]) == 200
        for own in (None, pairs["stranger"]):
            with pytest.raises(aiohttp.ClientError):
                await live(url, ca=ca, own=own)
        assert await live(url, ca=ca, own=pairs["client"]) == 200


async def test_a_renewed_certificate_holds_for_new_connections(log, pairs, tmp_path):
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def use(pair):
        cert.write_bytes(pair.cert.read_bytes())
        key.write_bytes(pair.key.read_bytes())

    use(pairs["server"])
    async with serving(log, tls=ServerTls(cert, key, look_every_s=0.0)) as (_, session):
        url = url_of(session)
        assert await live(url, ca=pairs["ca"].cert) == 200
        use(pairs["stranger"])
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await live(url, ca=pairs["ca"].cert)
        key.write_bytes(b"half a key")
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await live(url, ca=pairs["ca"].cert)
        use(pairs["server"])
        assert await live(url, ca=pairs["ca"].cert) == 200


async def test_a_caller_that_does_not_shake_hands_is_cut_off(log, pairs):
    """The bounds of a connection hold from its begin on: nobody keeps one by saying nothing."""
    server = pairs["server"]
    tls = ServerTls(server.cert, server.key)
    async with serving(log, tls=tls, header_timeout_s=0.2) as (_, session):
        host, _, port = url_of(session).rpartition(":")
        silent, first = await asyncio.open_connection(host, int(port))
        babbling, second = await asyncio.open_connection(host, int(port))
        second.write(b"\x16\x03\x01\x02\x00\x01")  # the begin of a hello
        async with asyncio.timeout(20):
            for reader in (silent, babbling):
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
        first.close()
        second.close()
        assert await live(url_of(session), ca=pairs["ca"].cert) == 200
