"""Tensors in real shared memory beside calls over HTTP, with Triton's own client and by hand (SEMANTICS PB-72)."""

import asyncio
import uuid
from pathlib import Path

import numpy as np
import pytest
from gateway_kit import Worker, echo, identity_config, running, serving, until
from headrace.streams.extensions import Extensions
from headrace.streams.memory import MemoryLog
from headrace.streams.shared_memory import SHM_FOLDER, SharedMemory

pytestmark = pytest.mark.skipif(not Path(SHM_FOLDER).is_dir(), reason=f"there is no {SHM_FOLDER}")

VALUES = np.array([[1.5, -2.0, 3.0, 4.0]], np.float32)
INFER = "/v2/models/echo/infer"
STATUS = "/v2/systemsharedmemory/status"


@pytest.fixture
def log():
    return MemoryLog()


@pytest.fixture
def extensions():
    made = Extensions(memory=SharedMemory(is_allowed=True))
    yield made
    made.memory.clear()


@pytest.fixture
def shared():
    """A shared memory object of 64 bytes with the values in front."""
    path = Path(SHM_FOLDER) / f"headrace-test-{uuid.uuid4().hex}"
    path.write_bytes(VALUES.tobytes().ljust(64, b"\0"))
    yield path
    path.unlink(missing_ok=True)


async def ask(session, method, path, payload=None):
    async with session.request(method, path, json=payload) as response:
        found = await response.json() if response.content_type == "application/json" else None
        return response.status, found


async def register(session, shared, name="r", offset=0, byte_size=64):
    place = {"key": f"/{shared.name}", "offset": offset, "byte_size": byte_size}
    return await ask(session, "POST", f"/v2/systemsharedmemory/region/{name}/register", place)


def place(region="r", byte_size=16, offset=0):
    found = {"shared_memory_region": region, "shared_memory_byte_size": byte_size}
    return found | ({"shared_memory_offset": offset} if offset else {})


def request(inputs=None, outputs=None, **more):
    tensor = {"name": "INPUT0", "shape": [1, 4], "datatype": "FP32", **more}
    body = {"inputs": [tensor | {"parameters": place() if inputs is None else inputs}]}
    if outputs is not None:
        body["outputs"] = [{"name": "OUTPUT0", "parameters": outputs}]
    return body


async def test_PB13_regions_are_registered_listed_and_unregistered(log, extensions, shared):
    async with serving(log, extensions=extensions) as (_, session):
        assert await ask(session, "GET", STATUS) == (200, [])
        assert (await register(session, shared, byte_size=32))[0] == 200
        shown = {"name": "r", "key": f"/{shared.name}", "offset": 0, "byte_size": 32}
        assert await ask(session, "GET", STATUS) == (200, [shown])
        one = "/v2/systemsharedmemory/region/r/status"
        assert await ask(session, "GET", one) == (200, [shown])
        status, found = await register(session, shared)
        assert status == 400
        assert "shared memory region 'r' already in manager" in found["error"]
        assert (await ask(session, "POST", "/v2/systemsharedmemory/region/x/unregister"))[0] == 200
        assert (await ask(session, "POST", "/v2/systemsharedmemory/unregister"))[0] == 200
        assert (await ask(session, "GET", one))[0] == 404
        assert "system_shared_memory" in (await ask(session, "GET", "/v2"))[1]["extensions"]


async def test_PB72_without_the_switch_it_is_a_501_that_names_it(log, shared):
    async with running(Worker(log)), serving(log) as (_, session):
        for status, found in (
            await register(session, shared),
            await ask(session, "POST", "/v2/systemsharedmemory/unregister"),
            await ask(session, "POST", INFER, request()),
            await ask(session, "POST", INFER, request({}, place(), data=[0.0] * 4)),
            await ask(session, "POST", "/v2/cudasharedmemory/region/r/register", {}),
        ):
            assert status == 501
            assert "--allow-client-shm=true" in found["error"]
        assert await ask(session, "GET", STATUS) == (200, [])


