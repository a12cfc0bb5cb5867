"""Triton's own HTTP clients against the gateway, unchanged (SEMANTICS §2.11)."""

import asyncio

import numpy as np
import pytest
from gateway_kit import Worker, identity_config, running, serving
from headrace.streams.memory import MemoryLog

pytest.importorskip(
    "geventhttpclient", reason="tritonclient's HTTP client needs the extra tritonclient[http]"
)
client_module = pytest.importorskip("tritonclient.http")


@pytest.fixture
def log():
    return MemoryLog()


def url_of(session):
    return str(session._base_url).removeprefix("http://").rstrip("/")


def asked(client, values, *, binary, datatype="FP32", binary_output=None, **how):
    """Infer synchronously; ``binary_output`` None asks for no output by name (TC-01)."""
    tensor = client_module.InferInput("INPUT0", list(values.shape), datatype)
    tensor.set_data_from_numpy(values, binary_data=binary)
    outputs = None
    if binary_output is not None:
        outputs = [client_module.InferRequestedOutput("OUTPUT0", binary_data=binary_output)]
    return client.infer("echo", [tensor], outputs=outputs, **how)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("binary_output", [True, False, None])
async def test_TC01_the_synchronous_client_infers(log, binary, binary_output):
    values = np.array([[1.5, -2.0, 0.0]], np.float32)
    async with running(Worker(log)), serving(log) as (_, session):

        def work():
            with client_module.InferenceServerClient(url_of(session)) as client:
                result = asked(
                    client, values, binary=binary, binary_output=binary_output, request_id="r1"
                )
                assert result.get_response()["id"] == "r1"
                return result.as_numpy("OUTPUT0")

        np.testing.assert_array_equal(await asyncio.to_thread(work), values)


@pytest.mark.parametrize("binary", [True, False])
async def test_strings_pass_both_ways(log, binary):
    values = np.array([["", "a", "é"]], dtype=object)
    versions = {1: identity_config(datatype="TYPE_STRING")}
    async with running(Worker(log, versions=versions)), serving(log) as (_, session):

        def work():
            with client_module.InferenceServerClient(url_of(session)) as client:
                return asked(
                    client, values, binary=binary, datatype="BYTES", binary_output=binary
                ).as_numpy("OUTPUT0")

        found = await asyncio.to_thread(work)
        texts = [x.decode() if isinstance(x, bytes) else x for x in found.ravel()]
        assert texts == ["", "a", "é"]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
async def test_BN08_compression_both_ways(log, algorithm):
    values = np.zeros((2, 4_000), np.float32)
    async with running(Worker(log)), serving(log) as (_, session):

        def work():
            with client_module.InferenceServerClient(url_of(session)) as client:
                return asked(
                    client,
                    values,
                    binary=True,
                    request_compression_algorithm=algorithm,
                    response_compression_algorithm=algorithm,
                ).as_numpy("OUTPUT0")

        np.testing.assert_array_equal(await asyncio.to_thread(work), values)


async def test_TC02_TC03_TC04_TC06_health_metadata_index_and_errors(log):
    async with running(Worker(log)) as worker, serving(log) as (_, session):

        def work():
            with client_module.InferenceServerClient(url_of(session)) as client:
                assert client.is_server_live()
                assert client.is_server_ready()
                assert client.is_model_ready("echo")
                assert client.is_model_ready("echo", "1")
                assert not client.is_model_ready("nope")
                assert client.get_server_metadata()["name"] == "headrace"
                assert client.get_model_metadata("echo")["versions"] == ["1"]
                assert client.get_model_config("echo")["max_batch_size"] == 8
                assert client.get_model_repository_index()[0]["state"] == "READY"
                with pytest.raises(client_module.InferenceServerException) as caught:
                    client.load_model("echo")
                assert caught.value.status() == "503"
                with pytest.raises(
                    client_module.InferenceServerException, match="INT32"
                ) as caught:
                    asked(client, np.array([[1]], np.int32), binary=True, datatype="INT32")
                assert caught.value.status() == "400"
                asked(
                    client,
                    np.ones((1, 1), np.float32),
                    binary=True,
                    sequence_id="s",
                    sequence_start=True,
                    priority=1,
                    timeout=9,
                )

        await asyncio.to_thread(work)
        headers = dict(worker.seen[-1].headers)
        assert (headers["sequence-id"], headers["sequence-start"]) == (b"s", b"true")
        assert worker.seen[-1].key == b"s"


async def test_TC08_the_asynchronous_client_infers(log):
    from tritonclient.http import aio

    values = np.array([[4.0, 5.0]], np.float32)
    async with (
        running(Worker(log)),
        serving(log) as (_, session),
        aio.InferenceServerClient(url_of(session)) as client,
    ):
        assert await client.is_server_ready()
        tensor = aio.InferInput("INPUT0", [1, 2], "FP32")
        tensor.set_data_from_numpy(values)
        results = await asyncio.gather(*(client.infer("echo", [tensor]) for _ in range(32)))
    for result in results:
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), values)


async def test_PB08_PB73_PB74_the_clients_ask_for_statistics_and_change_settings(log):
    """Both clients' calls; per worker by a query that only Headrace knows (KX-11)."""
    from tritonclient.http import aio

    async with running(Worker(log)), serving(log) as (_, session):

        def work():
            with client_module.InferenceServerClient(url_of(session)) as client:
                stats = client.get_inference_statistics("echo", "1")["model_stats"]
                assert [(item["name"], item["version"]) for item in stats] == [("echo", "1")]
                apart = client.get_inference_statistics(query_params={"workers": "true"})
                assert [w["worker"] for w in apart["model_stats"][0]["workers"]] == ["w1"]
                with pytest.raises(client_module.InferenceServerException) as caught:
                    client.get_inference_statistics("nope")
                assert caught.value.status() == "400"
                found = client.update_trace_settings("echo", {"trace_rate": "2"})
                assert (found["trace_rate"], found["trace_level"]) == ("2", ["OFF"])
                found = client.update_trace_settings("echo", {"trace_rate": None})
                assert found == client.get_trace_settings()
                found = client.update_log_settings({"log_verbose_level": 1})
                assert found == client.get_log_settings()
                assert found["log_verbose_level"] == 1

        await asyncio.to_thread(work)
        async with aio.InferenceServerClient(url_of(session)) as client:
            stats = await client.get_inference_statistics()
            assert stats["model_stats"][0]["inference_stats"]["success"] == {"count": 0, "ns": 0}
            found = await client.update_trace_settings(settings={"trace_count": "5"})
            assert found["trace_count"] == "5"
            found = await client.update_log_settings({"log_info": False})
            assert found["log_info"] is False
