"""The gateway over HTTP, on a memory log with a worker that plays a script: routes, codes, tensors, limits."""

import asyncio
import json
import struct
import zlib

import pytest
from gateway_kit import (
    TOPOLOGY,
    Worker,
    echo,
    identity_config,
    make_topics,
    reply,
    running,
    serving,
    silent,
    until,
)
from headrace.schemas import errors
from headrace.schemas.codec import decode_request
from headrace.schemas.errors import Reason
from headrace.schemas.headers import MAX_ID_BYTES
from headrace.schemas.infer import InferRequest, RequestedOutput
from headrace.schemas.record import (
    AVRO,
    CONTENT_TYPE,
    CORRELATION_ID,
    DEADLINE_MS,
    ID,
    MODEL_VERSION,
    PRIORITY,
    REPLY_TOPIC,
    SEQUENCE_END,
    SEQUENCE_ID,
    SEQUENCE_ID_TYPE,
    SEQUENCE_START,
    TIMEOUT_US,
    TRACEPARENT,
)
from headrace.schemas.tensor import Datatype, Tensor
from headrace.streams.cancels import read_cancel
from headrace.streams.gateway import GatewaySettings
from headrace.streams.memory import MemoryLog
from headrace.streams.status import ModelState, QueueStatus, VersionStatus
from yarl import URL

INFER = "/v2/models/echo/infer"


@pytest.fixture
def log():
    return MemoryLog()


def body(*rows, **more):
    data = [list(row) for row in rows] or [[1.0, 2.0]]
    tensor = {
        "name": "INPUT0",
        "shape": [len(data), len(data[0])],
        "datatype": "FP32",
        "data": data,
    }
    return {"inputs": [tensor], **more}


async def post(session, payload, path=INFER, **how):
    how |= {"json": payload} if not isinstance(payload, bytes) else {"data": payload}
    async with session.post(path, **how) as response:
        text = await response.read()
        try:
            return response.status, json.loads(text), response.headers
        except ValueError:
            return response.status, text, response.headers


async def get(session, path):
    async with session.get(path) as response:
        return response.status, await response.read(), response.headers


async def test_a_json_request_travels_to_the_worker_and_back(log):
    """SEMANTICS PB-40…PB-43; R5: the id is the request's."""
    async with running(Worker(log)) as worker, serving(log) as (gateway, session):
        status, answer, headers = await post(session, body([1, 2], [3, 4], id="my id"))
        assert (status, headers["Content-Type"]) == (200, "application/json")
        assert answer == {
            "id": "my id",
            "model_name": "echo",
            "model_version": "1",
            "outputs": [
                {"name": "OUTPUT0", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]}
            ],
        }
        found = dict(worker.seen[0].headers)
        assert found[CONTENT_TYPE] == b"application/vnd.headrace.v2+avro"
        assert found[REPLY_TOPIC] == TOPOLOGY.replies.encode()
        assert found[ID] == b"my id"
        assert len(found[CORRELATION_ID]) == 16
        assert int(found[DEADLINE_MS]) > worker.seen[0].timestamp
        assert worker.seen[0].key is None
        assert gateway.open_calls == 0


async def test_R5_the_answers_id_is_the_requests_even_if_the_worker_says_another(log):
    def liar(request, record):
        return echo(request.__class__(request.inputs, id="other"), record)

    async with running(Worker(log, script=liar)), serving(log) as (_, session):
        assert (await post(session, body(id="mine")))[1]["id"] == "mine"
        assert "id" not in (await post(session, body()))[1]


async def test_a_trace_context_that_is_no_text_goes_along_as_it_is(log):
    """Sent by hand: clients refuse to send such bytes."""
    async with running(Worker(log)) as worker, serving(log) as (_, session):
        url = session._base_url
        content = json.dumps(body()).encode()
        head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n".encode()
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(head + b"traceparent: \xff\xfe\r\nConnection: close\r\n\r\n" + content)
        async with asyncio.timeout(10):
            answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200 ")
        (record,) = worker.seen
        assert dict(record.headers)[TRACEPARENT] == b"\xff\xfe"


