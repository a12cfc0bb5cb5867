"""Models on topics that people already have: business records in, flat results out, on every log."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from headrace.consumers.mapped import MappedModel, mapped_topics
from headrace.deploy.map_samples import read_last
from headrace.repository.repository import Repository
from headrace.schemas.codec import decode_response, encode_request
from headrace.schemas.infer import InferRequest
from headrace.schemas.mapping_check import fit_mapping
from headrace.schemas.mapping_file import read_mapping
from headrace.schemas.mapping_json import JsonFormat
from headrace.schemas.record import Out
from headrace.schemas.tensor import Tensor
from headrace.streams.audit import Auditor
from headrace.streams.log import Log, TopicSpec
from headrace.streams.memory import MemoryLog
from headrace.streams.topology import Topology
from sequence_kit import MODEL as SUMS
from sequence_kit import write_sums
from service_kit import Producer, Tap, committed, gatewaying, loaded, working, write_models

CONFIG = """
backend: "identity"
max_batch_size: 8
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [3] }, { name: "INPUT1" data_type: TYPE_INT32 dims: [1] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [3] }, { name: "OUTPUT1" data_type: TYPE_INT32 dims: [1] }]
dynamic_batching { max_queue_delay_microseconds: 1000 }
"""
MAPPING = """
[source]
topic = "TOPIC"
format = "json"
offset_reset = "earliest"

[inputs.INPUT0]
fields = ["amount", "card.age", { path = "rate", default = 0.5 }]

[inputs.INPUT1]
field = "count"

[request]
id = "payment"

[results]
topic = "TOPIC.scored"
pass = ["payment", { path = "card.number", name = "card" }]

