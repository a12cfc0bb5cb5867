"""Decoupled models end to end (SEMANTICS DC-01…DC-03): a worker with real threads, a gateway, HTTP, the memory log."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from types import MappingProxyType

import pytest
from decoupled_kit import TOPOLOGY, decoupled, record_of, request, stream, told
from headrace.schemas.codec import decode_response, encode_request
from headrace.schemas.errors import BackendError, InferError, Reason
from headrace.schemas.record import (
    REASON,
    REPLAYED,
    Out,
)
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import Log, Mode
from headrace.streams.memory import MemoryLog
from headrace.streams.topology import Topology
from service_kit import (
    Producer,
    Tap,
    committed,
    loaded,
    until,
    working,
)


async def test_DC01_a_response_for_each_element_and_the_last_is_final(tmp_path):
    """GR-03: 0..n responses in order; the offset is finished with the final one."""
    async with decoupled(tmp_path, responses="each") as service:
        assert await stream(service, 5, 6, 7) == [[5], [6], [7]]
        assert await stream(service, 5, empty_final=True) == [[5]]
        await until(lambda: service.settled("m"), "its offset is finished")
        assert service.gateway.open_calls == 0


async def test_DC02_zero_responses_are_an_end_in_the_log_and_nothing_for_a_reader(tmp_path):
    """Unless somebody asks for the empty final one."""
    async with decoupled(tmp_path, responses="each") as service:
        assert await stream(service) == []
        assert await stream(service, empty_final=True) == [[]]
        (source,) = await Producer(service.log, {}).send([record_of()])
        async with Tap(service.log, TOPOLOGY.results("m")) as tap:
            await tap.answered([source])
            assert [told(record) for record in tap.records] == [("OK", "0", "true")]


async def test_GR03_an_end_that_is_told_by_itself(tmp_path):
    """``empty_final``: as Triton's ``repeat`` backend, whose final flag comes alone."""
    async with decoupled(tmp_path, responses="each", empty_final="true") as service:
        assert await stream(service, 1, 2) == [[1], [2]]
        assert await stream(service, 1, 2, empty_final=True) == [[1], [2], []]


async def test_DC01_responses_leave_while_the_model_goes_on(tmp_path):
    """The first is read while the model waits for the test: at_least_once keeps nothing back."""
    gate = tmp_path / "gate"
    rest = {"responses": "each", "response_at": "1"}
    async with decoupled(tmp_path / "models", block_until_file=str(gate), **rest) as service:
        responses = service.gateway.stream("m", "", request(1, 2, 3))
        async with aclosing(responses):
            first, final = await anext(responses)
            assert (first.outputs[0].numpy().tolist(), final) == ([[1]], False)
            assert not service.settled("m")
            gate.touch()
            more = [(r.outputs[0].numpy().item(), final) async for r, final in responses]
        assert more == [(2, False), (3, True)]


async def test_GN05_an_error_in_the_middle_ends_the_stream_behind_its_responses(tmp_path):
    """Once, and it is kept as a dead letter, as any failure of a model is."""
    async with decoupled(tmp_path, responses="each", response_error_at="2") as service:
        found = []
        responses = service.gateway.stream("m", "", request(1, 2, 3, 4))
        async with aclosing(responses):
            found += [
                (await anext(responses)).response.outputs[0].numpy().item() for _ in range(2)
            ]
            with pytest.raises(BackendError, match="response 2"):
                await anext(responses)
        assert found == [1, 2]
        (source,) = await Producer(service.log, {}).send([record_of(1, 2, 3, 4)])
        async with Tap(service.log, TOPOLOGY.results("m"), TOPOLOGY.dead_letters) as tap:
            await until(lambda: len(tap.records) == 5, "three answers and two dead letters")
            answers = [told(record) for record in tap.by_source(TOPOLOGY.results("m"))[source]]
        assert answers == [("OK", "0", "false"), ("OK", "1", "false"), ("INTERNAL", "-", "-")]


async def test_B31_a_batch_that_fails_is_run_again_and_nobody_gets_a_response_twice(tmp_path):
    """What left before the failure counts; the culprit's stream ends with the error."""
    batching = (
        "dynamic_batching { preferred_batch_size: [2] max_queue_delay_microseconds: 500000 }"
    )
    script = {"responses": "2", "fail_if": "INPUT0=7", "response_at": "1"}
    async with decoupled(tmp_path, batching=batching, **script) as service:
        good, bad = await asyncio.gather(
            stream(service, 1), stream(service, 7), return_exceptions=True
        )
        assert good == [[1], [1]]
        assert isinstance(bad, InferError)
        assert service.gateway.repeated_responses == 0
        assert list(service.model("m").executions) == [2, 1, 1]


async def test_CX01_a_cancel_reaches_a_model_that_runs(tmp_path):
    """The model sees it between two responses and stops; the record's answer is CANCELLED, once."""
    async with decoupled(tmp_path, responses="1000", response_delay_ms="5") as service:
        responses = service.gateway.stream("m", "", request(1))
        await anext(responses)
        await responses.aclose()
        await until(lambda: service.settled("m"), "it ended long before its thousand responses")
        async with Tap(service.log, TOPOLOGY.replies) as tap:
            await until(
                lambda: tap.records and told(tap.records[-1])[0] == "CANCELLED", "its last answer"
            )
            statuses = [told(record)[0] for record in tap.records]
        assert statuses.count("CANCELLED") == 1
        assert len(statuses) < 500
        assert dict(tap.records[-1].headers)[REASON].decode() == Reason.CANCELLED
        assert service.gateway.open_calls == 0
        assert service.counts("m").failure["CANCELED"] == 1


