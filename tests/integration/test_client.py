"""`headrace.streams.client` with a real worker: one pass on each log and in threads, the rest in memory."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from headrace.schemas.codec import encode_request
from headrace.schemas.errors import (
    BackendError,
    ConfigError,
    DeadlineExceeded,
    InvalidRequest,
    LogError,
    NotFound,
    Reason,
    Unavailable,
    Unsupported,
)
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import PROTOBUF, TP, Out
from headrace.schemas.tensor import Tensor
from headrace.streams.client import Client, SyncClient
from headrace.streams.kafka import KafkaLog
from headrace.streams.memory import MemoryLog
from headrace.streams.topology import Topology
from service_kit import Producer, Service, until, working
from service_kit import loaded as loading

EXAMPLES = Path(__file__).parents[2] / "examples" / "models"
SLOW = """
backend: "identity"
input [{ name: "x" data_type: TYPE_FP32 dims: [1] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [1] }]
parameters { key: "error_if" value { string_value: "13" } }
parameters { key: "block_if" value { string_value: "7" } }
parameters { key: "block_until_file" value { string_value: "%s" } }
"""


def new_topology() -> Topology:
    return Topology(prefix=f"t{uuid.uuid4().hex[:8]}", partitions=2, reply_partitions=2)


@asynccontextmanager
async def served(log, topology: Topology, root: Path = EXAMPLES) -> AsyncIterator[Service]:
    """Run a worker of a repository."""
    async with loading(root) as repository, working(log, repository, topology) as service:
        yield service


@asynccontextmanager
async def clients(root: Path = EXAMPLES, **options) -> AsyncIterator[tuple[Client, Service]]:
    """A worker and a client of it, in memory."""
    topology = new_topology()
    async with (
        MemoryLog() as log,
        served(log, topology, root) as service,
        Client(log, prefix=topology.prefix, **options) as client,
        asyncio.timeout(60),
    ):
        yield client, service


@pytest.fixture
def slow_root(tmp_path: Path) -> Path:
    """A model that waits for the file ``go`` where it is asked about 7, and fails for 13."""
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    config = tmp_path / "models" / "m" / "config.pbtxt"
    config.write_text(SLOW % (tmp_path / "go"), encoding="utf-8")
    return tmp_path / "models"


# One pass over everything, on each log.


async def test_a_client_asks_streams_steps_and_reads_results(logs):
    topology = new_topology()
    async with (
        logs.open() as log,
        served(log, topology),
        Client(log, prefix=topology.prefix) as client,
        asyncio.timeout(100),
    ):
        assert client.models() == ["each", "echo", "total"]
        answers = await asyncio.gather(
            *(client.infer("echo", {"x": [[n, n + 0.5]]}) for n in range(20))
        )
        assert [answer["y"].tolist() for answer in answers] == [[[n, n + 0.5]] for n in range(20)]
        assert answers[0]["y"].dtype == np.float32
        assert answers[0].response.id == ""  # R10: none was sent, none is invented
        named = await client.infer("echo", {"x": [[1]]}, id="mine", version="1")
        assert (named.response.id, named.response.model_version) == ("mine", "1")

        keyed = [await client.infer("echo", {"x": [[2]]}, key="k") for _ in range(2)]
        assert [answer.is_replayed for answer in keyed] == [False, True]

        streamed = [a async for a in client.stream("each", {"x": [[5, 6, 7]]})]
        assert [a["y"].tolist() for a in streamed] == [[[5]], [[6]], [[7]]]
        assert [a.final for a in streamed] == [False, False, True]

        async with client.sequence("total") as steps:
            sums = [(await steps.infer({"x": [[n]]}))["sum"].item() for n in (1, 2, 3)]
        assert sums == [1, 3, 6]

        async with client.results("echo") as results:
            await client.send("echo", {"x": [[3]]}, id="a", key="once")
            await client.send("echo", {"x": [[4]]}, id="b")
            found = [await anext(results), await anext(results)]
        assert {r.answer().response.id: r.answer()["y"].item() for r in found} == {
            "a": 3.0,
            "b": 4.0,
        }
        assert all(r.source.startswith(topology.requests("echo")) for r in found)


@pytest.mark.embedded
async def test_a_program_without_a_loop_has_the_same_names(embedded_properties):
    """Called from threads side by side; also what is closed while somebody waits."""
    topology = new_topology()
    bootstrap = embedded_properties["bootstrap.servers"]

    def work() -> None:
        with SyncClient(bootstrap, prefix=topology.prefix, timeout_s=30) as client:
            assert client.models() == ["each", "echo", "total"]
            got: dict[int, float] = {}

            def ask(n: int) -> None:
                got[n] = client.infer("echo", {"x": [[n]]})["y"].item()

            threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert got == {n: float(n) for n in range(8)}

            values = [a["y"].item() for a in client.stream("each", {"x": [[5, 6]]})]
            assert values == [5, 6]
            for answer in client.stream("each", {"x": [[8, 9]]}):
                assert answer["y"].item() == 8
                break

            with client.sequence("total", "seven") as steps:
                sums = [steps.infer({"x": [[n]]})["sum"].item() for n in (1, 2)]
                last = steps.infer({"x": [[3]]}, end=True)["sum"].item()
                assert (steps.id, steps.is_live) == ("seven", False)
            assert (sums, last) == ([1, 3], 6)

            with client.results("echo") as results:
                client.send("echo", {"x": [[4]]}, id="r")
                assert next(results).answer().response.id == "r"

            with pytest.raises(NotFound, match="known models: each, echo, total"):
                client.infer("ecko", {"x": [[1]]})
            endless = client.results("echo")

            def drain() -> None:
                try:
                    got[-1] = len(list(endless))
                except Unavailable:  # where the client was closed before it began
                    got[-1] = 0

            waiting = threading.Thread(target=drain)
            waiting.start()
        waiting.join()
        assert got[-1] == 0
        with pytest.raises(Unavailable, match="the client is not open"):
            client.infer("echo", {"x": [[1]]})

    async with KafkaLog(embedded_properties) as log, served(log, topology):
        await asyncio.to_thread(work)


# Errors by their kinds.


async def test_B77_an_unknown_model_is_a_typed_error_that_lists_the_known_ones():
    async with clients() as (client, _):
        for call in (client.infer, client.send):
            with pytest.raises(NotFound) as caught:
                await call("ecko", {"x": [[1]]})
            assert caught.value.reason is Reason.UNKNOWN_MODEL
            assert str(caught.value) == (
                "Request for unknown model: 'ecko' is not found, known models: each, echo, total"
            )
        with pytest.raises(NotFound, match="version 7 is not found"):
            await client.infer("echo", {"x": [[1]]}, version="7")


async def test_B77_a_record_that_names_another_model_hears_whose_topic_it_is_on():
    """The route is the topic, and the answer says it: the request's coordinates, model and version."""
    tensor = Tensor.from_numpy("x", np.float32([[1]]))
    request = InferRequest((tensor,), model_name="ecko")
    async with clients() as (client, service):
        topic = service.topology.requests("echo")
        async with client.results("echo") as results:
            value, headers = encode_request(request, PROTOBUF)
            (source,) = await Producer(service.log, {}).send(
                [Out(topic, 1, None, value, list(headers))]
            )
            result = await anext(results)
    assert isinstance(result.error, NotFound)
    assert "'ecko' is not found, the model of this topic is 'echo'" in str(result.error)
    assert result.source == source
    assert dict(result.record.headers)["model-name"] == b"echo"
    with pytest.raises(NotFound):
        result.answer()


