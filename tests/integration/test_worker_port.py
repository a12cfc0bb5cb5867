"""The worker's own port over a real socket: health, metrics and sequences, before and after there is a worker."""

import json
from urllib.parse import quote

import aiohttp
import pytest
from headrace.deploy.failure import CommandFailed
from headrace.deploy.worker_http import Views, WorkerHttp
from headrace.streams.sequence_list import IDLE, NO_INSTANCE, SequencePage, SequenceRow
from yarl import URL

ROW = SequenceRow(7, 0, IDLE, NO_INSTANCE, 4, 20, 1, "w1")


class Shown:
    """What a worker could say; notes what it was asked."""

    def __init__(self):
        """Not ready, for two reasons."""
        self.asked = []
        self.well = False

    def views(self, **more):
        """Return its views."""
        troubles = ["no partitions", "no broker"]
        return Views(lambda: self.well, lambda: troubles, self.sequences, **more)

    def sequences(self, model, limit):
        """Return one row of any model but ``none``."""
        self.asked.append((model, limit))
        return None if model == "none" else SequencePage((ROW,), 9)


async def get(http, path, method="GET"):
    url = URL(f"http://127.0.0.1:{http.port}{path}", encoded=True)
    async with aiohttp.ClientSession() as session, session.request(method, url) as answer:
        return answer.status, await answer.read()


async def test_it_is_live_and_not_ready_before_there_is_a_worker():
    async with WorkerHttp("127.0.0.1", 0) as http:
        assert await get(http, "/v2/health/live") == (200, b"")
        for path in ("/v2/health/ready", "/metrics", "/v2/models/m/sequences"):
            assert await get(http, path) == (503, b'{"error": "the worker is starting"}')


async def test_health_and_metrics_are_the_workers():
    shown = Shown()
    async with WorkerHttp("127.0.0.1", 0) as http:
        http.show(shown.views(page=lambda: b"a 1\n"))
        assert await get(http, "/v2/health/ready") == (
            503,
            b'{"error": "no partitions; no broker"}',
        )
        shown.well = True
        assert await get(http, "/v2/health/ready") == (200, b"")
        assert await get(http, "/metrics") == (200, b"a 1\n")
        assert (await get(http, "/metrics", "POST"))[0] == 405
        http.show(shown.views())
        assert (await get(http, "/metrics"))[0] == 404


@pytest.mark.parametrize("model", ["m", "a b", "a/b", "é", "100%"])
async def test_sequences_of_any_models_name_are_a_page(model):
    shown = Shown()
    async with WorkerHttp("127.0.0.1", 0) as http:
        http.show(shown.views())
        status, body = await get(http, f"/v2/models/{quote(model, safe='')}/sequences?limit=3")
    assert status == 200
    assert SequencePage.from_json(body) == SequencePage((ROW,), 9)
    assert shown.asked == [(model, 3)]


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("none/sequences", 404, "this worker serves no sequence model 'none'"),
        ("m/sequences?limit=0", 400, "limit is '0', expected a whole number from 1 to 10000"),
        ("m/sequences?limit=10001", 400, "limit is '10001', expected a whole number"),
        ("m/sequences?limit=x", 400, "limit is 'x', expected a whole number from 1 to 10000"),
        ("m/sequences?limit=", 400, "limit is '', expected a whole number from 1 to 10000"),
    ],
)
async def test_a_question_without_an_answer_is_an_error_in_json(path, status, words):
    shown = Shown()
    async with WorkerHttp("127.0.0.1", 0) as http:
        http.show(shown.views())
        got, body = await get(http, f"/v2/models/{path}")
    assert got == status
    assert words in json.loads(body)["error"]


@pytest.mark.parametrize("path", ["/", "/v2/models//sequences", "/v2/models/a/b/sequences", "/x"])
async def test_other_paths_are_not_found(path):
    shown = Shown()
    async with WorkerHttp("127.0.0.1", 0) as http:
        http.show(shown.views())
        assert (await get(http, path))[0] == 404
    assert shown.asked == []


async def test_a_taken_port_names_its_option():
    async with WorkerHttp("127.0.0.1", 0) as http:
        with pytest.raises(CommandFailed, match=f"port {http.port} on .* with --worker-port"):
            await WorkerHttp("127.0.0.1", http.port).__aenter__()