async def test_TC02_PB47_parameters_become_record_headers(log):
    async with running(Worker(log)) as worker, serving(log) as (_, session):
        parameters = {
            "sequence_id": 7,
            "sequence_start": True,
            "sequence_end": True,
            "priority": 2,
            "timeout": 5_000,
            "custom": "x",
        }
        trace = {TRACEPARENT: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
        path = "/v2/models/echo/versions/01/infer"
        status, _, _ = await post(session, body(parameters=parameters), path=path, headers=trace)
        assert status == 200
        (record,) = worker.seen
        found = dict(record.headers)
        assert record.key == b"7"
        assert found[SEQUENCE_ID] == b"7"
        assert found[SEQUENCE_ID_TYPE] == b"uint64"
        assert (found[SEQUENCE_START], found[SEQUENCE_END]) == (b"true", b"true")
        assert (found[PRIORITY], found[TIMEOUT_US]) == (b"2", b"5000")
        assert found[MODEL_VERSION] == b"1"
        assert found[TRACEPARENT] == trace[TRACEPARENT].encode()


async def test_records_of_one_sequence_share_a_partition_and_others_spread(log):
    async with running(Worker(log)) as worker, serving(log) as (_, session):
        for _ in range(4):
            await post(session, body(parameters={"sequence_id": "s"}))
        assert len({record.partition for record in worker.seen}) == 1
        worker.seen.clear()
        for _ in range(4):
            await post(session, body())
        assert [record.partition for record in worker.seen].count(0) == 2


def binary_request(data, shape, datatype="FP32", **output):
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "INPUT0",
                    "shape": shape,
                    "datatype": datatype,
                    "parameters": {"binary_data_size": len(data)},
                }
            ],
            "outputs": [{"name": "OUTPUT0", "parameters": output}],
        }
    ).encode()
    return head + data, {"Inference-Header-Content-Length": str(len(head))}


async def test_BN01_BN05_binary_in_and_out(log):
    async with running(Worker(log)), serving(log) as (_, session):
        data = struct.pack("<2f", 1.5, -2.5)
        payload, headers = binary_request(data, [1, 2], binary_data=True)
        status, answer, got = await post(session, payload, headers=headers)
        assert (status, got["Content-Type"]) == (200, "application/octet-stream")
        length = int(got["Inference-Header-Content-Length"])
        assert answer[length:] == data
        document = json.loads(answer[:length])
        assert document["outputs"][0]["parameters"] == {"binary_data_size": 8}
        payload, headers = binary_request(data, [1, 2])
        status, answer, got = await post(session, payload, headers=headers)
        assert answer["outputs"][0]["data"] == [1.5, -2.5]
        assert "Inference-Header-Content-Length" not in got


async def test_BN04_binary_data_output_reaches_only_outputs_that_are_not_listed(log):
    async with running(Worker(log)), serving(log) as (_, session):
        asked = {"binary_data_output": True}
        _, _, got = await post(session, body(parameters=asked))
        assert got["Content-Type"] == "application/octet-stream"
        _, _, got = await post(session, body(parameters=asked, outputs=[{"name": "OUTPUT0"}]))
        assert got["Content-Type"] == "application/json"


async def test_BN07_a_raw_body_is_the_sole_inputs_data(log):
    async with running(Worker(log)), serving(log) as (_, session):
        data = struct.pack("<3f", 1, 2, 3)
        status, answer, got = await post(
            session, data, headers={"Inference-Header-Content-Length": "0"}
        )
        assert status == 200
        length = int(got["Inference-Header-Content-Length"])
        assert answer[length:] == data
        assert json.loads(answer[:length])["outputs"][0]["shape"] == [1, 3]


