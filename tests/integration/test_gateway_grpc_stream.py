"""ModelStreamInfer: order, errors on the stream, cancellation, bounds (SEMANTICS GR-02, GR-03, GR-05)."""

import asyncio
from dataclasses import dataclass, field

import grpc
import grpc.aio
import pytest
from gateway_kit import TOPOLOGY, Worker, echo, publish, reply, running, silent, until
from grpc_kit import floats, infer_request, serving_grpc
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import SEQUENCE_START
from headrace.streams.memory import MemoryLog
from tritonclient.grpc import service_pb2_grpc

Code = grpc.StatusCode
FINAL = "triton_final_response"


@pytest.fixture
def log():
    return MemoryLog()


async def heard(stream, count):
    """Return the next messages of a stream."""
    async with asyncio.timeout(10):
        return [await stream.read() for _ in range(count)]


async def answer_held(worker, index):
    """Answer a request that the worker held back."""
    record = worker.held[index]
    async with worker.log.publisher() as publisher:
        await publish(publisher, [reply(record, echo(worker.asked[index], record))])


@dataclass
class Holding(Worker):
    """Keeps every request, and remembers what was asked."""

    asked: list[InferRequest] = field(default_factory=list)

    def __post_init__(self):
        self.script = self._keep

    def _keep(self, request, _record):
        self.asked.append(request)


async def test_GR03_responses_come_with_the_final_flag_and_the_stream_ends_with_its_client(log):
    async with running(Worker(log)), serving_grpc(log) as served:
        stream = served.stub.ModelStreamInfer()
        for n in range(3):
            await stream.write(infer_request([float(n)], id=str(n)))
        await stream.done_writing()
        messages = await heard(stream, 4)
        assert messages.pop() is grpc.aio.EOF
        for n, message in enumerate(messages):
            assert message.error_message == ""
            response = message.infer_response
            assert (response.id, floats(response)) == (str(n), [float(n)])
            assert response.parameters[FINAL].bool_param is True
        assert await stream.code() is Code.OK


async def test_normal_responses_are_written_in_the_order_of_their_requests(log):
    """As Triton writes them, though requests are served side by side."""
    worker = Holding(log)
    async with running(worker), serving_grpc(log) as served:
        stream = served.stub.ModelStreamInfer()
        for n in range(3):
            await stream.write(infer_request([float(n)], id=str(n)))
        await until(lambda: len(worker.held) == 3)
        order = sorted(range(3), key=lambda i: worker.asked[i].id, reverse=True)
        for index in order:
            await answer_held(worker, index)
        messages = await heard(stream, 3)
        assert [message.infer_response.id for message in messages] == ["0", "1", "2"]
        stream.cancel()


async def test_the_steps_of_a_sequence_reach_the_log_in_the_order_sent(log):
    async with running(Worker(log)) as worker, serving_grpc(log) as served:
        stream = served.stub.ModelStreamInfer()
        count = 200
        for n in range(count):
            parameters = {"sequence_id": 7, "sequence_start": n == 0, "sequence_end": False}
            await stream.write(infer_request([0.0], id=str(n), parameters=parameters))
        await stream.done_writing()
        ids = [message.infer_response.id for message in await heard(stream, count)]
        assert ids == [str(n) for n in range(count)]
        records = [dict(record.headers) for record in worker.seen]
        assert [headers["id"].decode() for headers in records] == ids
        assert [n for n, headers in enumerate(records) if SEQUENCE_START in headers] == [0]


async def test_GR02_an_error_rides_on_the_stream_which_stays_open(log):
    """Whatever is wrong: the bytes' content, the model, the worker's answer."""
    async with running(Worker(log)), serving_grpc(log) as served:
        stream = served.stub.ModelStreamInfer()
        wrong = infer_request(id="wrong")
        wrong.inputs[0].datatype = "FP99"
        await stream.write(wrong)
        await stream.write(infer_request(id="unknown", model="nope", model_version="3"))
        await stream.write(infer_request(id="right"))
        first, second, third = await heard(stream, 3)
        assert "FP99" in first.error_message
        assert first.infer_response.id == "wrong"
        assert "Request for unknown model: 'nope' is not found" in second.error_message
        response = second.infer_response
        assert (response.id, response.model_name, response.model_version) == (
            "unknown",
            "nope",
            "3",
        )
        assert response.parameters[FINAL].bool_param is True
        assert (third.error_message, third.infer_response.id) == ("", "right")
        stream.cancel()


async def test_GR02_bytes_that_are_no_message_are_an_error_on_the_stream_too(log):
    async with running(Worker(log)), serving_grpc(log) as served:
        call = served.channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer", None, None
        )
        stream = call()
        await stream.write(b"\xff\xff")
        await stream.write(infer_request().SerializeToString())
        bad, good = await heard(stream, 2)
        assert b"inference.ModelInferRequest" in bad
        assert b"OUTPUT0" in good
        stream.cancel()


async def test_GR02_triton_grpc_error_ends_the_stream_with_a_real_status(log):
    """What else was asked on it is cancelled."""
    worker = Worker(log, script=silent)
    async with running(worker), serving_grpc(log) as served:
        stream = served.stub.ModelStreamInfer(metadata=(("triton_grpc_error", "true"),))
        await stream.write(infer_request(id="open"))
        await until(lambda: worker.held)
        other = served.stub.ModelStreamInfer(metadata=(("triton_grpc_error", "true"),))
        await other.write(infer_request(model="nope"))
        assert await other.code() is Code.NOT_FOUND
        assert "Request for unknown model: 'nope' is not found" in await other.details()
        assert served.gateway.open_calls == 1
        stream.cancel()
        await until(lambda: served.gateway.open_calls == 0)