async def test_what_a_model_cannot_take_is_refused_before_it_is_sent():
    async with clients() as (client, service):
        for inputs, text in (
            ({"x": [[1.0]], "z": [1]}, "expected 1 inputs but got 2 inputs"),
            ({"x": [1.0]}, r"unexpected shape for input 'x'"),
            ({"x": [["one"]]}, "input 'x' takes FP32 elements"),
        ):
            with pytest.raises(InvalidRequest, match=text):
                await client.infer("echo", inputs)
        with pytest.raises(Unsupported, match="decoupled"):
            await client.infer("each", {"x": [[1]]})
        topic = service.topology.requests("echo")
        assert not any(service.log.existing(TP(topic, n)).end for n in range(2))


async def test_a_worker_s_error_and_a_passed_deadline_are_raised_by_their_kind(slow_root: Path):
    async with clients(slow_root) as (client, _):
        with pytest.raises(BackendError):
            await client.infer("m", {"x": [13]})
        with pytest.raises(DeadlineExceeded) as caught:
            await client.infer("m", {"x": [7]}, timeout_s=0.2)
        assert caught.value.reason is Reason.DEADLINE_PASSED
        (slow_root.parent / "go").touch()


async def test_calls_beyond_the_bound_wait_for_their_turn(slow_root: Path):
    """Also until their own deadline."""
    async with clients(slow_root, max_in_flight=1) as (client, _):
        first = asyncio.create_task(client.infer("m", {"x": [7]}))
        await until(lambda: "1 open" in repr(client))
        with pytest.raises(DeadlineExceeded):
            await client.infer("m", {"x": [1]}, timeout_s=0.1)
        second = asyncio.create_task(client.infer("m", {"x": [2]}))
        (slow_root.parent / "go").touch()
        assert (await first)["y"].item() == 7
        assert (await second)["y"].item() == 2


async def test_what_is_open_when_the_client_closes_ends_with_unavailable(slow_root: Path):
    async with clients(slow_root) as (client, _):
        asking = asyncio.create_task(client.infer("m", {"x": [7]}))
        reading = asyncio.create_task(anext(client.results("m"), None))
        await until(lambda: "1 open" in repr(client))
        await client.__aexit__(None, None, None)
        with pytest.raises(Unavailable):
            await asking
        assert await reading is None
        with pytest.raises(Unavailable, match="the client is not open"):
            await client.infer("m", {"x": [1]})
        (slow_root.parent / "go").touch()


