"""`headrace serve` as an operator meets it: what it prints, how it stops, and each stumble as one sentence."""

import asyncio
import os
import re
import signal
import socket
import sys

import aiohttp
import numpy as np
import pytest
from affine_model import save_affine
from headrace.deploy.serving import batch_rows, free_ports, serving

pytestmark = pytest.mark.embedded

BROKEN = b"this is no ONNX file"
SLOW_S = 25
SLOW = f"""backend: "identity"
max_batch_size: 1
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }} ]
parameters {{ key: "execute_delay_ms" value: {{ string_value: "{SLOW_S * 1000}" }} }}
"""
ONE_ROW = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}


async def run_to_end(*arguments, **environment):
    """Run a command of ours to its end; returns status and everything printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.deploy.cli", *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "COLUMNS": "160", **environment},
    )
    async with asyncio.timeout(60):
        printed, _ = await process.communicate()
    return process.returncode, printed.decode()


def addresses(*names):
    """Return options that put these ports on free numbers."""
    ports = free_ports(len(names))
    return [word for name, port in zip(names, ports, strict=True) for word in (name, str(port))]


ALL_PORTS = ("--broker-port", "--http-port", "--grpc-port", "--metrics-port", "--worker-port")


async def test_it_says_where_it_listens_what_it_loaded_and_what_it_guarantees(tmp_path):
    save_affine(tmp_path / "my_model.onnx")
    async with serving(tmp_path / "my_model.onnx", tmp_path / "log") as service:
        printed = service.log.read_text()
        assert re.search(r"my_model\W+1\W+READY\W+up to 4 rows", printed)
        assert f"{service.bootstrap} (embedded broker)" in printed
        assert f"{service.url}/v2" in printed
        assert service.grpc in printed
        assert "headrace.my_model.requests to headrace.my_model.results" in printed
        assert "at least once; the embedded broker holds its data in memory" in printed
        assert "batches of up to 4 rows were chosen by auto-complete; raise it with" in printed
        assert "--default-max-batch-size N" in printed
    assert "Stopping: what is in flight is finished first." in service.log.read_text()
    assert "Traceback" not in service.log.read_text()


async def test_metrics_of_gateway_and_worker_count_what_was_served(tmp_path):
    save_affine(tmp_path / "m.onnx")
    async with (
        serving(tmp_path / "m.onnx", tmp_path / "log") as service,
        aiohttp.ClientSession() as session,
    ):
        body = {
            "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [2, 4], "data": [0.0] * 8},
            ]
        }
        async with session.post(f"{service.url}/v2/models/m/infer", json=body) as answer:
            assert answer.status == 200
        assert await batch_rows(service.worker_url, "m") == {"2": 1}
        wanted = 'nv_inference_count{model="m",version="1"} 2'
        async with asyncio.timeout(10):  # counts travel with the worker's next status
            await until_page(session, f"{service.metrics_url}/metrics", wanted)
        async with session.get(f"{service.worker_url}/v2/health/ready") as health:
            assert health.status == 200


async def test_a_stop_in_the_middle_answers_what_is_in_flight(tmp_path):
    """FAULTS B68: a call that is open when SIGTERM comes gets its answer, and the exit status is 0."""
    save_affine(tmp_path / "m.onnx")
    x = np.zeros((1, 4), np.float32).ravel().tolist()
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": x}]}
    async with (
        aiohttp.ClientSession() as session,
        serving(tmp_path / "m.onnx", tmp_path / "log") as service,
    ):
        url = f"{service.url}/v2/models/m/infer"

        async def ask():
            async with session.post(url, json=body) as answer:
                return answer.status

        calls = [asyncio.create_task(ask()) for _ in range(20)]
        await calls[0]
        service.stop()
        statuses = await asyncio.gather(*calls, return_exceptions=True)
    answered = [status for status in statuses if isinstance(status, int)]
    assert answered
    assert set(answered) <= {200, 503}


async def test_a_second_signal_ends_at_once(tmp_path):
    """B69: whoever insists is obeyed, even while a batch runs that would hold the stop for its whole budget."""
    repository = tmp_path / "models"
    (repository / "slow" / "1").mkdir(parents=True)
    (repository / "slow" / "config.pbtxt").write_text(SLOW)
    options = addresses(*ALL_PORTS)
    ports = dict(zip(options[::2], options[1::2], strict=True))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.deploy.cli", "serve", str(repository), *options),
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    call = None
    try:
        async with asyncio.timeout(60), aiohttp.ClientSession() as session:
            await until_printed(process.stderr, b"Ready.")
            url = f"http://127.0.0.1:{ports['--http-port']}/v2/models/slow/infer"
            call = asyncio.create_task(session.post(url, json=ONE_ROW))
            metrics = f"http://127.0.0.1:{ports['--metrics-port']}/metrics"
            await until_page(session, metrics, "headrace_gateway_open_calls 1.0")
            process.send_signal(signal.SIGINT)
            await until_printed(process.stderr, b"Stopping")
            process.send_signal(signal.SIGINT)
            started = asyncio.get_running_loop().time()
            assert await process.wait() == 1
            assert asyncio.get_running_loop().time() - started < SLOW_S / 2
    finally:
        if call is not None:
            call.cancel()
        if process.returncode is None:
            process.kill()
            await process.wait()


async def until_page(session, url, text):
    """Read a page again and again until it says so; the caller bounds it."""
    while True:
        async with session.get(url) as answer:
            if text in await answer.text():
                return


async def until_printed(stream, text):
    async for line in stream:
        if text in line:
            return
    raise AssertionError(f"it ended without printing {text!r}")


async def test_a_model_that_does_not_load_ends_the_start_with_the_table_and_the_way_out(tmp_path):
    save_affine(tmp_path / "good" / "1" / "model.onnx")
    (tmp_path / "bad" / "1").mkdir(parents=True)
    (tmp_path / "bad" / "1" / "model.onnx").write_bytes(BROKEN)
    status, printed = await run_to_end("serve", tmp_path, *addresses(*ALL_PORTS))
    assert status == 1
    assert "Did not load" in printed
    assert str(tmp_path / "bad" / "1" / "model.onnx") in printed
    assert printed.strip().splitlines()[-1] == (
        "1 of 2 models did not load; serve the others with --exit-on-error=false"
    )
    assert "Traceback" not in printed


async def test_the_others_are_served_when_that_is_wanted(tmp_path):
    repository = tmp_path / "models"
    save_affine(repository / "good" / "1" / "model.onnx")
    (repository / "bad" / "1").mkdir(parents=True)
    (repository / "bad" / "1" / "model.onnx").write_bytes(BROKEN)
    options = ("--exit-on-error=false", "--strict-readiness", "false")
    async with (
        serving(repository, tmp_path / "log", options) as service,
        aiohttp.ClientSession() as session,
    ):
        assert "1 of 2 models did not load; the others are served" in service.log.read_text()
        index = {"good": {"state": "LOADING"}}  # until its worker has joined the group
        async with asyncio.timeout(30):
            while index["good"]["state"] == "LOADING":
                async with session.post(f"{service.url}/v2/repository/index") as answer:
                    index = {row["name"]: row for row in await answer.json()}
                await asyncio.sleep(0.1)
        assert index["good"]["state"] == "READY"
        assert index["bad"]["state"] == "UNAVAILABLE"
        assert "model.onnx" in index["bad"]["reason"]


async def test_a_taken_port_is_named_with_its_option(tmp_path):
    save_affine(tmp_path / "m.onnx")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        others = addresses("--broker-port", "--grpc-port", "--metrics-port", "--worker-port")
        status, printed = await run_to_end(
            "serve", tmp_path / "m.onnx", "--http-port", port, *others
        )
    assert status == 1
    assert printed.strip().endswith(
        f"port {port} on 127.0.0.1 is taken by another process, choose another with --http-port"
    )


async def test_an_unreachable_broker_is_one_sentence(tmp_path):
    save_affine(tmp_path / "m.onnx")
    (port,) = free_ports(1)
    status, printed = await run_to_end(
        *("serve", tmp_path / "m.onnx", "--bootstrap-servers", f"127.0.0.1:{port}"),
        *addresses(*ALL_PORTS[1:]),
    )
    assert status == 1
    assert f"127.0.0.1:{port}" in printed.strip().splitlines()[-1]
    assert "Traceback" not in printed


async def test_topics_are_shown_made_and_then_there(tmp_path):
    save_affine(tmp_path / "m.onnx")
    async with serving(tmp_path / "m.onnx", tmp_path / "log") as service:
        arguments = ("topics", tmp_path / "m.onnx", "--bootstrap-servers", service.bootstrap)
        status, printed = await run_to_end(*arguments)
        assert status == 0
        assert "headrace.m.requests" in printed
        other = (*arguments, "--topic-prefix", "other", "--partitions", "2")
        status, printed = await run_to_end(*other)
        assert status == 1
        assert "8 topics do not exist; --create makes them" in printed
        status, printed = await run_to_end(*other, "--create")
        assert status == 0
        assert re.search(
            r"other\.m\.requests\W+2\W+message.timestamp.type=LogAppendTime\W+yes", printed
        )


async def test_models_lists_states_and_infer_prints_what_the_model_says(tmp_path):
    save_affine(tmp_path / "m.onnx")
    async with serving(tmp_path / "m.onnx", tmp_path / "log") as service:
        status, printed = await run_to_end("models", "--url", service.url)
        assert status == 0
        assert re.search(r"m\W+1\W+READY", printed)
        status, printed = await run_to_end("infer", "m", "1,2,3,4", "--url", service.url)
        assert status == 0
        assert "3, 5, 7, 9" in printed
        status, printed = await run_to_end("infer", "m", "1,2,3", "--url", service.url)
        assert status == 1
        assert "input 'x' expects shape [-1, 4]" in printed
        status, printed = await run_to_end("infer", "n", "1", "--url", service.url)
        assert status == 1
        assert printed.startswith("the gateway answered 404: ")


async def test_check_says_what_would_load_before_anything_starts(tmp_path):
    save_affine(tmp_path / "good" / "1" / "model.onnx")
    status, printed = await run_to_end("models", "check", tmp_path)
    assert status == 0
    assert re.search(r"good\W+1\W+onnxruntime\W+yes", printed)
    (tmp_path / "bad" / "1").mkdir(parents=True)
    (tmp_path / "bad" / "1" / "model.onnx").write_bytes(BROKEN)
    status, printed = await run_to_end("models", "check", tmp_path)
    assert status == 1
    assert "1 of 2 models would not load" in printed


async def test_the_default_broker_port_gives_way_where_it_is_taken(tmp_path):
    """Kafka's own port, so that examples work as written; a Kafka that has it already is no obstacle."""
    from headrace.deploy.broker import embedded_broker
    from headrace.deploy.settings import EMBEDDED_PORT, Settings

    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind(("127.0.0.1", EMBEDDED_PORT))
            held.listen()
        except OSError:
            pass  # taken by somebody else: just what is wanted
        async with embedded_broker(Settings()) as broker:
            assert not broker.bootstrap.endswith(f":{EMBEDDED_PORT}")
