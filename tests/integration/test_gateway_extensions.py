"""Statistics, trace and logging settings over HTTP, at a gateway on a memory log (SEMANTICS §2.7, §2.8)."""

import io
import json
import logging

import pytest
from gateway_kit import Worker, echo, identity_config, running, serving, until
from headrace.schemas.errors import BackendError
from headrace.streams.counts import BatchCounts, ModelCounts
from headrace.streams.extensions import Extensions
from headrace.streams.log_settings import OWN_LOGGER, LogSettings
from headrace.streams.memory import MemoryLog
from headrace.streams.status import ModelState, VersionStatus
from headrace.streams.trace_file import TraceFile
from headrace.streams.trace_settings import TraceSettings

INFER = "/v2/models/echo/infer"
TRACE = "/v2/trace/setting"
BODY = {
    "id": "r1",
    "inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]}],
}


@pytest.fixture
def log():
    return MemoryLog()


async def ask(session, method, path, payload=None):
    how = {"data": payload} if isinstance(payload, bytes) else {"json": payload}
    async with session.request(method, path, **how) as response:
        text = await response.read()
        return response.status, json.loads(text) if text else None


def counted(success):
    counts = ModelCounts(success=success, inference_count=2 * success, queue_ns=1_234_567)
    counts.batches[2] = BatchCounts(success, 1, 2, 3)
    return VersionStatus(1, ModelState.READY, config=identity_config(), counts=counts)


async def test_PB08_KX11_statistics_are_those_of_the_fleet(log):
    """Two workers' figures are summed; each one's are there for who asks; nanoseconds are not rounded."""
    async with running(Worker(log)) as first, serving(log) as (gateway, session):
        second = Worker(log, worker="w2")
        await first.announce(versions=(counted(3),))
        await second.announce(versions=(counted(4),))
        await until(lambda: len(gateway.fleet.workers("echo", gateway.now_ms())) == 2)
        for path in (
            "/v2/models/stats",
            "/v2/models/echo/stats",
            "/v2/models/echo/versions/1/stats",
        ):
            status, found = await ask(session, "GET", path)
            assert status == 200
            (item,) = found["model_stats"]
            assert (item["name"], item["version"], item["inference_count"]) == ("echo", "1", 14)
            assert item["inference_stats"]["queue"] == {"count": 7, "ns": 2_469_134}
            assert item["batch_stats"][0]["compute_infer"] == {"count": 7, "ns": 4}
            assert "workers" not in item
        _, found = await ask(session, "GET", "/v2/models/echo/stats?workers=true")
        workers = found["model_stats"][0]["workers"]
        assert [(w["worker"], w["inference_count"]) for w in workers] == [("w1", 6), ("w2", 8)]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v2/models/nope/stats", "requested model 'nope' is not available"),
        ("/v2/models/echo/versions/9/stats", "is not available for model 'echo'"),
    ],
)
async def test_ST06_statistics_of_what_is_not_ready_are_a_400(log, path, words):
    async with running(Worker(log)), serving(log) as (_, session):
        status, found = await ask(session, "GET", path)
        assert status == 400
        assert words in found["error"]
        assert (await ask(session, "POST", path))[0] == 405


async def test_PB60_the_extensions_that_are_offered_are_named(log):
    async with serving(log) as (_, session):
        _, found = await ask(session, "GET", "/v2")
        assert {"statistics", "trace", "logging", "sequence"} <= set(found["extensions"])
        assert "system_shared_memory" not in found["extensions"]


async def test_PB73_trace_settings_of_a_model_and_of_all(log, tmp_path):
    """A POST answers with the whole setting; null goes back; an unknown model is a 404."""
    extensions = Extensions(TraceSettings(path=str(tmp_path / "t.json")))
    model = "/v2/models/echo/trace/setting"
    async with running(Worker(log)), serving(log, extensions=extensions) as (_, session):
        status, found = await ask(session, "POST", TRACE, {"trace_rate": "5"})
        assert (status, found["trace_rate"], found["trace_count"]) == (200, "5", "-1")
        given = {"trace_level": ["TIMESTAMPS"], "trace_count": "2"}
        status, found = await ask(session, "POST", model, given)
        assert (status, found["trace_level"], found["trace_rate"]) == (200, ["TIMESTAMPS"], "5")
        assert (await ask(session, "GET", model))[1] == found
        assert (await ask(session, "GET", TRACE))[1]["trace_level"] == ["OFF"]
        await ask(session, "POST", model, {"trace_level": None, "trace_count": None})
        assert (await ask(session, "GET", model)) == (await ask(session, "GET", TRACE))
        status, found = await ask(session, "POST", "/v2/models/nope/trace/setting", {})
        assert status == 404
        assert "unknown model: 'nope'" in found["error"]


