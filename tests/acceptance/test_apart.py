"""`headrace worker` and `headrace gateway` as processes of their own, on a real Apache Kafka."""

import asyncio
import json
import os
import signal
import sys
from contextlib import asynccontextmanager

import aiohttp
import pytest
from affine_model import save_affine
from headrace.deploy.serving import free_ports

pytestmark = pytest.mark.kafka

BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}


@asynccontextmanager
async def process(*arguments):
    """Run a command until it says that it is ready; SIGTERM at the end must give status 0."""
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.deploy.cli", *map(str, arguments)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "HEADRACE_LOG_LEVEL": "warning"},
    )
    printed = []
    try:
        async with asyncio.timeout(60):
            async for line in started.stderr:
                printed.append(line.decode())
                if "Ready." in printed[-1]:
                    break
            else:
                raise AssertionError("".join(printed))
        yield started
    finally:
        if started.returncode is None:
            started.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            rest = await started.stderr.read()
            status = await started.wait()
    assert status == 0, "".join(printed) + rest.decode()


async def infer(*arguments):
    asked = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.deploy.cli", "infer", "m", "1,2,3,4", "--json"),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asked.communicate()
    assert asked.returncode == 0, err.decode()
    return json.loads(out)["outputs"][0]["data"]


async def test_two_workers_and_a_gateway_share_a_model_and_one_worker_may_leave(
    kafka_properties, unique, tmp_path
):
    """B68: a worker that stops hands its partitions on; every call before, while and after is answered."""
    save_affine(tmp_path / "m.onnx")
    prefix = unique("apart")
    kafka = (
        "--bootstrap-servers",
        kafka_properties["bootstrap.servers"],
        "--topic-prefix",
        prefix,
    )
    ports = free_ports(4)
    listening = ("--http-port", ports[2], "--grpc-port", "0", "--metrics-port", ports[3])
    worker = ("worker", tmp_path / "m.onnx", *kafka)
    async with (
        process(*worker, "--worker-port", ports[0], "--worker-id", "one"),
        process("gateway", *kafka, *listening),
        aiohttp.ClientSession() as session,
    ):
        url = f"http://127.0.0.1:{ports[2]}/v2/models/m/infer"

        async def ask():
            async with session.post(url, json=BODY) as answer:
                reply = await answer.json()
                assert answer.status == 200, reply
                return reply["outputs"][0]["data"]

        expected = [3.0, 5.0, 7.0, 9.0]
        assert await ask() == expected
        assert await infer(*kafka) == expected
        async with process(*worker, "--worker-port", ports[1], "--worker-id", "two") as second:
            second.send_signal(signal.SIGTERM)
            while second.returncode is None:
                assert await ask() == expected
        assert await ask() == expected
        assert await infer("--url", f"http://127.0.0.1:{ports[2]}") == expected


async def test_topics_are_made_once(kafka_properties, unique, tmp_path):
    """The topics command tells what Kafka has: created ones are there, and a second run makes nothing."""
    save_affine(tmp_path / "m.onnx")
    arguments = (
        *("topics", str(tmp_path / "m.onnx"), "--topic-prefix", unique("topics")),
        *("--bootstrap-servers", kafka_properties["bootstrap.servers"]),
    )
    for options, status in (((), 1), (("--create",), 0), ((), 0), (("--create",), 0)):
        ran = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.deploy.cli", *arguments, *options),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        printed, _ = await ran.communicate()
        assert ran.returncode == status, printed.decode()
