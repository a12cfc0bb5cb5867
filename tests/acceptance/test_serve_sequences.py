"""Sequences as an operator and a client meet them: `headrace serve`, Triton's own client, `headrace sequences`."""

import asyncio
import os
import sys
from contextlib import asynccontextmanager

import aiohttp
import numpy as np
import pytest
import pytest_asyncio
from headrace.deploy.commands_sequences import ask_workers
from headrace.deploy.serving import free_ports, serving
from headrace.deploy.settings import Settings

pytestmark = [pytest.mark.embedded, pytest.mark.asyncio(loop_scope="module")]

SUMS = """backend: "identity"
max_batch_size: 4
input [{ name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] }]
output [{ name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] }]
parameters { key: "accumulate" value: { string_value: "true" } }
sequence_batching {
  %s
  state [{ input_name: "SUM_IN" output_name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] }]
}
"""
LONG = "max_sequence_idle_microseconds: 600000000"
BRIEF = "max_sequence_idle_microseconds: 300000 oldest { max_candidate_sequences: 8 }"
CORRID = """max_sequence_idle_microseconds: 600000000
control_input [{ name: "ID" control [{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }] }]"""
PLAIN = """backend: "identity"
max_batch_size: 4
input [{ name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] }]
output [{ name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] }]
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A repository of three accumulators and one model without sequences."""
    root = tmp_path_factory.mktemp("models")
    for name, text in {
        "sums": SUMS % LONG,
        "brief": SUMS % BRIEF,
        "numbered": SUMS % CORRID,
        "plain": PLAIN,
    }.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(text)
    return root


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(models):
    """All of them, served in one process."""
    async with serving(models, models / "log", ("--sequence-skew-secs", "0.2")) as running:
        yield running


async def ask(service, model, sequence_id, value, **flags):
    """Ask a step over HTTP; returns the sum, or status and error text."""
    parameters = {} if sequence_id is None else {"sequence_id": sequence_id, **flags}
    tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [value]}
    body = {"inputs": [tensor], "parameters": parameters}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{service.url}/v2/models/{model}/infer", json=body) as answer,
    ):
        found = await answer.json()
    if answer.status != 200:
        return answer.status, found["error"]
    return found["outputs"][0]["data"][0]


async def listed(service, model, *arguments):
    """Run ``headrace sequences``; returns exit status, standard output and standard error."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.deploy.cli", "sequences", model),
        *("--bootstrap-servers", service.bootstrap, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "COLUMNS": "160"},
    )
    async with asyncio.timeout(60):
        printed, complaints = await process.communicate()
    return process.returncode, printed.decode(), complaints.decode()


async def rows_of(service, model):
    """Return what ``headrace sequences`` shows, by id; without a process of its own, which takes its time to start."""
    page = await ask_workers(Settings(bootstrap_servers=service.bootstrap), model, 1_000)
    return {row.id: row for row in page.rows}


async def metric(service, name, model):
    """Return a number of the worker's metrics page."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{service.worker_url}/metrics") as answer,
    ):
        lines = (await answer.text()).splitlines()
    (line,) = [line for line in lines if line.startswith(f'{name}{{model="{model}"}}')]
    return float(line.split()[-1])


async def test_TC02_KX12_tritons_client_steps_two_sequences_of_one_text(service):
    """7 and "7" side by side: each has its own sum, and END ends only its own."""
    pytest.importorskip("geventhttpclient", reason="needs the extra tritonclient[http]")
    client_module = pytest.importorskip("tritonclient.http")

    def work():
        found = {7: [], "7": []}
        with client_module.InferenceServerClient(service.url.removeprefix("http://")) as client:
            for number, (sequence_id, value) in enumerate(
                [(7, 1), ("7", 100), (7, 2), ("7", 200), (7, 3), ("7", 300)]
            ):
                tensor = client_module.InferInput("INPUT", [1, 1], "INT32")
                tensor.set_data_from_numpy(np.array([[value]], np.int32))
                result = client.infer(
                    "sums",
                    [tensor],
                    sequence_id=sequence_id,
                    sequence_start=number < 2,
                    sequence_end=number == 4,
                )
                found[sequence_id].append(result.as_numpy("OUTPUT").item())
        return found

    assert await asyncio.to_thread(work) == {7: [1, 3, 6], "7": [100, 300, 600]}
    assert await ask(service, "sums", 7, 1) == (
        400,
        (
            "inference request for sequence 7 to model 'sums' must specify the START flag on the "
            "first request of the sequence"
        ),
    )
    assert await ask(service, "sums", "7", 1, sequence_end=True) == 601


async def test_SQ03_SQ05_an_id_ends_and_begins_again(service):
    """After END it is unknown (400, Triton's words); a START makes a new sequence of it, from the initial state."""
    assert await ask(service, "sums", "again", 5, sequence_start=True) == 5
    assert await ask(service, "sums", "again", 6, sequence_end=True) == 11
    status, text = await ask(service, "sums", "again", 7)
    assert status == 400
    assert "sequence again to model 'sums' must specify the START flag on the first" in text
    assert await ask(service, "sums", "again", 8, sequence_start=True, sequence_end=True) == 8