@pytest.mark.parametrize("length", ["-1", "x", "99999", "1" * 30, ""])
def test_BN01_an_impossible_header_length_is_400(length):
    async def run():
        log = MemoryLog()
        async with running(Worker(log)), serving(log) as (_, session):
            headers = {"Inference-Header-Content-Length": length}
            status, answer, _ = await post(session, b'{"inputs":[]}', headers=headers)
            assert status == 400
            assert answer["error"]

    asyncio.run(run())


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_BN08_bodies_are_decompressed_and_answers_compressed(log, encoding):
    async with running(Worker(log)), serving(log) as (_, session):
        wbits = {"gzip": 31, "deflate": 15}[encoding]
        fold = zlib.compressobj(wbits=wbits)
        plain = json.dumps(body([0.0] * 5_000)).encode()
        payload = fold.compress(plain) + fold.flush()
        headers = {"Content-Encoding": encoding, "Accept-Encoding": encoding}
        async with session.post(INFER, data=payload, headers=headers) as response:
            assert response.status == 200
            assert response.headers["Content-Encoding"] == encoding
            assert int(response.headers["Content-Length"]) < 1_000
            assert (await response.json())["outputs"][0]["shape"] == [1, 5_000]


async def test_BN08_another_encoding_is_501_and_says_what_is_accepted(log):
    async with running(Worker(log)), serving(log) as (_, session):
        status, answer, headers = await post(session, b"x", headers={"Content-Encoding": "br"})
        assert (status, headers["Accept-Encoding"]) == (501, "gzip, deflate")
        assert "gzip" in answer["error"]


async def test_PB24_bodies_above_the_limit_are_400_however_they_come(log):
    async with running(Worker(log)) as worker, serving(log, max_input_bytes=2_000) as (_, session):
        plain = json.dumps(body([0.0] * 5_000)).encode()

        async def chunks():
            for at in range(0, len(plain), 500):
                yield plain[at : at + 500]

        for payload, headers in (
            (plain, {}),
            (chunks(), {}),
            (zlib.compress(plain), {"Content-Encoding": "deflate"}),
        ):
            async with session.post(INFER, data=payload, headers=headers) as response:
                assert response.status == 400
                assert "--http-max-input-size" in (await response.json())["error"]
        assert (await post(session, body()))[0] == 200
        assert len(worker.seen) == 1


@pytest.mark.parametrize("route", ["infer", "generate", "generate_stream"])
async def test_PB24_a_tensor_above_the_limit_is_400_though_its_json_is_below(log, route):
    """Two bytes of text are four of FP32."""
    bounds = {"max_input_bytes": 2_000}
    async with running(Worker(log)) as worker, serving(log, **bounds) as (gateway, session):
        values = [1] * 500
        fits, above = (
            json.dumps(
                body(row) if route == "infer" else {"INPUT0": row}, separators=(",", ":")
            ).encode()
            for row in (values, [*values, 1])
        )
        assert len(above) < 2_000
        path = f"/v2/models/echo/{route}"
        assert (await post(session, fits, path))[0] == 200
        status, answer, _ = await post(session, above, path)
        assert status == 400
        assert answer["error"] == (
            "input 'INPUT0' has 2004 bytes, which exceeds the maximum allowed value of 2000 bytes. "
            "Use --http-max-input-size to increase the limit."
        )
        assert len(worker.seen) == 1
        assert gateway.open_calls == 0


async def test_an_expected_continue_is_answered(log):
    async with (
        running(Worker(log)),
        serving(log) as (_, session),
        session.post(INFER, json=body(), expect100=True) as response,
    ):
        assert response.status == 200


def exact(session, path):
    return URL(f"{session._base_url.origin()}{path}", encoded=True)


