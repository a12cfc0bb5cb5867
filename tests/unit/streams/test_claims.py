"""The claim-check store: what goes in comes out verified, everything is bounded, old values go (FAULTS B95)."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest
from claim_kit import HOUR_MS, KINDS, FaultyObjects, claims, objects, unreachable
from headrace.schemas.claim_check import claim_for, name_in, write_claim
from headrace.schemas.errors import (
    ConfigError,
    InferError,
    Reason,
    TooLarge,
    Unavailable,
)
from headrace.streams.claim_objects import FsspecObjects, store_url
from headrace.streams.claims import (
    MAX_FAILURES,
    ClaimBounds,
    Claims,
    default_above,
    object_name,
)
from service_kit import until
from service_parts import PlainRecord

START_MS = 1_748_782_800_123  # 2025-06-01T13:00:00.123Z


class Wall:
    """A wall clock that is moved by hand."""

    def __init__(self) -> None:
        self.ms = START_MS

    def __call__(self) -> int:
        return self.ms


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FsspecObjects:
    return objects(request.param, tmp_path)


async def refused(call) -> InferError:
    with pytest.raises(InferError) as error:
        await call
    return error.value


async def test_B95_what_is_put_comes_back_and_is_verified(store):
    kept = claims(store)
    value = os.urandom(100_000)
    claim = await kept.put(value)
    assert claim == claim_for(claim.url, value)
    assert await kept.get(claim) == value
    header = ("claim-check", write_claim(claim))
    assert await kept.value_of(PlainRecord(value=b"", headers=(header,))) == value
    assert await kept.value_of(PlainRecord(value=b"its own")) == b"its own"


async def test_each_value_has_a_name_of_its_own_even_if_equal(store):
    kept = claims(store)
    one, two = await kept.put(b"same"), await kept.put(b"same")
    assert one.url != two.url


async def test_B95_a_missing_object_is_a_typed_error(store):
    kept = claims(store)
    claim = await kept.put(b"abc")
    assert store.delete(name_in(store.url, claim.url))
    error = await refused(kept.get(claim))
    assert (error.reason, error.retriable) == (Reason.CLAIM_MISSING, False)
    assert claim.url in error.detail
    never = claim._replace(url=f"{store.url}/never/there")
    assert (await refused(kept.get(never))).reason is Reason.CLAIM_MISSING


@pytest.mark.parametrize("other", [b"abd", b"ab", b"abcd", b"x" * 100_000])
async def test_B95_another_value_than_was_claimed_is_a_typed_error(store, other):
    kept = claims(store)
    claim = await kept.put(b"abc")
    store.write(name_in(store.url, claim.url), other)
    error = await refused(kept.get(claim))
    assert (error.reason, error.retriable) == (Reason.CLAIM_MISMATCH, False)


async def test_what_is_read_is_bounded_by_what_was_claimed(store):
    """An object that was replaced by a huge one costs no more memory than the claim says."""
    name = object_name(START_MS, "0" * 32)
    store.write(name, b"x" * 1_000_000)
    assert len(store.read(name, 10)) == 10


async def test_a_value_above_the_limit_is_neither_stored_nor_fetched(tmp_path):
    store = FaultyObjects(objects("file", tmp_path))
    kept = claims(store, max_bytes=10)
    with pytest.raises(TooLarge, match=r"11 bytes, expected at most 10 \(--claim-check-max-bytes"):
        await kept.put(b"x" * 11)
    with pytest.raises(TooLarge):
        await kept.get(claim_for(f"{store.url}/a", b"x" * 11))
    assert store.calls == []


async def test_no_other_host_or_file_is_asked(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"abc")
    store = FaultyObjects(objects("file", tmp_path))
    kept = claims(store)
    for url in (f"file://{secret}", f"{store.url}/../secret", "http://127.0.0.1:1/a"):
        error = await refused(kept.get(claim_for(url, b"abc")))
        assert error.reason is Reason.CLAIM_REFUSED
    assert store.calls == []


async def test_no_link_leads_out_of_a_folder(tmp_path):
    """Somebody may write into the folder, and need not be able to read all that a worker can."""
    store = objects("file", tmp_path)
    (tmp_path / "secret").write_bytes(b"abc")
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "claims" / "folder").symlink_to(tmp_path)
    kept = claims(store)
    for name in ("link", "folder/secret"):
        error = await refused(kept.get(claim_for(f"{store.url}/{name}", b"abc")))
        assert error.reason is Reason.CLAIM_REFUSED
        assert str(tmp_path / "secret") not in error.detail


async def test_a_store_that_comes_back_is_asked_again(tmp_path):
    """Twice refused, then there: nobody notices."""
    fails = iter([True, True, True, False, True, False])

    def script(_what: str) -> None:
        if next(fails):
            unreachable("")

    kept = claims(FaultyObjects(objects("file", tmp_path), script))
    claim = await kept.put(b"abc")
    assert await kept.get(claim) == b"abc"


async def test_a_store_that_stays_away_is_a_retriable_error_in_bounded_time(tmp_path):
    store = FaultyObjects(objects("file", tmp_path), unreachable)
    kept = claims(store, timeout_s=0.5)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    with pytest.raises(Unavailable, match="connection refused") as error:
        await kept.put(b"abc")
    assert (error.value.reason, error.value.retriable) == (Reason.CLAIM_UNREACHABLE, True)
    assert loop.time() - begun < 5
    assert len(store.calls) == 3  # at once, after 0.1 s and after 0.2 s more


async def test_foreign_errors_are_translated(tmp_path):
    """A folder that cannot be written: the error names the store, and what the file system said."""
    (tmp_path / "claims").write_bytes(b"a file")
    kept = claims(objects("file", tmp_path), timeout_s=0.01)
    with pytest.raises(Unavailable, match=r"cannot be stored \(\w+: ") as error:
        await kept.put(b"abc")
    assert error.value.__cause__ is not None


async def test_a_store_that_hangs_costs_its_threads_and_no_more(tmp_path):
    """Both threads hang; what waits fails with them, later calls at once, and when they return all is well."""
    gate = threading.Event()
    store = FaultyObjects(objects("memory", tmp_path), lambda _: gate.wait(30))
    kept = claims(store, max_calls=2, timeout_s=0.2)
    answers = await asyncio.gather(*(kept.put(b"abc") for _ in range(5)), return_exceptions=True)
    assert all(isinstance(answer, Unavailable) for answer in answers)
    assert {answer.reason for answer in answers} == {Reason.CLAIM_UNREACHABLE}
    loop = asyncio.get_running_loop()
    begun = loop.time()
    assert "all 2 calls" in (await refused(kept.put(b"abc"))).detail
    assert loop.time() - begun < 0.1
    assert len(store.calls) == store.most == 2
    assert "2 busy, 2 of them overdue, 0 waiting" in repr(kept)
    gate.set()
    await until(lambda: "0 busy, 0 of them overdue" in repr(kept))
    assert await kept.get(await kept.put(b"abc")) == b"abc"


async def test_a_process_that_can_start_no_thread_loses_no_place(tmp_path, monkeypatch):
    kept = claims(objects("memory", tmp_path), max_calls=1)

    def start(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", start)
        error = await refused(kept.put(b"abc"))
    assert error.reason is Reason.CLAIM_UNREACHABLE
    assert "can't start new thread" in error.detail
    assert await kept.get(await kept.put(b"abc")) == b"abc"


async def test_calls_at_once_are_bounded(tmp_path):
    gate = threading.Event()
    store = FaultyObjects(objects("memory", tmp_path), lambda _: gate.wait(30))
    kept = claims(store, max_calls=3)
    puts = [asyncio.create_task(kept.put(b"abc")) for _ in range(10)]
    await until(lambda: "3 busy, 0 of them overdue, 7 waiting" in repr(kept))
    puts[5].cancel()
    gate.set()
    found = await asyncio.gather(*puts, return_exceptions=True)
    assert store.most == 3
    assert [isinstance(claim, asyncio.CancelledError) for claim in found].count(True) == 1
    assert "0 busy, 0 of them overdue, 0 waiting" in repr(kept)


async def test_bytes_at_once_are_bounded_and_a_larger_value_goes_alone(tmp_path):
    gate = threading.Event()
    store = FaultyObjects(objects("memory", tmp_path), lambda _: gate.wait(30))
    kept = claims(store, max_calls=8, max_moving_bytes=100)
    puts = [asyncio.create_task(kept.put(b"x" * size)) for size in (60, 30, 200, 10)]
    await until(lambda: store.busy == 2)
    assert "90 of 100 bytes moving" in repr(kept)  # the fourth would fit, and does not overtake
    puts[2].cancel()
    await until(lambda: store.busy == 3)
    gate.set()
    await asyncio.gather(*puts, return_exceptions=True)
    large = await kept.put(b"x" * 200)
    assert large.size == 200
    assert "0 of 100 bytes moving" in repr(kept)


async def test_B95_values_older_than_the_ttl_go_and_nothing_else(store):
    wall = Wall()
    kept = Claims(store, ClaimBounds(1000, ttl_s=2 * 3600.0), clock_ms=wall)
    old = await kept.put(b"old")
    wall.ms += HOUR_MS // 2
    half = await kept.put(b"half an hour later")
    foreign = ["2025-06-01T13/mine", "not-ours/1-" + "0" * 32, "2025-06-01T13/1-zz"]
    for name in foreign:
        store.write(name, b"x")
    assert await kept.clean() == (0, 0)
    wall.ms = START_MS + 2 * HOUR_MS - 1
    assert (await kept.clean()).removed == 0
    wall.ms += 1
    assert (await kept.clean(dry_run=True)).removed == 1
    assert await kept.get(old) == b"old"
    assert await kept.clean() == (1, 1)
    assert (await refused(kept.get(old))).reason is Reason.CLAIM_MISSING
    assert await kept.get(half) == b"half an hour later"
    wall.ms += HOUR_MS
    assert await kept.clean() == (1, 0)
    for name in foreign:
        assert store.read(name, 10) == b"x"


async def test_folders_of_hours_that_are_over_go_with_their_last_value(tmp_path):
    wall = Wall()
    kept = Claims(objects("file", tmp_path), ClaimBounds(1000, ttl_s=60.0), clock_ms=wall)
    await kept.put(b"old")
    wall.ms += 3 * HOUR_MS
    await kept.put(b"new")
    assert (await kept.clean()).removed == 1
    assert [path.name for path in (tmp_path / "claims").iterdir()] == ["2025-06-01T16"]


async def test_a_value_that_cannot_be_removed_keeps_no_other(tmp_path):
    """Such as one that the store has locked; whoever cleans hears of it all the same."""
    wall = Wall()
    kept = Claims(
        objects("file", tmp_path), ClaimBounds(1000, ttl_s=60.0, timeout_s=0.01), clock_ms=wall
    )
    locked = tmp_path / "claims" / object_name(START_MS, "0" * 32)
    locked.mkdir(parents=True)  # no file system removes a folder as a file
    behind = [await kept.put(b"same hour")]
    wall.ms += HOUR_MS
    behind.append(await kept.put(b"next hour"))
    wall.ms += HOUR_MS
    with pytest.raises(Unavailable, match=rf"{locked.name} cannot be removed"):
        await kept.clean()
    for claim in behind:
        assert (await refused(kept.get(claim))).reason is Reason.CLAIM_MISSING


async def test_a_clean_up_of_values_that_cannot_be_removed_is_bounded(tmp_path):
    wall = Wall()
    store = FaultyObjects(objects("file", tmp_path))
    kept = Claims(store, ClaimBounds(1000, ttl_s=60.0, timeout_s=0.01), clock_ms=wall)
    for number in range(3 * MAX_FAILURES):
        store._behind.write(object_name(START_MS, f"{number:032x}"), b"x")
    store.script = lambda what: unreachable(what) if what == "delete" else None
    wall.ms += HOUR_MS
    with pytest.raises(Unavailable, match="connection refused"):
        await kept.clean()
    assert store.calls.count("delete") == MAX_FAILURES


async def test_two_cleaners_do_not_disturb_each_other(store):
    wall = Wall()
    both = [Claims(store, ClaimBounds(1000, ttl_s=1.0), clock_ms=wall) for _ in range(2)]
    for _ in range(20):
        await both[0].put(b"x")
    wall.ms += HOUR_MS
    found = await asyncio.gather(*(one.clean() for one in both))
    assert sum(one.removed for one in found) == 20


async def test_B95_an_entered_store_cleans_itself(store):
    wall = Wall()
    bounds = ClaimBounds(1000, ttl_s=1.0, clean_interval_s=0.01)
    async with Claims(store, bounds, cleans=True, clock_ms=wall) as kept:
        claim = await kept.put(b"abc")
        folder = object_name(START_MS, "").partition("/")[0]
        assert store.names(folder)
        wall.ms += 1000
        await until(lambda: not store.names(folder))
        assert (await refused(kept.get(claim))).reason is Reason.CLAIM_MISSING


async def test_a_cleaner_outlives_a_store_that_is_away(tmp_path, caplog):
    fails = iter([True] * 3)

    def script(_what: str) -> None:
        if next(fails, False):
            unreachable("")

    store = FaultyObjects(objects("file", tmp_path), script)
    wall = Wall()
    bounds = ClaimBounds(1000, ttl_s=1.0, timeout_s=0.01, clean_interval_s=0.01)
    store._behind.write(object_name(START_MS, "0" * 32), b"x")
    wall.ms += HOUR_MS
    async with Claims(store, bounds, cleans=True, clock_ms=wall):
        await until(lambda: "delete" in store.calls)
    assert "cannot be cleaned: connection refused" in caplog.text


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("/var/claims/", "file:///var/claims"),
        ("file:///var/claims", "file:///var/claims"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("memory://claims", "memory://claims"),
    ],
)
def test_a_stores_url(text, url):
    assert store_url(text) == url


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://key:secret@bucket/a", "without credentials"),
        ("s3://bucket/a?versionId=1", "one URL"),
        ("simplecache::s3://bucket", "one URL"),
        ("file:///", "folder of its own"),
        ("s3://", "folder of its own"),
        ("s3://bucket/" + "a" * 3000, "2048"),
        ("nosuch://a/b", "no store of this kind"),
    ],
)
def test_a_stores_url_that_is_refused_says_why(text, expected):
    with pytest.raises(ConfigError, match=expected) as error:
        FsspecObjects(text)
    assert "--claim-check-url" in str(error.value)
    assert "secret" not in str(error.value)


def test_a_record_holds_what_is_not_stored():
    assert default_above(1_048_576) == 1_048_576 - 65_536
    assert default_above(1_000) == 500