@pytest.mark.parametrize(
    ("path", "payload", "status"),
    [
        (TRACE, {"trace_rate": "x"}, 400),
        (TRACE, {"trace_level": ["TIMESTAMPS"]}, 400),  # no trace file is configured
        (TRACE, {"trace_file": "/tmp/x"}, 501),
        (TRACE, {"trace_level": ["TENSORS"]}, 501),
        (TRACE, {"trace_rate": 1}, 500),
        (TRACE, b"[]", 500),
        (TRACE, b"{", 500),
        (TRACE, b"[" * 100_000, 400),
        (TRACE, b"", 200),
        ("/v2/logging", {"log_file": "x"}, 501),
        ("/v2/logging", {"log_format": "x"}, 503),
        ("/v2/logging", {"log_verbose_level": "1"}, 500),
        ("/v2/logging", {"log_info": None, "unknown": []}, 200),
        ("/v2/logging", b'"x"', 500),
        ("/v2/logging", b"", 200),
    ],
)
async def test_PB73_PB74_PB38_bad_settings_get_tritons_codes(log, path, payload, status):
    async with serving(log) as (_, session):
        found = await ask(session, "POST", path, payload)
        assert found[0] == status
        assert status == 200 or isinstance(found[1]["error"], str)


async def test_PB73_a_traced_call_is_written_with_what_happened_to_it(log, tmp_path):
    """In the order in which it happened; every second one; failed calls too."""
    path = tmp_path / "trace.json"
    file = TraceFile(path)
    traces = TraceSettings(path=str(path), writer=file)
    answers = iter([None, None, None, BackendError("broken")])

    def script(request, record):
        return next(answers) or echo(request, record)

    async with (
        running(Worker(log, script=script)),
        serving(log, extensions=Extensions(traces)) as (_, session),
    ):
        await ask(session, "POST", TRACE, {"trace_level": ["TIMESTAMPS"], "trace_rate": "2"})
        statuses = [(await ask(session, "POST", INFER, BODY))[0] for _ in range(4)]
        assert statuses == [200, 200, 200, 500]
        assert (await ask(session, "POST", "/v2/models/nope/infer", BODY))[0] == 404
    traces.close()
    file.close()
    items = json.loads(path.read_text())
    heads = [item for item in items if "model_name" in item]
    assert heads == [
        {"id": 1, "model_name": "echo", "model_version": 1, "request_id": "r1"},
        {"id": 2, "model_name": "echo", "model_version": -1, "request_id": "r1"},
    ]

    def marks(number):
        return [i["timestamps"][0] for i in items if i["id"] == number and "timestamps" in i]

    times = marks(1)
    assert [each["name"] for each in times] == [
        "HTTP_RECV_START",
        "HTTP_RECV_END",
        "REQUEST_START",
        "REQUEST_END",
        "HTTP_SEND_START",
        "HTTP_SEND_END",
    ]
    assert [each["ns"] for each in times] == sorted(each["ns"] for each in times)
    failed = [each["name"] for each in marks(2)]
    assert failed == ["HTTP_RECV_START", "HTTP_RECV_END", "REQUEST_START"]


async def test_PB73_numbered_files_and_a_disk_that_cannot_be_written(tmp_path, caplog):
    """A file of its own for every so many traces; a failed write is an error in the log and nothing else."""
    path = tmp_path / "trace.json"
    file = TraceFile(path)
    file.write_next('{"id":1}')
    file.write_next('{"id":2},{"id":3}')
    file.append('{"id":4}')
    file.append('{"id":5}')
    file.close()
    assert json.loads((tmp_path / "trace.json.1").read_text()) == [{"id": 2}, {"id": 3}]
    assert json.loads(path.read_text()) == [{"id": 4}, {"id": 5}]
    lost = TraceFile(tmp_path / "none" / "trace.json")
    lost.append('{"id":1}')
    lost.close()
    assert "could not be written" in caplog.text


async def test_PB74_a_change_over_http_takes_effect_at_once(log):
    """What is switched off is not written from then on."""
    root, own, stream = logging.getLogger(), logging.getLogger(OWN_LOGGER), io.StringIO()
    handler = logging.StreamHandler(stream)
    root.addHandler(handler)
    extensions = Extensions(logs=LogSettings(handlers=[handler]))
    try:
        async with serving(log, extensions=extensions) as (_, session):
            own.warning("first")
            status, found = await ask(session, "POST", "/v2/logging", {"log_warning": False})
            assert (status, found["log_warning"], found["log_info"]) == (200, False, True)
            own.warning("second")
            own.error("third")
            assert (await ask(session, "GET", "/v2/logging")) == (200, found)
    finally:
        extensions.logs.close()
        root.removeHandler(handler)
    assert [line.split(": ")[-1] for line in stream.getvalue().splitlines()] == ["first", "third"]