@pytest.mark.parametrize(
    ("method", "path", "status", "error"),
    [
        ("GET", "/v2/", 404, "Not Found"),
        ("GET", "/v2/models/echo/", 404, "Not Found"),
        ("GET", "/v2/models/echo/versions/x", 404, "Not Found"),
        ("GET", "/nothing", 404, "Not Found"),
        ("POST", "/v2/health/live", 405, "Method Not Allowed"),
        ("GET", "/v2/models/echo/infer", 405, "Method Not Allowed"),
        ("DELETE", "/v2/models/echo", 405, "Method Not Allowed"),
        ("GET", "/v2/models/nope", 404, "Request for unknown model: 'nope' is not found"),
        ("GET", "/v2/models/nope/config", 404, "'nope' is not found, known models: bad, echo"),
        ("GET", "/v2/models/echo/versions/9/config", 404, "'echo' version 9 is not found"),
        ("POST", "/v2/models/nope/infer", 404, "'nope' is not found"),
        ("POST", "/v2/models/echo/versions/4/infer", 404, "version 4 is not found"),
        ("POST", "/v2/models/bad/infer", 404, "'bad' has no available versions"),
        ("POST", "/v2/models/bad/versions/1/infer", 503, "is not at ready state"),
        ("POST", "/v2/repository/models/echo/load", 503, "is not allowed if polling is enabled"),
        ("POST", "/v2/repository/models/echo/unload", 503, "is not allowed if polling is enabled"),
        ("POST", "/v2/repository/models/%20/load", 400, "Model name cannot be empty"),
        ("POST", "/v2/repository/models/%2E%2E/load", 400, "must not contain path traversal"),
        ("POST", "/v2/repository/models/a%2Fb/load", 400, "must not contain path traversal"),
        ("POST", "/v2/repository/models/%2E%2E/unload", 503, "if polling is enabled"),
        ("POST", "/v2/repository/r/models/m/load", 501, "not offered"),
        ("GET", "/v2/cudasharedmemory/status", 501, "shared memory"),
    ],
)
async def test_PB20_PB33_MC01_MR14_codes_and_texts(log, method, path, status, error):
    """Also B77 and R6: an unknown model is a typed answer that lists the known ones."""
    bad = Worker(log, model="bad")
    await make_topics(log, "bad")
    await bad.announce(versions=(VersionStatus(1, ModelState.UNAVAILABLE, "broken"),))
    async with (
        running(Worker(log)),
        serving(log) as (_, session),
        # As written: a client would take ``%2E%2E`` for a step up.
        session.request(method, exact(session, path), data=b"not even json") as response,
    ):
        assert response.status == status
        assert response.content_type == "application/json"
        assert error in (await response.json())["error"]


async def test_health_models_metadata_and_config(log):
    """SEMANTICS PB-02, PB-03, PB-60, PB-61, PB-62, SV-05, SV-06."""
    worker = Worker(log, versions={1: identity_config(), 2: identity_config()})
    async with running(worker), serving(log) as (_, session):
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/echo/ready"):
            assert (await get(session, path))[:2] == (200, b"")
        assert (await get(session, "/v2/models/echo/versions/3/ready"))[:2] == (404, b"")
        server = json.loads((await get(session, "/v2"))[1])
        assert server["name"] == "headrace"
        assert "binary_tensor_data" in server["extensions"]
        shown = json.loads((await get(session, "/v2/models/echo"))[1])
        assert shown == {
            "name": "echo",
            "versions": ["1", "2"],
            "platform": "identity",
            "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [-1, -1]}],
            "outputs": [{"name": "OUTPUT0", "datatype": "FP32", "shape": [-1, -1]}],
        }
        one = json.loads((await get(session, "/v2/models/echo/versions/1"))[1])
        assert one["versions"] == ["1"]
        config = json.loads((await get(session, "/v2/models/echo/config"))[1])
        assert config == identity_config()


async def test_SV02_a_failed_model_makes_the_server_not_ready_unless_told_otherwise(log):
    bad = Worker(log, model="bad")
    await make_topics(log, "bad")
    await bad.announce(versions=(VersionStatus(1, ModelState.UNAVAILABLE, "broken"),))
    async with running(Worker(log)):
        async with serving(log) as (_, session):
            assert (await get(session, "/v2/health/ready"))[:2] == (400, b"")
            assert (await get(session, "/v2/models/bad/versions/1/ready"))[:2] == (503, b"")
            assert (await post(session, body()))[0] == 200
        async with serving(log, GatewaySettings(strict_readiness=False)) as (_, session):
            assert (await get(session, "/v2/health/ready"))[0] == 200


async def test_PB63_PB38_the_index(log):
    async with running(Worker(log)), serving(log) as (_, session):
        path = "/v2/repository/index"
        everything = [{"name": "echo", "version": "1", "state": "READY"}]
        for payload in (b"", b"{}", b'{"ready":true}'):
            assert (await post(session, payload, path=path))[:2] == (200, everything)
        for payload, status in (
            (b'{"ready":1}', 400),
            (b"[" * 200_000, 400),
            (b"{", 500),
            (b"[]", 500),
        ):
            got, answer, _ = await post(session, payload, path=path)
            assert (got, bool(answer["error"])) == (status, True)


