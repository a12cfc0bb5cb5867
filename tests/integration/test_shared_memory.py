"""Regions of real shared memory: who may register what, and what is read and written (SEMANTICS PB-72)."""

import os
import threading
import uuid
from pathlib import Path

import pytest
from headrace.schemas.errors import Code, InferError
from headrace.schemas.infer import InferResponse, RequestedOutput
from headrace.schemas.shared_span import SharedSpan
from headrace.schemas.tensor import Datatype, Tensor
from headrace.streams.shared_memory import SHM_FOLDER, SharedMemory

pytestmark = pytest.mark.skipif(not Path(SHM_FOLDER).is_dir(), reason=f"there is no {SHM_FOLDER}")

CONTENT = bytes(range(64))


@pytest.fixture
def key():
    """Key of a shared memory object of 64 bytes."""
    name = f"headrace-test-{uuid.uuid4().hex}"
    path = Path(SHM_FOLDER) / name
    path.write_bytes(CONTENT)
    yield f"/{name}"
    path.unlink(missing_ok=True)


@pytest.fixture
def memory():
    made = SharedMemory(is_allowed=True, max_regions=3)
    yield made
    made.clear()


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def refusal(call, *given):
    with pytest.raises(InferError) as caught:
        call(*given)
    return caught.value.code, caught.value.detail


def output(name="OUT", size=8, offset=0, region="r", **more):
    return RequestedOutput(
        name,
        {
            "shared_memory_region": region,
            "shared_memory_byte_size": size,
            "shared_memory_offset": offset,
            **more,
        },
    )


def answered(data, name="OUT"):
    return InferResponse((Tensor(name, Datatype.UINT8, (len(data),), data),))


def test_PB72_a_region_is_registered_shown_read_and_unregistered(memory, key):
    memory.register("r", key, 16, 32)
    assert memory.status() == [{"name": "r", "key": key, "offset": 16, "byte_size": 32}]
    assert memory.status("r") == memory.status()
    assert memory.read(SharedSpan("r", 4, 8)) == CONTENT[20:28]
    memory.unregister("r")
    assert memory.status() == []
    assert refusal(memory.status, "r") == (
        Code.NOT_FOUND,
        "Unable to find system shared memory region: 'r'",
    )


def test_PB72_a_name_is_taken_once_and_unknown_ones_are_unregistered_in_peace(memory, key):
    memory.unregister("never")
    memory.register("r", key, 0, 8)
    assert refusal(memory.register, "r", key, 8, 8) == (
        Code.ALREADY_EXISTS,
        "shared memory region 'r' already in manager",
    )
    memory.register("other", key.removeprefix("/"), 8, 8)
    memory.unregister()
    assert len(memory) == 0


def test_PB72_it_is_off_unless_it_is_allowed(key):
    memory = SharedMemory()
    for call in (lambda: memory.register("r", key, 0, 8), memory.unregister):
        code, words = refusal(call)
        assert code is Code.UNSUPPORTED
        assert "--allow-client-shm=true" in words
    assert refusal(memory.read, SharedSpan("r", 0, 1))[0] is Code.UNSUPPORTED
    assert memory.status() == []


@pytest.mark.parametrize(
    "bad",
    ["", "/", "///", "..", "/..", ".", "a/b", "../etc/passwd", "/dev/shm/x", "x" * 256, "a\0b"],
)
def test_PB72_a_key_is_a_plain_name(memory, bad):
    """No path leads out of the folder."""
    code, words = refusal(memory.register, "r", bad, 0, 1)
    assert code is Code.INVALID_ARG
    assert "invalid shm key" in words


def test_PB72_what_is_no_object_of_shared_memory_is_refused(memory, key, tmp_path):
    """Neither links are followed, nor pipes waited for, nor folders opened."""
    outside = tmp_path / "secret"
    outside.write_bytes(CONTENT)
    folder = Path(SHM_FOLDER)
    names = [f"{key[1:]}-{kind}" for kind in ("link", "pipe", "folder")]
    link, pipe, sub = (folder / name for name in names)
    link.symlink_to(outside)
    os.mkfifo(pipe)
    sub.mkdir()
    before = open_files()
    try:
        for name in [*names, f"{key}-none", "\udcff"]:
            code, words = refusal(memory.register, "r", name, 0, 1)
            assert code is Code.INVALID_ARG
            assert "shared memory region" in words
    finally:
        link.unlink()
        pipe.unlink()
        sub.rmdir()
    assert open_files() == before


def test_PB72_keys_of_the_python_backend_are_reserved(memory):
    _, words = refusal(memory.register, "r", "/triton_python_backend_shm_region_1", 0, 1)
    assert "contains the reserved prefix 'triton_python_backend_shm_region_'" in words


@pytest.mark.parametrize(("offset", "size"), [(0, 65), (64, 1), (60, 5), (0, 2**63), (2**64, 1)])
def test_PB72_a_region_lies_within_its_object(memory, key, offset, size):
    """By the object's own size, whatever is claimed; nothing stays open."""
    before = open_files()
    code, words = refusal(memory.register, "r", key, offset, size)
    assert code is Code.INVALID_ARG
    assert "failed to register shared memory region 'r': invalid args" in words
    assert "the object has 64 bytes" in words
    assert open_files() == before


