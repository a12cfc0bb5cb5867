"""The client of a Schema Registry on a real one, and behind a server that does what goes wrong (FAULTS B34)."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterator
from contextlib import asynccontextmanager

import brokers
import certificates
import pytest
from aiohttp import web
from headrace.schemas.avro_records import FramedAvro, PlainAvro
from headrace.schemas.errors import ConfigError, LogError, UndecodableRecord
from headrace.schemas.framing import framed
from headrace.streams.registry_settings import RegistrySettings, registry_settings
from headrace.streams.schema_registry import SchemaRegistry
from registry_kit import Registry, front, running
from service_kit import until
from tcp_proxy import TcpProxy

V1 = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
V2 = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"b","type":"int","default":7}]}'
BROKEN = V1.replace('"int"', '"string"')
ABSENT = 999_999


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry for the tests of this file."""
    with running(tmp_path_factory.mktemp("registry")) as found:
        yield found


def client(*urls: str, **more) -> SchemaRegistry:
    """Return a client that does not wait long."""
    return SchemaRegistry(RegistrySettings(urls, wait_s=0.02, max_wait_s=0.05, **more))


async def failed(awaitable) -> LogError:
    with pytest.raises(LogError) as error:
        await awaitable
    return error.value


async def test_B34_what_a_producer_registers_is_read_with_both_schemas(registry, unique):
    subject = f"{unique('orders')}-value"
    old, new = registry.register(subject, V1), registry.register(subject, V2)
    async with client(registry.url) as schemas:
        orders = FramedAvro(V2)
        values = [framed(old) + b"\x02", framed(new) + b"\x02\x04", framed(ABSENT)]
        for schema_id in orders.missing(values):
            orders.learn(schema_id, await schemas.fetch(schema_id))
        assert [orders.read(value) for value in values[:2]] == [{"a": 1, "b": 7}, {"a": 1, "b": 2}]
        with pytest.raises(UndecodableRecord, match=f"schema {ABSENT}, and the registry has none"):
            orders.read(values[2])


async def test_a_schema_is_asked_for_once_however_many_want_it(registry, unique):
    schema_id = registry.register(unique("once"), V1)
    async with front(registry.url) as before, client(before.url) as schemas:
        found = await asyncio.gather(*(schemas.fetch(schema_id) for _ in range(50)))
        assert set(map(str, found)) == {str(found[0])}
        assert json.loads(found[0]) == json.loads(V1)
        await schemas.fetch(schema_id)
        assert before.asked == [f"GET /schemas/ids/{schema_id}"]


async def test_one_that_stops_waiting_leaves_the_others_their_answer(registry, unique):
    schema_id = registry.register(unique("shared"), V1)
    flowing = asyncio.Event()

    async def held(_request):
        await flowing.wait()

    async with front(registry.url) as before, client(before.url) as schemas:
        before.script = held
        first, second = (asyncio.create_task(schemas.fetch(schema_id)) for _ in range(2))
        await until(lambda: before.asked)
        first.cancel()
        await asyncio.wait([first])
        flowing.set()
        assert await second is not None
        assert len(before.asked) == 1


async def test_only_so_many_schemas_are_remembered(registry, unique):
    ids = [
        registry.register(unique("bounded"), V1.replace('"R"', f'"R{number}"'))
        for number in range(3)
    ]
    async with front(registry.url) as before, client(before.url, max_schemas=2) as schemas:
        for schema_id in (*ids, ids[2], ids[1]):
            await schemas.fetch(schema_id)
        assert len(before.asked) == 3
        await schemas.fetch(ids[0])
        assert len(before.asked) == 4


async def test_registering_again_returns_the_same_id_and_costs_nothing(registry, unique):
    subject = f"{unique('results')}/with slash-value"
    async with front(registry.url) as before, client(before.url) as schemas:
        first = await schemas.register(subject, V1)
        assert await schemas.register(subject, V1) == first
        assert len(before.asked) == 1
        assert await schemas.fetch(await schemas.register(subject, V2)) is not None


async def test_B34_an_incompatible_schema_says_what_the_registry_said(registry, unique):
    subject = f"{unique('strict')}-value"
    async with client(registry.url) as schemas:
        await schemas.register(subject, V1)
        with pytest.raises(
            ConfigError, match="not compatible with those that subject 'strict"
        ) as no:
            await schemas.register(subject, BROKEN)
        assert "Incompatible" in str(no.value), "the registry's own words"
        with pytest.raises(ConfigError, match="takes the schema for none"):
            await schemas.register(subject, "{")


async def test_where_schemas_are_not_registered_they_must_be_there(registry, unique):
    subject = f"{unique('given')}-value"
    async with client(registry.url, registers=False) as schemas:
        with pytest.raises(
            ConfigError, match=r"auto\.register\.schemas is false: register it first"
        ):
            await schemas.register(subject, V1)
        there = registry.register(subject, V1)
        assert await schemas.register(subject, V1) == there
        with pytest.raises(ConfigError, match=r"auto\.register\.schemas is false"):
            await schemas.register(subject, V2)


async def test_schemas_that_refer_to_others_come_whole(registry, unique):
    money, line = unique("money"), unique("line")
    registry.register(
        money,
        '{"type":"record","name":"Money","namespace":"shop","fields":[{"name":"n","type":"int"}]}',
    )
    to_money = {"name": "shop.Money", "subject": money, "version": 1}
    fields = '[{"name":"price","type":"shop.Money"},{"name":"tax","type":"shop.Money"}]'
    registry.register(
        line,
        f'{{"type":"record","name":"Line","namespace":"shop","fields":{fields}}}',
        references=[to_money],
    )
    to_line = {"name": "shop.Line", "subject": line, "version": 1}
    order = registry.register(
        unique("order"),
        '{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"line","type":"shop.Line"}]}',
        references=[to_line],
    )
    async with client(registry.url) as schemas:
        text = await schemas.fetch(order)
        assert PlainAvro(text).read(b"\x02\x04") == {"line": {"price": {"n": 1}, "tax": {"n": 2}}}