@pytest.mark.parametrize("path", ["status", "unregister", "region/r/register", "region/r/status"])
async def test_PB72_cuda_shared_memory_is_a_501_without_a_gpu(log, extensions, path):
    async with serving(log, extensions=extensions) as (_, session):
        method = "GET" if path.endswith("status") else "POST"
        status, found = await ask(session, method, f"/v2/cudasharedmemory/{path}", {})
        assert status == 501
        assert "GPU" in found["error"]


async def test_PB72_inputs_are_read_from_and_outputs_written_to_a_region(log, extensions, shared):
    """The answer then has name, datatype and shape of the output, and no data of it."""
    async with running(Worker(log)), serving(log, extensions=extensions) as (_, session):
        await register(session, shared)
        status, found = await ask(session, "POST", INFER, request())
        assert (status, found["outputs"][0]["data"]) == (200, VALUES[0].tolist())
        status, found = await ask(session, "POST", INFER, request(outputs=place(offset=32)))
        assert (status, found["outputs"]) == (
            200,
            [{"name": "OUTPUT0", "datatype": "FP32", "shape": [1, 4]}],
        )
        assert shared.read_bytes()[32:48] == VALUES.tobytes()


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (request(place("no")), 404, "Unable to find shared memory region: 'no'"),
        (request(outputs=place("no")), 404, "Unable to find shared memory region: 'no'"),
        (request(place(offset=64)), 400, "Invalid offset for shared memory region: 'r'"),
        (request(place(byte_size=2**63)), 400, "Use --http-max-input-size"),
        (request(place(byte_size=65)), 400, "Invalid offset + byte size"),
        (request(place(byte_size=8)), 400, "byte size mismatch for input 'INPUT0'"),
        (request(outputs=place(byte_size=15)), 500, "should be at least 16 bytes to hold"),
        (request(outputs=place() | {"binary_data": True}), 400, "and 'binary_data'"),
        (request(outputs=place() | {"classification": 1}), 400, "and 'classification'"),
        (request(data=[1.0] * 4), 400, "Input must set only one of the following fields"),
        (request(place() | {"binary_data_size": 0}), 400, "'binary_data_size'"),
        (request(place() | {"shared_memory_region": 7}), 500, "'shared_memory_region'"),
        (request(place() | {"shared_memory_offset": -1}), 500, "'shared_memory_offset'"),
        (request(place() | {"shared_memory_byte_size": 1.5}), 500, "'shared_memory_byte_size'"),
    ],
)
async def test_PB36_PB72_what_names_no_part_of_a_region_is_refused(
    log, extensions, shared, body, status, words
):
    """Before anything is produced, but for an output that turns out too large."""
    async with running(Worker(log)) as worker, serving(log, extensions=extensions) as (_, session):
        await register(session, shared)
        got, found = await ask(session, "POST", INFER, body)
        assert got == status
        assert words in found["error"]
        assert len(worker.seen) == (1 if "to hold" in words else 0)
        assert shared.read_bytes() == VALUES.tobytes().ljust(64, b"\0")
        assert (await ask(session, "POST", INFER, request()))[0] == 200


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"byte_size": 1}, 400, "has no 'key' field"),
        ({"key": "k"}, 400, "has no 'byte_size' field"),
        ({"key": 1, "byte_size": 1}, 500, "Unable to parse 'key'"),
        ({"key": "k", "byte_size": "1"}, 500, "Unable to parse 'byte_size'"),
        ({"key": "k", "byte_size": 1, "offset": -1}, 500, "Unable to parse 'offset'"),
        ({"key": "../../etc/passwd", "byte_size": 1}, 400, "invalid shm key"),
        ({"key": "k" * 5000, "byte_size": 1}, 400, "invalid shm key"),
        ({"key": "headrace-no-such-object", "byte_size": 1}, 400, "Unable to open shared memory"),
        ([], 500, "expected an object"),
    ],
)
async def test_PB13_a_register_body_that_says_no_place_is_refused(
    log, extensions, body, status, words
):
    async with serving(log, extensions=extensions) as (_, session):
        got, found = await ask(session, "POST", "/v2/systemsharedmemory/region/r/register", body)
        assert got == status
        assert words in found["error"]


