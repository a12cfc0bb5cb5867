"""Decoupled models end to end (SEMANTICS DC-01…DC-03): a worker with real threads, a gateway, HTTP, the memory log."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from headrace.schemas.codec import decode_response, encode_request
from headrace.schemas.errors import BackendError, InferError, Reason
from headrace.schemas.headers import RequestOptions
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import (
    AVRO,
    FINAL,
    REASON,
    REPLAYED,
    RESPONSE_INDEX,
    STATUS,
    Out,
    Record,
)
from headrace.schemas.tensor import Tensor
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import Log, Mode
from headrace.streams.memory import MemoryLog
from headrace.streams.topology import Topology
from service_kit import Producer, Service, Tap, committed, serving, until, write_models

TOPOLOGY = Topology(prefix="d", partitions=2, reply_partitions=2)


def config(**parameters: str) -> str:
    """Return an identity model with a script, as a configuration."""
    script = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in parameters.items()
    )
    return f"""
backend: "identity"
max_batch_size: 8
input [{{ name: "INPUT0" data_type: TYPE_INT32 dims: [-1] }}]
output [{{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [-1] }}]
model_transaction_policy {{ decoupled: true }}
{script}"""


@asynccontextmanager
async def decoupled(
    root: Path,
    *,
    log: Log | None = None,
    topology: Topology = TOPOLOGY,
    batching: str = "",
    mode: Mode = Mode.AT_LEAST_ONCE,
    **parameters: str,
) -> AsyncIterator[Service]:
    """Serve a decoupled model ``m`` with a script."""
    write_models(root, {"m": config(**parameters) + batching})
    async with (
        log or MemoryLog() as opened,
        serving(opened, root, topology, delivery=mode) as service,
        asyncio.timeout(60),
    ):
        yield service


def request(*values: int, id_: str = "") -> InferRequest:
    tensor = Tensor.from_numpy("INPUT0", np.array([values], np.int32).reshape(1, len(values)))
    return InferRequest((tensor,), id=id_)


async def stream(service: Service, *values: int, empty_final: bool = False) -> list[list[int]]:
    """Return the values of each response; an empty list is one without outputs."""
    found = []
    responses = service.gateway.stream("m", "", request(*values), empty_final=empty_final)
    async with aclosing(responses):
        async for response, _ in responses:
            found.append([v for t in response.outputs for v in t.numpy().reshape(-1).tolist()])
    return found


def told(record: Record) -> tuple[str, str, str]:
    """Return status, response index and whether it is final, as an answer's headers say."""
    headers = dict(record.headers)
    return (
        headers[STATUS].decode(),
        headers.get(RESPONSE_INDEX, b"-").decode(),
        headers.get(FINAL, b"-").decode(),
    )


def record_of(*values: int, partition: int = 0, key: bytes = b"") -> Out:
    raw, headers = encode_request(request(*values), AVRO, RequestOptions(idempotency_key=key))
    return Out(TOPOLOGY.requests("m"), partition, None, raw, headers)


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


async def generate(service: Service, kind: str, body: object, **headers: str):
    """Post to a generate route; returns status, content type and text."""
    data = body if isinstance(body, (str, bytes)) else json.dumps(body)
    async with service.session.post(
        f"/v2/models/m/{kind}", data=data, headers=headers
    ) as response:
        return response.status, response.headers["Content-Type"], await response.text()


def events(text: str) -> list[dict[str, object]]:
    """Return the JSON of each event; nothing else may stand in the stream."""
    parts = text.split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") for part in parts)
    return [json.loads(part.removeprefix("data: ")) for part in parts]


async def test_GN05_generate_stream_sends_an_event_for_each_response(tmp_path):
    """Also GN-03: one element is a scalar; GN-06 and DC-02: an empty end is no event."""
    async with decoupled(tmp_path, responses="each", empty_final="true") as service:
        body = {"INPUT0": [4, 5], "id": "mine"}
        status, kind, text = await generate(service, "generate_stream", body)
        assert (status, kind) == (200, "text/event-stream; charset=utf-8")
        common = {"id": "mine", "model_name": "m", "model_version": "1"}
        assert events(text) == [{**common, "OUTPUT0": 4}, {**common, "OUTPUT0": 5}]
        assert await generate(service, "generate_stream", {"INPUT0": []}) == (200, kind, "")


async def test_GN04_generate_wants_exactly_one_response(tmp_path):
    """One, whether its end comes alone or not; none and two are errors, the second cancels the rest."""
    async with decoupled(tmp_path, responses="each", empty_final="true") as service:
        status, kind, text = await generate(service, "generate", {"INPUT0": 4})
        assert (status, kind, json.loads(text)["OUTPUT0"]) == (200, "application/json", 4)
        for elements in ([], [4, 5]):
            status, kind, text = await generate(service, "generate", {"INPUT0": elements})
            assert (status, kind) == (500, "application/json")
            assert "generate expects model to produce exactly 1 response" in text
        assert service.gateway.open_calls == 0


@pytest.mark.parametrize("at", [0, 1])
async def test_GN05_the_first_response_fixes_the_status(tmp_path, at):
    """An error first is a plain answer with its code; behind a response it is an event."""
    async with decoupled(tmp_path, responses="each", response_error_at=str(at)) as service:
        status, kind, text = await generate(service, "generate_stream", {"INPUT0": [1, 2, 3]})
        if at == 0:
            assert (status, kind) == (500, "application/json")
            assert "response 0" in json.loads(text)["error"]
        else:
            assert status == 200
            value, error = events(text)
            assert value["OUTPUT0"] == 1
            assert list(error) == ["error"]


async def test_GN06_closing_the_connection_cancels(tmp_path):
    """CX-01: the client has an event and goes; the model stops, and nothing stays open."""
    async with decoupled(tmp_path, responses="1000", response_delay_ms="5") as service:
        async with service.session.post(
            "/v2/models/m/generate_stream", data='{"INPUT0": 1}'
        ) as response:
            await response.content.readuntil(b"\n\n")
            response.close()
        await until(lambda: service.gateway.abandoned == 1, "the close was noticed")
        await until(lambda: service.settled("m"), "the model stopped")
        assert service.gateway.open_calls == 0
        assert service.counts("m").failure["CANCELED"] == 1