[results.fields]
count = "OUTPUT1"
best = { output = "OUTPUT0", label = true, labels = ["amount", "age", "rate"] }
"""
GOOD = {"payment": "p1", "amount": 12.5, "card": {"age": 3, "number": "4000"}, "count": 7}


def mapped_model(text: str, repository: Repository, name: str) -> MappedModel:
    """Return a mapped model with JSON records and results."""
    mapping = read_mapping(text, "mapping.toml", lambda _: b"")
    plans = {
        number: fit_mapping(mapping, version.signature, version.labels)
        for number, version in repository.models[name].versions.items()
    }
    return MappedModel(mapping, plans, JsonFormat(), dict.fromkeys(plans, JsonFormat()))


def topology_for(prefix: str, mapped: Mapping[str, MappedModel]) -> Topology:
    topics = {name: mapped_topics(model.mapping) for name, model in mapped.items()}
    return Topology(prefix, partitions=2, mapped=topics)


def out(topic: str, fields: object, key: bytes | None = None, partition: int = 0) -> Out:
    """Return a business record; bytes and None are its value as they are."""
    value = fields if isinstance(fields, bytes) or fields is None else json.dumps(fields).encode()
    return Out(topic, partition, key, value)


def bootstrap_of(logs: object) -> Mapping[str, str]:
    found: Mapping[str, str] = getattr(logs, "properties", {})
    return found


async def test_business_records_become_results_and_bad_ones_errors_beside_them(
    logs, tmp_path: Path, unique
) -> None:
    """Also a request in our own content type, null values, and what Kafka has of positions in the end."""
    topic = unique("payments")
    root = write_models(tmp_path, {"fraud": CONFIG})
    async with logs.open(commit_interval_ms=0) as log, loaded(root) as repository:
        mapped = {"fraud": mapped_model(MAPPING.replace("TOPIC", topic), repository, "fraud")}
        topology = topology_for(unique("m"), mapped)
        await log.ensure([TopicSpec(topic, 2)])
        producer = Producer(log, bootstrap_of(logs))
        request = InferRequest(
            (
                Tensor.from_numpy("INPUT0", np.float32([[1, 2, 3]])),
                Tensor.from_numpy("INPUT1", np.int32([[4]])),
            )
        )
        value, headers = encode_request(request)
        bad = [
            b"no json",
            {**GOOD, "amount": None},
            {**GOOD, "amount": "much"},
            {**GOOD, "amount": math.nan},
            {**GOOD, "card": {"age": [1, 2]}},
            {**GOOD, "count": 2**31},
        ]
        async with (
            working(log, repository, topology, mapped=mapped),
            Tap(log, topology.results("fraud"), topology.dead_letters) as tap,
        ):
            good = await producer.send([out(topic, {**GOOD, "rate": i}) for i in range(3)])
            wrong = await producer.send([out(topic, fields) for fields in bad])
            await producer.send([out(topic, None)])
            (asked,) = await producer.send([Out(topic, 0, None, value, headers)])
            (last,) = await producer.send([out(topic, GOOD, partition=1)])
            await tap.answered([*good, *wrong, asked, last])
            answers = tap.by_source(topology.results("fraud"))
            letters = [r.value for r in tap.records if r.topic == topology.dead_letters]
        ends = await committed(log, topology, "fraud")
        audited = (await Auditor(log, topology).audit(["fraud"])).total
    assert (audited.requests, audited.answered, audited.missing) == (11, 11, 0)
    assert all(offset == end for offset, end in ends.values())
    assert sum(end for _, end in ends.values()) == 12
    assert len(answers) == 11
    values = [json.loads(answers[source][0].value) for source in (*good, last)]
    assert values == [{"payment": "p1", "card": "4000", "count": 7, "best": "amount"}] * 4
    assert dict(answers[good[0]][0].headers)["id"] == b"p1"
    errors = [json.loads(answers[source][0].value) for source in wrong]
    assert [error["payment"] for error in errors] == [None, *["p1"] * 5]
    for error, words in zip(
        errors,
        [
            "the value is no JSON object",
            "field 'amount' is null",
            "field 'amount' is 'much'",
            "field 'amount' is nan",
            "field 'card.age' is a list of 2",
            "field 'count' is 2147483648, expected a whole number",
        ],
        strict=True,
    ):
        assert error["error"].startswith(words)
    assert letters == [out(topic, fields).value for fields in bad]
    response = decode_response(answers[asked][0].value, answers[asked][0].headers)
    assert response.outputs[1].numpy().tolist() == [[4]]


SEQUENCE = """
[source]
topic = "TOPIC"
format = "json"
offset_reset = "earliest"
[inputs.INPUT]
field = "value"
[sequence]
ID
end = { field = "event", equals = "stop" }
[results]
pass = ["car"]
[results.fields]
sum = "OUTPUT"
"""


async def test_sequences_by_key_and_by_field_begin_at_first_sight(
    logs, tmp_path: Path, unique
) -> None:
    """A bad step is answered in its turn and changes no state; behind an end the id begins anew."""
    by_key, by_field = unique("by-key"), unique("by-field")
    for topic, said in ((by_key, 'id = "key"'), (by_field, 'id = { field = "car" }')):
        root = write_sums(tmp_path / topic)
        text = SEQUENCE.replace("TOPIC", topic).replace("ID", said)
        async with logs.open(commit_interval_ms=0) as log, loaded(root) as repository:
            mapped = {SUMS: mapped_model(text, repository, SUMS)}
            topology = topology_for(unique("s"), mapped)
            await log.ensure([TopicSpec(topic, 2)])
            producer = Producer(log, bootstrap_of(logs))
            steps = [
                {"car": "a", "value": 1},
                {"car": "b", "value": 10},
                {"car": "a", "value": "x"},
                {"car": "a", "value": 2, "event": "stop"},
                {"car": "b", "value": 20},
                {"car": "a", "value": 100},
            ]
            async with (
                working(log, repository, topology, mapped=mapped),
                Tap(log, topology.results(SUMS)) as tap,
            ):
                keyed = [out(topic, step, str(step["car"]).encode()) for step in steps]
                sources = await producer.send(
                    keyed if topic == by_key else [out(topic, step, b"other") for step in steps]
                )
                await tap.answered(sources)
                answers = tap.by_source()
        values = [json.loads(answers[source][0].value) for source in sources]
        assert values[2].pop("error").startswith("field 'value' is 'x'")
        assert values == [
            {"car": "a", "sum": 1},
            {"car": "b", "sum": 10},
            {"car": "a"},
            {"car": "a", "sum": 3},
            {"car": "b", "sum": 30},
            {"car": "a", "sum": 100},
        ]


async def test_a_topic_is_read_from_its_end_the_first_time_and_then_from_where_it_stopped(
    log: Log, logs, tmp_path: Path, unique
) -> None:
    """What comes while no worker runs is not passed over at the next start."""
    topic = unique("payments")
    root = write_models(tmp_path, {"fraud": CONFIG})
    text = MAPPING.replace("TOPIC", topic).replace("earliest", "latest")
    await log.ensure([TopicSpec(topic, 2)])
    producer = Producer(log, bootstrap_of(logs))
    before = await producer.send([out(topic, GOOD) for _ in range(3)])
    async with loaded(root) as repository:
        mapped = {"fraud": mapped_model(text, repository, "fraud")}
        topology = topology_for(unique("m"), mapped)
        async with working(log, repository, topology, mapped=mapped):
            pass
        between = await producer.send([out(topic, GOOD)])
    async with loaded(root) as repository:
        mapped = {"fraud": mapped_model(text, repository, "fraud")}
        async with (
            working(log, repository, topology, mapped=mapped),
            Tap(log, topology.results("fraud")) as tap,
        ):
            after = await producer.send([out(topic, GOOD)])
            await tap.answered([*between, *after])
            assert not set(before) & tap.by_source().keys()


async def test_the_last_records_of_a_topic_are_read_without_a_group(
    log: Log, logs, unique
) -> None:
    """What `headrace map` looks at: of all partitions, null values left out."""
    topic = unique("payments")
    await log.ensure([TopicSpec(topic, 3)])
    assert await read_last(log, topic, 2) == []
    producer = Producer(log, bootstrap_of(logs))
    for number in range(4):
        await producer.send([out(topic, {"n": number}, partition=number % 2)])
    await producer.send([out(topic, None, b"k", partition=1)])
    found = await read_last(log, topic, 3)
    assert {record.value for record in found} <= {b'{"n": %d}' % n for n in range(4)}
    assert len(found) == 3


@pytest.mark.parametrize("word", ["v2", "json"])
async def test_a_mapping_may_only_name_topics_or_only_what_comes_in(
    word: str, tmp_path: Path, unique
) -> None:
    """Of V2 requests it says where they are, and gateways send theirs there; results in V2 are V2 responses."""
    root = write_models(tmp_path, {"fraud": CONFIG})
    topic = unique("calls")
    text = MAPPING.replace("TOPIC", topic)
    source, inputs = text.split("[inputs.INPUT0]")
    if word == "v2":
        text = source.replace('"json"', '"v2"')
    else:
        text = f'{source}[inputs.INPUT0]{inputs.split("[request]")[0]}[results]\nformat = "v2"\n'
    async with MemoryLog() as log, loaded(root) as repository:
        if word == "v2":
            model = MappedModel(read_mapping(text, "mapping.toml", lambda _: b""))
        else:
            model = mapped_model(text, repository, "fraud")
            model = replace(model, results={})
        mapped = {"fraud": model}
        await log.ensure([TopicSpec(topic, 2)])
        topology = topology_for(unique("m"), mapped)
        assert topology.results("fraud").endswith(".fraud.results")
        async with (
            working(log, repository, topology, mapped=mapped) as service,
            Tap(log, topology.results("fraud")) as tap,
        ):
            if word == "json":
                (sent,) = await Producer(log, {}).send([out(topic, GOOD)])
                await tap.answered([sent])
                (answer,) = tap.by_source()[sent]
                response = decode_response(answer.value, answer.headers)
                assert response.outputs[1].numpy().tolist() == [[7]]
                return
            inputs_given = [
                {"name": "INPUT0", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]},
                {"name": "INPUT1", "datatype": "INT32", "shape": [1, 1], "data": [4]},
            ]
            async with (
                gatewaying(service) as whole,
                whole.session.post(
                    "/v2/models/fraud/infer", json={"inputs": inputs_given}
                ) as answered,
            ):
                assert answered.status == 200


async def test_a_gateway_refuses_calls_to_a_mapped_model(tmp_path: Path, unique) -> None:
    """Its topic is somebody else's, whose readers expect no V2 requests."""
    root = write_models(tmp_path, {"fraud": CONFIG})
    topic = unique("payments")
    async with MemoryLog() as log, loaded(root) as repository:
        mapped = {"fraud": mapped_model(MAPPING.replace("TOPIC", topic), repository, "fraud")}
        await log.ensure([TopicSpec(topic, 2)])
        topology = topology_for(unique("m"), mapped)
        async with (
            working(log, repository, topology, mapped=mapped) as service,
            gatewaying(service) as whole,
        ):
            inputs = [
                {"name": "INPUT0", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]},
                {"name": "INPUT1", "datatype": "INT32", "shape": [1, 1], "data": [4]},
            ]
            async with whole.session.post(
                "/v2/models/fraud/infer", json={"inputs": inputs}
            ) as answer:
                said = await answer.json()
            assert answer.status == 501
            assert f"serves the json records of topic '{topic}' by a mapping" in said["error"]