async def test_a_region_that_is_unregistered_while_a_call_runs_still_gets_its_output(
    log, extensions, shared
):
    """SEMANTICS PB-72: the call holds it; the name is free at once."""
    go = asyncio.Event()
    worker = Worker(
        log, script=lambda request, record: echo(request, record) if go.is_set() else None
    )
    async with running(worker), serving(log, extensions=extensions) as (_, session):
        await register(session, shared)
        call = asyncio.create_task(ask(session, "POST", INFER, request(outputs=place(offset=16))))
        await until(lambda: worker.held)
        await ask(session, "POST", "/v2/systemsharedmemory/unregister")
        go.set()
        async with log.publisher() as publisher:
            await publisher.publish([worker._answer(worker.held[0])])
        assert (await call)[0] == 200
        assert shared.read_bytes()[16:32] == VALUES.tobytes()


@pytest.mark.parametrize("count", [1, 16])
async def test_PB72_tritons_client_passes_tensors_in_shared_memory(log, extensions, count):
    """Regions, inputs and outputs as its examples do it; the answer's data is in the region only."""
    pytest.importorskip("geventhttpclient", reason="needs the extra tritonclient[http]")
    http = pytest.importorskip("tritonclient.http")
    shm = pytest.importorskip("tritonclient.utils.shared_memory")
    key = f"/headrace-test-{uuid.uuid4().hex}"

    def work(url):
        handle = shm.create_shared_memory_region("r", key, 256)
        try:
            shm.set_shared_memory_region(handle, [VALUES])
            with http.InferenceServerClient(url) as client:
                client.register_system_shared_memory("r", key, 256)
                assert client.get_system_shared_memory_status()[0]["byte_size"] == 256
                tensor = http.InferInput("INPUT0", [1, 4], "FP32")
                tensor.set_shared_memory("r", 16)
                output = http.InferRequestedOutput("OUTPUT0")
                output.set_shared_memory("r", 16, offset=64)
                for _ in range(count):
                    result = client.infer("echo", [tensor], outputs=[output])
                    assert result.get_output("OUTPUT0")["shape"] == [1, 4]
                    found = shm.get_contents_as_numpy(handle, np.float32, [1, 4], offset=64)
                    np.testing.assert_array_equal(found, VALUES)
                with pytest.raises(http.InferenceServerException, match="already in manager"):
                    client.register_system_shared_memory("r", key, 256)
                client.unregister_system_shared_memory("r")
                assert client.get_system_shared_memory_status() == []
        finally:
            shm.destroy_shared_memory_region(handle)

    async with running(Worker(log)), serving(log, extensions=extensions) as (_, session):
        url = str(session._base_url).removeprefix("http://").rstrip("/")
        await asyncio.to_thread(work, url)


async def test_PB72_strings_in_shared_memory_have_their_length_prefixes(log, extensions, shared):
    """FAULTS B55: a prefix that is longer than the region is a 400 and no over-read."""
    content = b"\x01\0\0\0a\0\0\0\0"
    shared.write_bytes(content.ljust(64, b"\xff"))
    versions = {1: identity_config(datatype="TYPE_STRING")}
    async with (
        running(Worker(log, versions=versions)),
        serving(log, extensions=extensions) as (_, session),
    ):
        await register(session, shared)
        wanted = request(place(byte_size=9), shape=[1, 2], datatype="BYTES")
        status, found = await ask(session, "POST", INFER, wanted)
        assert (status, found["outputs"][0]["data"]) == (200, ["a", ""])
        wanted = request(place(byte_size=16), shape=[1, 3], datatype="BYTES")
        status, found = await ask(session, "POST", INFER, wanted)
        assert status == 400