@pytest.mark.parametrize(
    ("change", "status", "fragment"),
    [
        (
            {"datatype": "INT32", "data": [[1, 2]]},
            400,
            "data-type is 'INT32', but model 'echo' expects 'FP32'",
        ),
        ({"shape": [2]}, 400, "unexpected shape for input 'INPUT0'"),
        ({"name": "NOPE"}, 400, "NOPE"),
        ({"shape": [1, 3]}, 500, "Shape does not match true shape of 'data' field"),
        ({"shape": [9, 2], "data": [[1, 2]] * 9}, 400, "batch-size must be <= 8"),
        ({"shape": [0, 2], "data": []}, 400, "batch-size must be >= 1"),
        ({"shape": [-1, 2]}, 500, "Unable to parse 'shape'"),
        ({"shape": "x"}, 500, "Unable to parse 'shape'"),
        ({"data": [["a", "b"]]}, 500, "data"),
        ({"datatype": "FP99"}, 400, "FP99"),
        ({"parameters": {"binary_data_size": 8}}, 400, "exactly one"),
    ],
)
async def test_B53_PB34_bad_inputs_never_enter_the_log(log, change, status, fragment):
    async with running(Worker(log)) as worker, serving(log) as (gateway, session):
        payload = body()
        payload["inputs"][0] |= change
        got, answer, _ = await post(session, payload)
        assert got == status
        assert fragment in answer["error"]
        assert all(not log.records(TOPOLOGY.requests("echo"), p) for p in (0, 1))
        assert worker.seen == []
        assert gateway.open_calls == 0


@pytest.mark.parametrize(
    ("payload", "status", "fragment"),
    [
        (b"", 500, "failed to parse the request JSON buffer"),
        (b"{", 500, "failed to parse the request JSON buffer"),
        (b"\xff\xfe", 500, "failed to parse the request JSON buffer"),
        (b"[" * 100_000, 500, ""),
        (b"{}", 500, "inputs"),
        (b'{"inputs":3}', 500, "inputs"),
        (b'{"inputs":[]}', 400, "expected 1 inputs but got 0 inputs for model 'echo'"),
        (
            b'{"inputs":[%(x)s,%(x)s]}'
            % {b"x": b'{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}'},
            400,
            "already exists in request",
        ),
    ],
)
async def test_PB32_PB34_bodies_that_are_no_request(log, payload, status, fragment):
    async with running(Worker(log)) as worker, serving(log) as (_, session):
        got, answer, _ = await post(session, payload)
        assert got in (status, 400) if fragment == "" else got == status
        assert fragment in answer["error"]
        assert worker.seen == []


async def test_PB35_PB47_outputs_and_parameters_are_checked(log):
    async with running(Worker(log)) as worker, serving(log) as (_, session):
        for more, status, fragment in (
            ({"outputs": [{"name": "NOPE"}]}, 400, "unexpected inference output 'NOPE'"),
            ({"outputs": [{"name": "OUTPUT0"}] * 2}, 400, "already exists in request"),
            ({"parameters": {"triton_x": 1}}, 400, "triton_"),
            ({"parameters": {"x": [1]}}, 400, "'x'"),
            (
                {"outputs": [{"name": "OUTPUT0", "parameters": {"classification": -2}}]},
                500,
                "classification",
            ),
        ):
            got, answer, _ = await post(session, body(**more))
            assert got == status, answer
            assert fragment in answer["error"]
        edges = {"classification": 0, "binary_data": False}
        off = {"outputs": [{"name": "OUTPUT0", "parameters": edges}]}
        assert (await post(session, body(**off)))[0] == 200
        off["outputs"][0]["parameters"]["classification"] = 2
        assert (await post(session, body(**off)))[0] == 200
        # What the edge alone needs stays out of the record, so that a model's records keep one layout; and so do the
        # names of all outputs, which is what no names mean.
        values, classes = (
            decode_request(record.value, AVRO, record.headers) for record in worker.seen
        )
        assert values.outputs == ()
        assert classes.outputs == (RequestedOutput("OUTPUT0", {"classification": 2}),)