async def test_no_broker_and_wrong_words_are_one_sentence():
    with pytest.raises(LogError, match="no Kafka broker can be used"):
        async with Client("127.0.0.1:1"):
            pass
    with pytest.raises(LogError, match="no Kafka broker can be used"), SyncClient("127.0.0.1:1"):
        pass
    with pytest.raises(ConfigError, match="prefix"):
        SyncClient("127.0.0.1:1", prefix="a b")


# Streams.


async def test_GR05_a_stream_that_is_left_early_leaves_a_cancel_and_its_turn():
    async with clients(max_in_flight=1) as (client, _):
        async with aclosing(client.stream("each", {"x": [[1, 2, 3]]})) as answers:
            assert (await anext(answers))["y"].item() == 1
        assert (await client.infer("echo", {"x": [[4]]}))["y"].item() == 4
        assert [a async for a in client.stream("each", {"x": [[]]})] == []


# Sequences.


async def test_a_sequence_ends_with_its_block_also_when_that_raises():
    async def fail(client: Client) -> None:
        async with client.sequence("total", 7) as steps:
            await steps.infer({"x": [[5]]})
            assert steps.is_live
            raise ZeroDivisionError

    async with clients() as (client, _):
        with pytest.raises(ZeroDivisionError):
            await fail(client)
        # It is over: a step without START is of no sequence.
        tensor = Tensor.from_numpy("x", np.int32([[1]]))
        with pytest.raises(InvalidRequest) as caught:
            await client.ask("total", InferRequest((tensor,), sequence_id=7))
        assert caught.value.reason is Reason.SEQUENCE_UNKNOWN
        async with client.sequence("total", 7) as steps:
            assert (await steps.infer({"x": [[2]]}))["sum"].item() == 2  # begins anew


async def test_a_block_without_a_step_sends_nothing_and_a_refused_step_is_none():
    async with clients() as (client, _):
        async with client.sequence("total") as steps:
            pass
        async with client.sequence("total") as steps:
            with pytest.raises(InvalidRequest, match="batch-size 1"):
                await steps.infer({"x": [[1], [2]]})
            assert not steps.is_live
            assert (await steps.infer({"x": [[4]]}))["sum"].item() == 4  # with START
            assert (await steps.infer({"x": [[5]]}, end=True))["sum"].item() == 9
            with pytest.raises(Unavailable, match="has ended"):
                await steps.infer({"x": [[1]]})
        with pytest.raises(NotFound):
            async with client.sequence("totals"):
                pass


async def test_steps_that_are_called_side_by_side_keep_their_order():
    async with clients() as (client, _), client.sequence("total") as steps:
        answers = await asyncio.gather(*(steps.infer({"x": [[n]]}) for n in range(1, 21)))
        assert [a["sum"].item() for a in answers] == [n * (n + 1) // 2 for n in range(1, 21)]


async def test_a_sequence_that_is_gone_is_not_ended_and_says_so():
    async with clients() as (client, _), client.sequence("total", 9) as steps:
        await steps.infer({"x": [[1]]})
        end = InferRequest(
            (Tensor.from_numpy("x", np.int32([[1]])),), sequence_id=9, sequence_end=True
        )
        await client.ask("total", end)  # somebody else ends it
        with pytest.raises(InvalidRequest) as caught:
            await steps.infer({"x": [[2]]})
        assert caught.value.reason is Reason.SEQUENCE_UNKNOWN
        assert not steps.is_live


# Results.


async def test_B103_the_same_payload_twice_without_an_id_has_two_results():
    async with clients() as (client, _), client.results("echo") as results:
        await client.send("echo", {"x": [[1]]})
        await client.send("echo", {"x": [[1]]})
        found = [await anext(results), await anext(results)]
        assert len({result.source for result in found}) == 2
        assert results.once.dropped == 0


async def test_a_result_that_is_written_twice_comes_once():
    async with clients() as (client, service):
        topic = service.topology.results("echo")
        async with client.results("echo") as results:
            for n in range(3):
                await client.send("echo", {"x": [[n]]})
            first = [(await anext(results)).record for _ in range(3)]
        copies = [Out(topic, r.partition, r.key, r.value, list(r.headers)) for r in first]
        await Producer(service.log, {}).send(copies)
        again = client.results(topic=topic, from_beginning=True, to_end=True)
        values = [result.answer()["y"].item() async for result in again]
        assert sorted(values) == [0.0, 1.0, 2.0]
        assert again.once.dropped == 3
        # A mapped model's results are records of its own kind: no errors, and no V2 responses.
        own = [("content-type", b"application/json"), ("status", b"OK"), ("source", b"a/0/1")]
        async with client.results("echo") as results:
            await Producer(service.log, {}).send([Out(topic, 0, None, b"0.5,0.7", own)])
            result = await anext(results)
        assert (result.error, result.record.value) == (None, b"0.5,0.7")
        with pytest.raises(BackendError, match="cannot be read"):
            result.answer()
        with pytest.raises(LogError, match="topic nowhere does not exist"):
            await anext(client.results(topic="nowhere"))