async def test_B34_an_outage_is_told_as_such_and_what_is_known_is_served(registry, unique):
    """Never as a schema that is not there: the record would be given up for ever."""
    known = registry.register(unique("known"), V1)
    late = registry.register(unique("late"), V2)
    async with TcpProxy(brokers.free_port(), registry.port) as cable:
        url = registry.url.replace(str(registry.port), str(cable.port))
        async with client(url, timeout_s=0.2) as schemas:
            assert await schemas.fetch(known)
            cable.cut()
            for fault in ("refused", "silent"):
                error = await failed(schemas.fetch(late))
                assert error.retriable, fault
                assert f"Schema Registry at {url} does not answer" in error.detail
                assert await schemas.fetch(known)
                await cable.heal()
                cable.silence()
            await cable.heal()
            assert await schemas.fetch(late)
            assert (await failed(client_in_silence(cable, url, unique("result")))).retriable


async def client_in_silence(cable: TcpProxy, url: str, subject: str) -> int:
    cable.silence()
    async with client(url, timeout_s=0.1, max_retries=1) as schemas:
        return await schemas.register(subject, V1)


@pytest.mark.parametrize(
    ("status", "body", "is_retriable", "asked"),
    [
        (500, {"error_code": 50001, "message": "store"}, True, 4),
        (503, None, True, 4),
        (429, None, True, 4),
        (401, {"error_code": 40101, "message": "Unauthorized"}, False, 1),
        (403, None, False, 1),
        (404, None, False, 1),  # a wrong path, whatever stands there
        (404, {"error_code": 404, "message": "HTTP 404 Not Found"}, False, 1),
        (301, None, False, 1),
        (200, None, False, 1),  # somebody's page
        (200, {"schema": 5}, False, 1),
        (200, {"schema": "x" * 5000}, False, 1),
    ],
)
async def test_B34_only_the_registrys_own_word_makes_a_schema_unknown(
    status, body, is_retriable, asked
):
    async def script(_request):
        text = "<html>" if body is None else json.dumps(body)
        return web.Response(status=status, text=text)

    async with front() as before, client(before.url, max_bytes=4000) as schemas:
        before.script = script
        error = await failed(schemas.fetch(5))
        assert (error.retriable, len(before.asked)) == (is_retriable, asked), error.detail


async def test_B34_a_schema_is_believed_to_be_absent_when_that_was_said_twice(registry, unique):
    """A registry's follower may not know yet what a producer registered at its leader a moment ago."""
    late = registry.register(unique("follower"), V1)
    missing = web.json_response({"error_code": 40403, "message": "Schema not found"}, status=404)

    async def behind(_request):
        return missing if len(before.asked) == 1 else None

    async with front(registry.url) as before, client(before.url) as schemas:
        before.script = behind
        assert await schemas.fetch(late) is not None
        assert await schemas.fetch(ABSENT) is None
        assert len(before.asked) == 4
        assert await schemas.fetch(ABSENT) is None
        assert len(before.asked) == 4, "remembered for a while"


async def test_urls_are_asked_in_turn(registry, unique):
    schema_id = registry.register(unique("second"), V1)
    nobody = f"http://127.0.0.1:{brokers.free_port()}"
    async with client(nobody, registry.url) as schemas:
        assert await schemas.fetch(schema_id)
        assert await schemas.register(unique("second"), V1) == schema_id


@asynccontextmanager
async def guarded(registry_url: str, folder, expected: str):
    """Run a server with TLS before a registry that asks for who we are; yields it and its authority."""
    ca = certificates.authority(folder)
    server = certificates.signed(folder, "registry", ca)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.cert, server.key)
    context.load_verify_locations(ca.cert)
    context.verify_mode = ssl.CERT_REQUIRED

    async def script(request):
        if request.headers.get("Authorization") != expected:
            return web.json_response({"error_code": 40101, "message": "Unauthorized"}, status=401)
        return None

    async with front(registry_url, tls=context) as before:
        before.script = script
        yield before, ca


async def test_tls_and_a_password_by_confluents_names(registry, unique, tmp_path):
    schema_id = registry.register(unique("secret"), V1)
    async with guarded(registry.url, tmp_path, "Basic YWxpY2U6czNjcmV0OjE=") as (before, ca):
        ours = certificates.signed(tmp_path, "alice", ca)
        properties = {
            "url": before.url,
            "basic.auth.credentials.source": "USER_INFO",
            "basic.auth.user.info": "alice:s3cret:1",
            "ssl.truststore.location": str(ca.cert),
            "ssl.truststore.type": "PEM",
            "ssl.certificate.location": str(ours.cert),
            "ssl.key.location": str(ours.key),
            "max.retries": "0",
        }
        async with SchemaRegistry(registry_settings(properties)) as schemas:
            assert await schemas.fetch(schema_id)
        wrong = {**properties, "basic.auth.user.info": "alice:guess"}
        async with SchemaRegistry(registry_settings(wrong)) as schemas:
            error = await failed(schemas.fetch(schema_id))
            assert not error.retriable
            assert "refuses us (401): Unauthorized; see basic.auth.user.info" in error.detail
            assert "guess" not in f"{error.detail} {schemas!r} {schemas.settings!r}"
        for lacking in ("ssl.certificate.location", "ssl.truststore.location"):
            parts = {name: value for name, value in properties.items() if name != lacking}
            async with SchemaRegistry(registry_settings(parts)) as schemas:
                assert (await failed(schemas.fetch(schema_id))).retriable