async def test_B51_halves_are_refused_in_json_and_exact_in_binary(log):
    """FAULTS B51: subnormals and NaN payloads survive."""
    versions = {1: identity_config(datatype="TYPE_BF16")}
    async with running(Worker(log, versions=versions)), serving(log) as (_, session):
        payload = body()
        payload["inputs"][0]["datatype"] = "BF16"
        status, answer, _ = await post(session, payload)
        assert status == 400
        assert "binary" in answer["error"]
        bits = struct.pack("<4H", 0x0001, 0x7FC1, 0xFF80, 0x8000)
        payload, headers = binary_request(bits, [1, 4], "BF16", binary_data=True)
        _, answer, got = await post(session, payload, headers=headers)
        assert answer[int(got["Inference-Header-Content-Length"]) :] == bits
        payload, headers = binary_request(bits, [1, 4], "BF16")
        status, answer, _ = await post(session, payload, headers=headers)
        assert status == 400
        assert "binary" in answer["error"]


async def test_B55_strings_survive_both_ways_and_a_broken_prefix_is_400(log):
    items = [b"", b"a", "é".encode(), b"\x00\xff", b"x" * 900_000]
    raw = b"".join(struct.pack("<I", len(item)) + item for item in items)
    versions = {1: identity_config(datatype="TYPE_STRING")}
    async with running(Worker(log, versions=versions)) as worker, serving(log) as (_, session):
        payload, headers = binary_request(raw, [1, 5], "BYTES", binary_data=True)
        _, answer, got = await post(session, payload, headers=headers)
        assert answer[int(got["Inference-Header-Content-Length"]) :] == raw
        text = body()
        text["inputs"][0] |= {"datatype": "BYTES", "shape": [1, 3], "data": ["", "a", "é"]}
        assert (await post(session, text))[1]["outputs"][0]["data"] == ["", "a", "é"]
        assert len(worker.seen) == 2
        for broken in (raw[:-1], b"\xff\xff\xff\xff", b"\x01\x00"):
            payload, headers = binary_request(broken, [1, 5], "BYTES")
            status, answer, _ = await post(session, payload, headers=headers)
            assert (status, "INPUT0" in answer["error"]) == (400, True)
        assert len(worker.seen) == 2


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.OutOfMemory("no memory for 8 rows"), 500),
        (errors.BackendError("it raised"), 500),
        (errors.WrongOutput("1 row for 3"), 500),
        (errors.InvalidRequest("no such row"), 400),
        (errors.QueueFull("Exceeds maximum queue size"), 503),
        (errors.DeadlineExceeded("Request timeout expired"), 503),
        (errors.DeadlineExceeded("too late", reason=Reason.DEADLINE_PASSED), 504),
        (errors.NotFound("version went away", reason=Reason.UNKNOWN_VERSION), 404),
        (errors.TooLarge("the request has 25 MB"), 413),
        (errors.TooLarge("the answer has 25 MB", reason=Reason.ANSWER_TOO_LARGE), 507),
    ],
)
async def test_R4_a_workers_error_keeps_its_code_and_text(log, error, status):
    async with running(Worker(log, script=lambda *_: error)), serving(log) as (_, session):
        got, answer, headers = await post(session, body())
        assert (got, answer["error"]) == (status, error.detail)
        assert ("Retry-After" in headers) == (status == 503)


async def test_an_answer_that_nobody_can_read_is_500_and_names_its_place(log):
    worker = Worker(log, script=silent)
    async with running(worker), serving(log) as (_, session):
        call = asyncio.create_task(post(session, body()))
        await until(lambda: worker.held)
        out = reply(worker.held[0], echo_of(worker.held[0]))
        out.value = b"\xff\xff"
        async with log.publisher() as publisher:
            await publisher.publish([out])
        status, answer, _ = await call
        assert status == 500
        assert TOPOLOGY.replies in answer["error"]


def echo_of(record):
    from headrace.schemas.avro import parse_request

    return echo(parse_request(record.value), record)