@pytest.mark.parametrize(
    ("model", "sequence_id", "words"),
    [
        ("sums", None, "must specify a non-zero or non-empty correlation ID"),
        ("sums", 0, "must specify a non-zero or non-empty correlation ID"),
        ("sums", "", "must specify a non-zero or non-empty correlation ID"),
        ("sums", 2**64, f"parameter 'sequence_id' is {2**64}, expected an unsigned integer"),
        ("numbered", "7", "control 'CORRID' data-type is 'BYTES', but model 'numbered' expects"),
        ("sums", "nobody", "must specify the START flag on the first request of the sequence"),
    ],
)
async def test_SQ01_SQ03_SQ14_what_is_no_step_is_a_400_with_its_reason(
    service, model, sequence_id, words
):
    status, text = await ask(service, model, sequence_id, 1)
    assert status == 400
    assert words in text


async def test_sequences_are_listed_while_they_live(service):
    """With their steps, place, version and worker, over HTTP ids of both types; gone after END."""
    for sequence_id in (2**64 - 1, "camera 1"):
        await ask(service, "numbered", 1, 1, sequence_start=True)
        assert await ask(service, "sums", sequence_id, 1, sequence_start=True) == 1
        assert await ask(service, "sums", sequence_id, 1) == 2
    rows = await rows_of(service, "sums")
    assert {2**64 - 1, "camera 1"} <= rows.keys()
    row = rows["camera 1"]
    assert (row.id_type, row.steps, row.instance, row.version) == ("string", 2, 0, 1)
    assert row.place.startswith("slot ")
    assert row.idle_ms < 60_000
    code, table, _ = await listed(service, "sums", "--limit", "1")
    assert code == 0
    assert "'camera 1'" in table
    assert f"sums: 1 of {len(rows)} live sequences" in table
    assert await metric(service, "headrace_live_sequences", "sums") == len(rows)
    for sequence_id in (2**64 - 1, "camera 1"):
        assert await ask(service, "sums", sequence_id, 1, sequence_end=True) == 3
    assert not {2**64 - 1, "camera 1"} & (await rows_of(service, "sums")).keys()


async def test_B89_a_silent_sequence_expires_and_says_so(service):
    """It vanishes by itself, is counted, and its next step is told apart from that of an unknown one."""
    before = await metric(service, "headrace_sequences_expired_total", "brief")
    assert await ask(service, "brief", 9, 1, sequence_start=True) == 1
    async with asyncio.timeout(30):
        while await metric(service, "headrace_sequences_expired_total", "brief") == before:
            assert (await rows_of(service, "brief")).keys() <= {9}
    status, text = await ask(service, "brief", 9, 1)
    assert status == 400
    assert "sequence 9 to model 'brief' must specify the START flag" in text
    assert "expired" in text or "silent" in text
    assert await ask(service, "brief", 9, 4, sequence_start=True) == 4


async def test_a_model_without_sequences_is_one_sentence(service):
    code, printed, complaints = await listed(service, "plain")
    assert (code, printed) == (1, "")
    assert complaints == (
        "model 'plain' has no sequences: there is no sequence_batching in its configuration\n"
    )


@asynccontextmanager
async def second_worker(service, models):
    """Run ``headrace worker`` beside the service, on the same broker, while the block runs."""
    (port,) = free_ports(1)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.deploy.cli", "worker", str(models)),
        *("--bootstrap-servers", service.bootstrap, "--worker-id", "second"),
        *("--worker-port", str(port), "--http-address", "0.0.0.0"),
        *("--worker-advertised-url", f"http://127.0.0.1:{port}/"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        async with asyncio.timeout(60):
            await process.wait()


async def test_two_workers_share_the_sequences_and_both_are_listed(service, models):
    """They move with their partitions and keep their sums; each worker tells its own at the address it advertises."""
    ids = [f"shared {number}" for number in range(16)]
    for number, sequence_id in enumerate(ids):
        assert await ask(service, "sums", sequence_id, number, sequence_start=True) == number
    async with second_worker(service, models):
        async with asyncio.timeout(60):
            while True:
                rows = await rows_of(service, "sums")
                shown = {rows[each].worker for each in ids if each in rows}
                if len(shown) == 2 and rows.keys() >= set(ids):
                    break
        for number, sequence_id in enumerate(ids):
            assert await ask(service, "sums", sequence_id, 100) == number + 100
        rows = await rows_of(service, "sums")
        assert {rows[each].steps for each in ids} == {2}
        partitions = {each: rows[each].partition for each in ids}
        owners = {(partitions[each], rows[each].worker) for each in ids}
        assert len(owners) == len(set(partitions.values()))
    for number, sequence_id in enumerate(ids):
        assert await ask(service, "sums", sequence_id, 0, sequence_end=True) == number + 100