def test_an_empty_region_is_none(memory, key):
    assert "byte_size is 0" in refusal(memory.register, "r", key, 0, 0)[1]


@pytest.mark.parametrize(
    ("span", "words"),
    [
        (("no", 0, 1), "Unable to find shared memory region: 'no'"),
        (("r", 32, 0), "Invalid offset for shared memory region: 'r'"),
        (("r", 2**64 - 1, 1), "Invalid offset for shared memory region: 'r'"),
        (("r", 30, 3), "Invalid offset + byte size for shared memory region: 'r'"),
        (("r", 0, 2**64 - 1), "Invalid offset + byte size for shared memory region: 'r'"),
    ],
)
def test_PB72_a_request_stays_within_the_region(memory, key, span, words):
    """Though the object has more bytes: those behind the region are somebody else's."""
    memory.register("r", key, 0, 32)
    assert words in refusal(memory.read, SharedSpan(*span))[1]
    name, offset, size = span
    with (
        pytest.raises(InferError, match="shared memory region"),
        memory.targets([output(region=name, offset=offset, size=size)]),
    ):
        pass


def test_one_request_reads_no_more_than_its_limit(memory, key):
    """Many inputs may name one region; their sum is what is allocated."""
    memory.register("r", key, 0, 64)
    read = memory.reader(100)
    assert read("A", SharedSpan("r", 0, 64)) == CONTENT
    code, words = refusal(read, "B", SharedSpan("r", 0, 37))
    assert code is Code.INVALID_ARG
    assert "input 'B' has 37 bytes in shared memory" in words
    assert read("C", SharedSpan("r", 0, 36)) == CONTENT[:36]


def test_regions_are_bounded(memory, key):
    for number in range(3):
        memory.register(f"r{number}", key, 0, 8)
    _, words = refusal(memory.register, "r3", key, 0, 8)
    assert "3 are" in words
    assert "--max-shm-regions" in words


def test_PB72_outputs_are_written_to_their_places(memory, key):
    memory.register("r", key, 8, 16)
    with memory.targets([output(size=8, offset=4), RequestedOutput("B")]) as targets:
        assert targets.names == {"OUT"}
        targets.write(answered(b"12345"))
    found = (Path(SHM_FOLDER) / key[1:]).read_bytes()
    assert found == CONTENT[:12] + b"12345" + CONTENT[17:]


def test_PB72_an_output_that_does_not_fit_is_not_written(memory, key):
    memory.register("r", key, 0, 64)
    with memory.targets([output(size=4)]) as targets:
        code, words = refusal(targets.write, answered(b"12345"))
    assert code is Code.INTERNAL
    assert words == (
        "shared memory size specified with the request for output 'OUT' (4 bytes) should be at "
        "least 5 bytes to hold the results"
    )
    assert (Path(SHM_FOLDER) / key[1:]).read_bytes() == CONTENT


@pytest.mark.parametrize("other", ["classification", "binary_data"])
def test_CL02_an_output_has_one_form(memory, key, other):
    memory.register("r", key, 0, 64)
    with (
        pytest.raises(InferError, match=f"'shared_memory_region' and '{other}'"),
        memory.targets([output(**{other: True})]),
    ):
        pass


def test_an_object_that_is_cut_short_is_an_error_and_no_crash(memory, key):
    """Were it mapped, touching it would end the process; nor is it made longer again by an answer."""
    memory.register("r", key, 0, 64)
    with memory.targets([output(size=8, offset=32)]) as targets:
        os.truncate(Path(SHM_FOLDER) / key[1:], 10)
        assert memory.read(SharedSpan("r", 0, 10)) == CONTENT[:10]
        for code, words in (
            refusal(memory.read, SharedSpan("r", 8, 8)),
            refusal(targets.write, answered(b"12345678")),
        ):
            assert code is Code.INVALID_ARG
            assert "shorter than it was registered" in words
    assert (Path(SHM_FOLDER) / key[1:]).stat().st_size == 10


def test_B101_a_region_in_use_is_closed_when_its_last_call_has_ended(memory, key):
    before = open_files()
    memory.register("r", key, 0, 64)
    with memory.targets([output(), output("B")]) as targets:
        memory.unregister("r")
        assert refusal(memory.read, SharedSpan("r", 0, 1))[0] is Code.NOT_FOUND
        memory.register("r", key, 0, 8)
        targets.write(answered(b"here"))
        memory.unregister()
    assert (Path(SHM_FOLDER) / key[1:]).read_bytes().startswith(b"here")
    assert open_files() == before


def test_B101_many_threads_leave_nothing_behind(memory, key):
    """Reads race with registering and unregistering: right bytes or a clear error, and no file stays open."""
    before = open_files()
    wrong = []

    def read():
        for _ in range(300):
            try:
                found = memory.read(SharedSpan("r", 0, 64))
            except InferError as error:
                if error.code is not Code.NOT_FOUND:
                    wrong.append(error)
            else:
                if found != CONTENT:
                    wrong.append(found)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        memory.register("r", key, 0, 64)
        memory.unregister("r")
    for thread in threads:
        thread.join()
    assert wrong == []
    assert open_files() == before