async def test_B63_R3_R4_each_call_has_its_own_deadline_and_late_replies_are_dropped(log):
    """FAULTS B63, R3, R4: 504 after 200 ms beside one that may take 5 s; the late reply is counted."""
    worker = Worker(log, script=silent)
    async with running(worker), serving(log) as (gateway, session):
        header = "X-Headrace-Timeout-Ms"
        slow = asyncio.create_task(post(session, body(id="slow"), headers={header: "5000"}))
        await until(lambda: len(worker.held) == 1)
        loop = asyncio.get_running_loop()
        started = loop.time()
        status, answer, _ = await post(session, body(id="quick"), headers={header: "200"})
        assert status == 504
        assert "deadline" in answer["error"]
        assert 0.15 < loop.time() - started < 2.0
        assert gateway.open_calls == 1
        async with log.publisher() as publisher:
            await publisher.publish([reply(record, echo_of(record)) for record in worker.held])
        assert (await slow)[0] == 200
        await until(lambda: gateway.late_replies == 1)
        assert gateway.open_calls == 0


async def test_B64_a_call_is_produced_once_whatever_becomes_of_it(log):
    worker = Worker(log, script=silent)
    async with running(worker), serving(log) as (_, session):
        status, _, _ = await post(session, body(), headers={"X-Headrace-Timeout-Ms": "50"})
        assert status == 504
        assert (await get(session, "/v2/health/live"))[0] == 200
        assert len(worker.seen) == 1


@pytest.mark.parametrize("value", ["0", "-5", "x", "1.5", "9" * 30, ""])
async def test_a_senseless_timeout_header_is_400_and_named(log, value):
    async with running(Worker(log)), serving(log) as (_, session):
        status, answer, _ = await post(session, body(), headers={"X-Headrace-Timeout-Ms": value})
        assert status == 400
        assert "X-Headrace-Timeout-Ms" in answer["error"]


async def test_PB49_B64_a_closed_connection_becomes_a_cancel_record(log):
    worker = Worker(log, script=silent)
    async with running(worker), serving(log) as (gateway, session):
        call = asyncio.create_task(post(session, body()))
        await until(lambda: worker.held)
        call.cancel()
        await until(lambda: log.records(TOPOLOGY.cancels, 0))
        (record,) = log.records(TOPOLOGY.cancels, 0)
        cancel = read_cancel(record)
        assert cancel.model == "echo"
        assert cancel.correlation_id == dict(worker.held[0].headers)[CORRELATION_ID]
        assert (gateway.open_calls, gateway.abandoned) == (0, 1)


async def test_QT01_KX02_a_full_queue_is_refused_before_the_log_with_the_requests_id(log):
    worker = Worker(log)
    async with running(worker), serving(log) as (gateway, session):
        await worker.announce(queues=(QueueStatus(0, 4, 4),))
        await until(lambda: gateway.route("echo", "").load(0).is_full)
        for more, prefix in (({"id": "a"}, "a"), ({}, "<id_unknown>")):
            status, answer, headers = await post(session, body(**more))
            assert (status, headers["Retry-After"]) == (503, "1")
            assert answer["error"] == f"[request id: {prefix}] Exceeds maximum queue size"
        assert worker.seen == []
        await worker.announce(queues=(QueueStatus(0, 3, 4),))
        await until(lambda: not gateway.route("echo", "").load(0).is_full)
        assert (await post(session, body()))[0] == 200
        assert gateway.refused[Reason.QUEUE_FULL] == 2


async def test_open_calls_are_bounded(log):
    worker = Worker(log, script=silent)
    async with running(worker), serving(log, GatewaySettings(max_pending=2)) as (_, session):
        calls = [asyncio.create_task(post(session, body())) for _ in range(2)]
        await until(lambda: len(worker.held) == 2)
        status, answer, headers = await post(session, body())
        assert (status, headers["Retry-After"]) == (503, "1")
        assert "max_pending" in answer["error"]
        for call in calls:
            call.cancel()


async def test_DC01_a_decoupled_model_is_501(log):
    versions = {1: identity_config(model_transaction_policy={"decoupled": True})}
    async with running(Worker(log, versions=versions)), serving(log) as (_, session):
        status, answer, _ = await post(session, body())
        assert status == 501
        assert "doesn't support models with decoupled transaction policy" in answer["error"]


