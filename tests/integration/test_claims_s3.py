"""The claim-check store on a real S3 server: what a folder promises holds there, too (FAULTS B95)."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import Iterator

import fsspec.config
import pytest
import s3_store
from claim_kit import HOUR_MS, claims
from headrace.schemas.claim_check import claim_for, name_in
from headrace.schemas.errors import InferError, Reason, Unavailable
from headrace.streams.claim_objects import FsspecObjects
from headrace.streams.claims import ClaimBounds, Claims, object_name
from service_kit import until

START_MS = 1_748_782_800_123


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3_store.S3Store]:
    """An S3 server for the tests of this file."""
    with s3_store.running(tmp_path_factory.mktemp("s3")) as store:
        yield store


@pytest.fixture
def url(server: s3_store.S3Store, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder of its own on the server, which fsspec's configuration names."""
    monkeypatch.setitem(fsspec.config.conf, "s3", s3_store.options(server.endpoint))
    return f"s3://{s3_store.BUCKET}/{uuid.uuid4().hex}"


async def refused(call) -> InferError:
    with pytest.raises(InferError) as error:
        await call
    return error.value


async def test_B95_what_is_put_comes_back_and_whatever_else_is_a_typed_error(url):
    store = FsspecObjects(url)
    kept = claims(store)
    value = os.urandom(3_000_000)
    claim = await kept.put(value)
    assert claim.url.startswith(f"{url}/")
    assert await kept.get(claim) == value
    name = name_in(url, claim.url)
    assert len(store.read(name, 10)) == 10
    store.write(name, value[:-1] + b"x")
    assert (await refused(kept.get(claim))).reason is Reason.CLAIM_MISMATCH
    store.write(name, value + b"x")
    assert (await refused(kept.get(claim))).reason is Reason.CLAIM_MISMATCH
    store.delete(name)
    assert (await refused(kept.get(claim))).reason is Reason.CLAIM_MISSING


async def test_B95_values_older_than_the_ttl_go_and_nothing_else(url):
    store = FsspecObjects(url)
    wall = [START_MS]
    kept = Claims(store, ClaimBounds(1000, ttl_s=3600.0), clock_ms=lambda: wall[0])
    assert await kept.clean() == (0, 0)
    old = await kept.put(b"old")
    wall[0] += HOUR_MS // 2
    young = await kept.put(b"young")
    store.write(f"{object_name(START_MS, '').partition('/')[0]}/mine", b"x")
    wall[0] = START_MS + HOUR_MS
    assert (await kept.clean(dry_run=True)).removed == 1
    assert await kept.clean() == (1, 1)
    assert (await refused(kept.get(old))).reason is Reason.CLAIM_MISSING
    assert await kept.get(young) == b"young"


async def test_a_wrong_secret_says_so_and_is_not_told(url, server, monkeypatch):
    wrong = s3_store.options(server.endpoint) | {"secret": "wrong"}
    monkeypatch.setitem(fsspec.config.conf, "s3", wrong)
    kept = claims(FsspecObjects(url), timeout_s=1.0)
    for call in (kept.put(b"abc"), kept.get(claim_for(f"{url}/a", b"abc"))):
        error = await refused(call)
        assert error.reason is Reason.CLAIM_UNREACHABLE
        assert "wrong" not in error.detail


async def test_a_server_that_hangs_is_given_up_in_time_and_serves_again(url, server):
    store = FsspecObjects(url)
    claim = await claims(store).put(b"abc")
    kept = claims(store, timeout_s=2.0, max_calls=1)
    loop = asyncio.get_running_loop()
    server.pause()
    try:
        begun = loop.time()
        with pytest.raises(Unavailable, match="does not answer: it takes longer than 2 s"):
            await kept.get(claim)
        assert loop.time() - begun < 10
    finally:
        server.resume()
    await until(lambda: "0 busy" in repr(kept))  # its thread has come back
    assert await claims(store).get(claim) == b"abc"


async def test_B95_the_command_cleans_a_store_that_the_environment_describes(url, server):
    """As the documentation says it: endpoint and credentials are in fsspec's variables."""
    FsspecObjects(url).write(object_name(START_MS, "0" * 32), b"x")
    described = {
        f"FSSPEC_S3_{name.upper()}": value
        for name, value in s3_store.options(server.endpoint).items()
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.deploy.cli", "claims", "cleanup"),
        *("--claim-check-url", url, "--claim-check-ttl-secs", "3600"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **described},
    )
    async with asyncio.timeout(60):
        printed, complained = await process.communicate()
    assert (process.returncode, complained.decode()) == (0, "")
    assert printed.decode().startswith("1 values removed")