async def test_P17_repeats_of_a_key_get_all_responses_of_the_first(tmp_path):
    """The model runs once; responses under a key leave together."""
    outs = [record_of(1, 2, key=b"k"), record_of(1, 2, key=b"k")]
    text = {"responses": "each", "idempotency_window_ms": "3600000"}
    async with decoupled(tmp_path, **text) as service:
        first, second = await Producer(service.log, {}).send(outs)
        async with Tap(service.log, TOPOLOGY.results("m")) as tap:
            await tap.answered([first, second])
            await until(lambda: len(tap.records) == 4, "two answers each")
            found = tap.by_source()
        assert [told(r) for r in found[first]] == [("OK", "0", "false"), ("OK", "1", "true")]
        assert [told(r) for r in found[second]] == [told(r) for r in found[first]]
        assert [r.value for r in found[second]] == [r.value for r in found[first]]
        assert all(dict(r.headers).get(REPLAYED) == b"true" for r in found[second])
        assert len(service.model("m").executions) == 1


async def together(
    root: Path, log: Log, topology: Topology, properties: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Ask a model that stops behind its first response, and see that nothing is visible before its last."""
    gate = root / "gate"
    script = {"responses": "each", "response_at": "1", "block_until_file": str(gate)}
    mode = Mode.EXACTLY_ONCE
    async with decoupled(
        root / "models", log=log, topology=topology, mode=mode, **script
    ) as service:
        raw, headers = encode_request(request(7, 8, 9))
        out = Out(topology.requests("m"), 0, None, raw, headers)
        async with Tap(service.log, topology.results("m"), topology.replies) as tap:
            asked = asyncio.create_task(stream(service, 1, 2, 3))
            await until(lambda: len(service.model("m").executions) == 1, "it runs")
            await Producer(service.log, properties).send([out])
            assert tap.records == []
            gate.touch()
            assert await asked == [[1], [2], [3]]
            await until(lambda: len(tap.records) == 6, "three responses each")
            for answers in tap.by_source().values():
                assert [told(r)[1:] for r in answers] == [
                    ("0", "false"),
                    ("1", "false"),
                    ("2", "true"),
                ]
        assert service.gateway.repeated_responses == 0
        await service.stop_worker()
        found = await committed(service.log, topology, "m")
        assert sum(at for at, _ in found.values()) >= 2


async def test_P10_exactly_once_keeps_the_responses_of_a_request_together(tmp_path):
    """One cut has them all: neither its readers nor its gateway see one before the final one."""
    await together(tmp_path, MemoryLog(), TOPOLOGY)


@pytest.mark.kafka
async def test_P10_P13_so_it_does_on_apache_kafka(kafka_properties, tmp_path):
    """In a real transaction; the gateway's follow it."""
    topology = Topology(prefix=f"d{uuid.uuid4().hex[:8]}", partitions=1, reply_partitions=1)
    await together(tmp_path, KafkaLog(kafka_properties), topology, kafka_properties)


async def test_a_model_that_emits_more_than_the_log_takes_is_held_back(tmp_path):
    """Thousands of responses, one by one, arrive all and in order."""
    async with decoupled(tmp_path, responses="5000") as service:
        found = await stream(service, 3)
        assert found == [[3]] * 5000
        assert service.gateway.waiting_bytes == 0


async def test_DC01_records_get_their_responses_on_the_results_topic(tmp_path):
    """Strangers' records are served the same way; the audit knows them by ``source`` and index."""
    async with decoupled(tmp_path, responses="each") as service:
        outs = [record_of(*range(n), partition=n % 2) for n in (1, 2, 3)]
        sources = await Producer(service.log, {}).send(outs)
        async with Tap(service.log, TOPOLOGY.results("m")) as tap:
            await tap.answered(sources)
            await until(lambda: len(tap.records) == 6, "one answer for each element")
            for source, count in zip(sources, (1, 2, 3), strict=True):
                answers = tap.by_source()[source]
                assert [told(r)[1:] for r in answers] == [
                    (str(i), "true" if i == count - 1 else "false") for i in range(count)
                ]
                values = [decode_response(r.value, r.headers).outputs[0] for r in answers]
                assert [v.numpy().item() for v in values] == list(range(count))
        await service.stop_worker()
        found = await committed(service.log, TOPOLOGY, "m")
        assert all(at == end for at, end in found.values())


async def test_D1_a_stream_outlives_its_worker_and_nothing_comes_twice(tmp_path):
    """Another worker takes over and begins anew; what its client has already is dropped by its index."""
    gate = tmp_path / "gate"
    script = {"responses": "each", "response_at": "2", "block_until_file": str(gate)}
    async with decoupled(tmp_path / "models", **script) as service:
        responses = service.gateway.stream("m", "", request(1, 2, 3, 4))
        async with aclosing(responses), AsyncExitStack() as stack:
            found = [(await anext(responses)).response.outputs[0].numpy().item() for _ in range(2)]
            await service.crash_worker()
            gate.touch()
            repository = await stack.enter_async_context(loaded(tmp_path / "models"))
            await stack.enter_async_context(
                working(service.log, repository, TOPOLOGY, worker_id="w2")
            )
            found += [r.outputs[0].numpy().item() async for r, _ in responses]
        assert found == [1, 2, 3, 4]
        assert service.gateway.repeated_responses == 2
        assert service.gateway.open_calls == 0