async def test_GR05_a_cancelled_stream_cancels_all_its_requests(log):
    worker = Worker(log, script=silent)
    async with running(worker), serving_grpc(log) as served:
        stream = served.stub.ModelStreamInfer()
        for _ in range(3):
            await stream.write(infer_request())
        await until(lambda: len(worker.held) == 3)
        stream.cancel()
        await until(lambda: served.gateway.open_calls == 0)
        await until(lambda: served.gateway.abandoned == 3)
        await until(lambda: len(log.records(TOPOLOGY.cancels, 0)) == 3)


async def test_requests_of_a_stream_are_bounded_and_the_rest_waits_in_the_connection(log):
    worker = Holding(log)
    async with running(worker), serving_grpc(log, max_stream_requests=2) as served:
        stream = served.stub.ModelStreamInfer()
        for n in range(5):
            await stream.write(infer_request(id=str(n)))
        await until(lambda: len(worker.held) == 2)
        # Other calls go round meanwhile, and the stream takes no more.
        for _ in range(20):
            await asyncio.sleep(0)
        assert (len(worker.held), served.gateway.open_calls) == (2, 2)
        for n in range(5):
            await until(lambda n=n: len(worker.held) > n)
            await answer_held(worker, n)
        found = [message.infer_response.id for message in await heard(stream, 5)]
        assert found == [str(n) for n in range(5)]
        stream.cancel()


async def test_many_streams_are_open_at_once(log):
    """On one connection; each is answered again and again, and nothing is left of them when they have ended."""
    async with running(Worker(log)), serving_grpc(log) as served:
        streams = [served.stub.ModelStreamInfer() for _ in range(300)]
        for turn in range(2):
            for n, stream in enumerate(streams):
                await stream.write(infer_request([float(n + turn)]))
            for n, stream in enumerate(streams):
                (message,) = await heard(stream, 1)
                assert floats(message.infer_response) == [n + turn]
        for stream in streams:
            await stream.done_writing()
        for stream in streams:
            assert await stream.code() is Code.OK
        assert served.gateway.open_calls == 0


async def test_SV10_B68_a_stream_is_answered_and_then_ended_when_the_server_stops(log):
    worker = Holding(log)
    async with running(worker), serving_grpc(log) as served:
        stream = served.stub.ModelStreamInfer()
        idle = served.stub.ModelStreamInfer()
        await idle.write(infer_request(model="nope"))
        await heard(idle, 1)
        await stream.write(infer_request(id="last"))
        await until(lambda: worker.held)
        closing = asyncio.create_task(served.server.__aexit__(None, None, None))
        await until(lambda: served.gateway.is_draining)
        await answer_held(worker, 0)
        (message,) = await heard(stream, 1)
        assert message.infer_response.id == "last"
        assert await stream.code() is Code.UNAVAILABLE
        assert "Server is stopping" in await stream.details()
        assert await idle.code() is Code.UNAVAILABLE
        await closing


@pytest.mark.parametrize("ends", ["reads on", "goes"])
@pytest.mark.parametrize("has_said_all", [False, True])
async def test_a_client_that_takes_nothing_in_loses_its_stream(log, ends, has_said_all, caplog):
    """Its requests are cancelled and its responses dropped; it hears so where it reads on. Other streams go on."""
    worker = Worker(log)
    async with (
        running(worker),
        serving_grpc(log, write_timeout_s=0.3) as served,
        grpc.aio.insecure_channel(served.target, options=(("grpc.http2.bdp_probe", 0),)) as deaf,
    ):
        stream = service_pb2_grpc.GRPCInferenceServiceStub(deaf).ModelStreamInfer()
        for _ in range(3):
            await stream.write(infer_request([0.0] * 200_000))
        await until(lambda: len(worker.seen) == 3)
        if has_said_all:
            await stream.done_writing()
        else:
            worker.script = silent
            await stream.write(infer_request(id="open"))
            await until(lambda: served.gateway.abandoned == 1)
            worker.script = echo
        other = served.stub.ModelStreamInfer()
        for _ in range(2):  # its own messages are read
            await other.write(infer_request(id="fine"))
            (message,) = await heard(other, 1)
            assert message.infer_response.id == "fine"
            await asyncio.sleep(0.35)
        other.cancel()
        if ends == "reads on":
            (message,) = await heard(stream, 1)
            assert len(floats(message.infer_response)) == 200_000
            async with asyncio.timeout(10):
                assert await stream.code() is Code.UNAVAILABLE
                assert "nothing of this stream was read for 0.3 s" in await stream.details()
        stream.cancel()
        await until(lambda: not served.server._part.endings)
        assert served.gateway.open_calls == 0
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_P17_a_key_of_a_whole_stream_is_refused(log):
    """It says which one request is a repeat; to pass it over would break the caller's belief."""
    async with running(Worker(log)) as worker, serving_grpc(log) as served:
        stream = served.stub.ModelStreamInfer(metadata=(("idempotency-key", '"k"'),))
        assert await stream.code() is Code.INVALID_ARGUMENT
        assert "'idempotency-key' counts for one request" in await stream.details()
        assert worker.seen == []