async def test_B57_a_request_that_no_record_can_hold_is_413_and_names_the_option(log):
    settings = GatewaySettings(max_record_bytes=1_000)
    async with running(Worker(log)) as worker, serving(log, settings) as (gateway, session):
        status, answer, _ = await post(session, body([0.0] * 1_000))
        assert status == 413
        assert "max.request.size, before compression" in answer["error"]
        assert (await post(session, body()))[0] == 200
        assert len(worker.seen) == 1
        assert gateway.open_calls == 0


async def test_B57_a_request_that_no_record_can_hold_is_refused_by_its_size_alone(log):
    """Its tensors are not looked into: a walk over the elements of BYTES takes its time."""
    settings = GatewaySettings(max_record_bytes=1_000)
    async with running(Worker(log)) as worker, serving(log, settings) as (gateway, _):
        broken = Tensor("INPUT0", Datatype.FP32, (1, 2), b"\0" * 1_001)
        with pytest.raises(errors.TooLarge, match="1001 bytes"):
            await gateway.infer("echo", "", InferRequest((broken,)))
        assert worker.seen == []


async def test_B53_an_id_that_no_answer_can_hold_is_400_and_never_enters_the_log(log):
    async with running(Worker(log)) as worker, serving(log) as (gateway, session):
        status, answer, _ = await post(session, body(id="x" * (MAX_ID_BYTES + 1)))
        assert status == 400
        assert "the id has 8193 characters, expected at most 8192 bytes" in answer["error"]
        assert gateway.refused[Reason.INVALID_HEADER] == 1
        longest = "x" * MAX_ID_BYTES
        assert (await post(session, body(id=longest)))[1]["id"] == longest
        assert len(worker.seen) == 1


async def test_a_request_that_cannot_be_produced_is_503(log):
    async with running(Worker(log)), serving(log) as (gateway, session):
        log.fail_produce(retriable=True)
        status, answer, headers = await post(session, body())
        assert (status, headers["Retry-After"]) == (503, "1")
        assert "could not be produced" in answer["error"]
        assert (await post(session, body()))[0] == 200
        assert gateway.open_calls == 0


async def test_SV10_B68_shutdown_refuses_new_calls_answers_open_ones_and_then_closes(log):
    """FAULTS B68: not ready first, sockets last; SEMANTICS SV-01, SV-11."""
    worker = Worker(log, script=silent)
    async with running(worker):
        leave = asyncio.Event()

        async def serve(started):
            async with serving(log) as found:
                started.set_result(found)
                await leave.wait()

        started = asyncio.get_running_loop().create_future()
        server = asyncio.create_task(serve(started))
        gateway, session = await started
        call = asyncio.create_task(post(session, body()))
        await until(lambda: worker.held)
        draining = asyncio.create_task(gateway.drain(10))
        await until(lambda: gateway.is_draining)
        for path in ("/v2/health/live", "/v2/health/ready"):
            status, text, _ = await get(session, path)
            assert (status, json.loads(text)) == (503, {"error": "Server exiting"})
        assert (await get(session, "/v2/models/echo/ready"))[0] == 503
        status, answer, _ = await post(session, body())
        assert status == 503
        assert answer["error"].startswith("Server is stopping, scheduler for model has stopped")
        assert not draining.done()
        async with log.publisher() as publisher:
            await publisher.publish([reply(worker.held[0], echo_of(worker.held[0]))])
        assert (await call)[0] == 200
        assert await draining is True
        leave.set()
        await server


async def test_B68_an_open_call_ends_with_503_when_the_budget_is_spent(log):
    worker = Worker(log, script=silent)
    async with running(worker):
        async with serving(log, drain_timeout_s=0.05) as (gateway, session):
            call = asyncio.create_task(gateway.infer("echo", "", request_of(body())))
            await until(lambda: worker.held)
            assert session is not None
        with pytest.raises(errors.Unavailable, match="Server is stopping"):
            await call


def request_of(payload):
    from headrace.schemas.v2json import parse_request

    return parse_request(json.dumps(payload).encode(), None)
