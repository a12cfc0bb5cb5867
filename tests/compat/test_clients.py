"""SEMANTICS §2.11: what tritonclient sends over HTTP, and what it makes of the answers."""

import asyncio
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http
import tritonclient.http.aio
from compat_kit import ONES, SIXTEEN, add_sub, given
from compat_rules import rule
from tritonclient.utils import InferenceServerException


@rule("TC-01", "BN-04")
@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("binary_output", [True, False, None])
def test_every_mixture_of_binary_and_json(http, binary, binary_output):
    inputs = [
        given(tritonclient.http, f"INPUT{i}", values, "INT32", binary_data=binary)
        for i, values in enumerate((SIXTEEN, ONES))
    ]
    outputs = None
    if binary_output is not None:
        outputs = [tritonclient.http.InferRequestedOutput("OUTPUT0", binary_data=binary_output)]
    result = http.infer("simple", inputs, outputs=outputs)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), SIXTEEN + ONES)


@rule("TC-03")
def test_live_and_ready(http):
    assert http.is_server_live()
    assert http.is_server_ready()
    assert http.is_model_ready("echo")
    assert http.is_model_ready("echo", "1")
    assert not http.is_model_ready("nobody")
    assert not http.is_model_ready("echo", "9")


@rule("TC-04")
def test_an_exception_has_text_and_status(http):
    with pytest.raises(InferenceServerException) as caught:
        http.infer("nobody", add_sub(tritonclient.http))
    assert caught.value.status() == "404"
    assert "Request for unknown model: 'nobody' is not found" in caught.value.message()


@rule("TC-06")
def test_load_and_unload_have_parameters(http):
    for call in (http.load_model, http.unload_model):
        with pytest.raises(InferenceServerException, match="explicit model load") as caught:
            call("echo")
        assert caught.value.status() == "503"


@rule("TC-08")
def test_the_pool_of_asynchronous_calls(target):
    with tritonclient.http.InferenceServerClient(target.http, concurrency=8) as client:
        calls = [
            client.async_infer("simple", add_sub(tritonclient.http, SIXTEEN + number))
            for number in range(24)
        ]
        for number, call in enumerate(calls):
            found = call.get_result().as_numpy("OUTPUT0")
            np.testing.assert_array_equal(found, SIXTEEN + number + ONES)


@rule("TC-08")
async def test_the_asyncio_client(target):
    async with tritonclient.http.aio.InferenceServerClient(target.http) as client:
        assert await client.is_server_ready()
        assert await client.is_model_ready("echo")
        assert (await client.get_model_metadata("simple"))["name"] == "simple"
        assert (await client.get_model_config("simple"))["max_batch_size"] == 8
        assert await client.get_model_repository_index()
        calls = [
            client.infer("simple", add_sub(tritonclient.http, SIXTEEN + number))
            for number in range(24)
        ]
        for number, result in enumerate(await asyncio.gather(*calls)):
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), SIXTEEN + number + ONES)
        with pytest.raises(InferenceServerException) as caught:
            await client.infer("nobody", add_sub(tritonclient.http))
        assert caught.value.status() == "404"


def analyzer():
    """Return Triton's load generator, where the peers' set-up has put it."""
    work = os.environ.get("PEER_WORK")
    found = Path(work) / "bin" / "perf_analyzer" if work else None
    return found if found is not None and found.exists() else None


@pytest.mark.skipif(analyzer() is None, reason="PEER_WORK has no perf_analyzer")
@pytest.mark.parametrize(
    ("protocol", "more"),
    [
        ("http", []),
        ("grpc", []),
        ("grpc", ["--streaming"]),
    ],
)
def test_perf_analyzer_completes(target, protocol, more, tmp_path):
    """By windows of so many requests, so that a slow machine only takes longer."""
    address = target.http if protocol == "http" else target.grpc
    run = subprocess.run(
        [
            *(analyzer(), "-m", "simple", "-i", protocol, "-u", address, *more),
            *("--async", "--concurrency-range", "4", "-r", "3", "-s", "999"),
            *("--measurement-mode", "count_windows", "--measurement-request-count", "200"),
            *("-f", tmp_path / "report.csv"),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Throughput:" in run.stdout
