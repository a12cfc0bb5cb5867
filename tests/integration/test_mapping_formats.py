"""One record of each format through a whole worker, from a mapping file on; beside it records of other formats.

Avro in Confluent framing is in `test_mapping_registry`, for it takes a registry.
"""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import fastavro
import pytest
from headrace.deploy.mappings import check_models, mapped_models, read_mappings, topics_of
from headrace.deploy.settings import Settings
from headrace.schemas.cloudevents import CloudEvent, read_event, write_binary, write_structured
from headrace.schemas.framing import framed
from headrace.schemas.record import Headers, Out, Record
from headrace.streams.log import TopicSpec
from headrace.streams.memory import MemoryLog
from headrace.streams.topology import Topology
from proto_kit import MESSAGE, files, message_class
from service_kit import TWO_NUMBERS, Producer, Tap, loaded, working, write_models

MAPPING = """
[source]
topic = "orders"
offset_reset = "earliest"
{source}
[inputs.INPUT0]
fields = ["d", "lines[0].price"]
[results]
pass = ["s"]
{results}
"""
ORDER = {"s": "p-1", "d": 1.5, "lines": [{"price": 2.5}]}
ANSWER = {"s": "p-1", "OUTPUT0": [1.5, 2.5]}


def avro(*fields: tuple[str, object]) -> str:
    made = [{"name": name, "type": kind} for name, kind in fields]
    return json.dumps({"type": "record", "name": "Order", "fields": made})


LINE = {"type": "record", "name": "Line", "fields": [{"name": "price", "type": "float"}]}
SCHEMA = avro(("s", "string"), ("d", "double"), ("lines", {"type": "array", "items": LINE}))
SCORED = avro(
    ("s", ["null", "string"]),
    ("OUTPUT0", ["null", {"type": "array", "items": "float"}]),
    ("error", ["null", "string"]),
)


def in_avro() -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(SCHEMA)), ORDER)
    return out.getvalue()


def in_protobuf() -> bytes:
    order = message_class(MESSAGE)(s="p-1", d=1.5)
    order.lines.add(price=2.5)
    return order.SerializeToString()


def from_avro(value: bytes) -> object:
    schema = fastavro.parse_schema(json.loads(SCORED))
    found = fastavro.schemaless_reader(io.BytesIO(value), schema, None)
    return {name: item for name, item in found.items() if item is not None}


PLAIN = {
    "json": json.dumps(ORDER).encode(),
    "avro": in_avro(),
    "protobuf": in_protobuf(),
    "framed protobuf": framed(7) + b"\x00" + in_protobuf(),
}
PROTOBUF = f'format = "protobuf"\ndescriptors = "shop.desc"\nmessage = "{MESSAGE}"\n'


def event(data: bytes, content_type: str) -> CloudEvent:
    return CloudEvent("e-1", "/shop", "made", data_content_type=content_type, data=data)


@dataclass
class Case:
    """A topic's format.

    Attributes:
        source: What the mapping says of it.
        value: The record.
        headers: Its headers.
        results: What the mapping says of results.
        read: Reads a result's value.
    """

    source: str
    value: bytes
    headers: Headers = ()
    results: str = ""
    read: Callable[[bytes], object] = json.loads


def events(data: bytes, kind: str, write: Callable, source: str, mode: str) -> Case:
    value, headers = write(event(data, kind))
    results = (
        f'format = "json"\n[results.cloudevent]\nmode = "{mode}"\ntype = "scored"\nsource = "/m"\n'
    )
    return Case(f"cloudevents = true\n{source}", value, headers, results)


PLAIN_AVRO = 'format = "avro"\nschema = "order.avsc"'
CASES = {
    "json": Case('format = "json"', PLAIN["json"]),
    "avro": Case(
        PLAIN_AVRO,
        PLAIN["avro"],
        results='format = "avro"\nschema = "scored.avsc"',
        read=from_avro,
    ),
    "protobuf": Case(PROTOBUF, PLAIN["protobuf"]),
    "framed protobuf": Case(f'{PROTOBUF}framing = "confluent"', PLAIN["framed protobuf"]),
    "json, binary events": events(
        PLAIN["json"], "application/json", write_binary, 'format = "json"', "binary"
    ),
    "json, structured events": events(
        PLAIN["json"], "application/json", write_structured, 'format = "json"', "structured"
    ),
    "avro, structured events": events(
        PLAIN["avro"], "application/avro", write_structured, PLAIN_AVRO, "structured"
    ),
}


@dataclass
class Scene:
    """A worker on the topic ``orders``."""

    producer: Producer
    tap: Tap
    topology: Topology

    async def send(self, *records: tuple[bytes | None, Headers]) -> list[Record]:
        """Send records; return the answer of each."""
        outs = [Out("orders", 0, None, value, list(headers)) for value, headers in records]
        sources = await self.producer.send(outs)
        await self.tap.answered(sources)
        found = self.tap.by_source()
        return [next(r for r in found[one] if r.topic != "t.dead-letters") for one in sources]

    @property
    def letters(self) -> list[bytes | None]:
        return [r.value for r in self.tap.records if r.topic == self.topology.dead_letters]


@asynccontextmanager
async def mapped(folder: Path, text: str, config: str = TWO_NUMBERS) -> AsyncIterator[Scene]:
    """Serve a model by a mapping file, as a worker's command does."""
    given: Mapping[str, bytes] = {
        "shop.desc": files().SerializeToString(),
        "order.avsc": SCHEMA.encode(),
        "scored.avsc": SCORED.encode(),
        "m.toml": text.encode(),
    }
    for name, data in given.items():
        (folder / name).write_bytes(data)
    settings = Settings(mapping=(f"m={folder / 'm.toml'}",))
    mappings = read_mappings(settings)
    topology = Topology("t", partitions=1, mapped=topics_of(mappings))
    async with (
        MemoryLog(commit_interval_ms=0) as log,
        loaded(write_models(folder / "models", {"m": config})) as repository,
    ):
        check_models(mappings, repository)
        await log.ensure([TopicSpec("orders", 1), TopicSpec("t.spring", 3)])
        async with (
            mapped_models(settings, mappings, repository) as models,
            working(log, repository, topology, mapped=models),
            Tap(log, topology.results("m"), topology.dead_letters, "t.spring") as tap,
        ):
            yield Scene(Producer(log, {}), tap, topology)


@pytest.mark.parametrize("name", CASES)
async def test_a_record_is_served_and_those_of_other_formats_are_kept(name, tmp_path: Path):
    """Mixed formats on one topic: each that does not fit is answered, in the results' format, and a dead letter."""
    case = CASES[name]
    others = [
        value
        for other, value in PLAIN.items()
        if other != name and not (other == "json" and name == "json, binary events")
    ]
    headers = [header for header in case.headers if header[0].startswith("ce_")]
    text = MAPPING.format(source=case.source, results=case.results)
    async with mapped(tmp_path, text) as scene:
        good, *wrong, last = await scene.send(
            (case.value, case.headers),
            *((value, headers) for value in others),
            (case.value, case.headers),
        )
        values = []
        for answer in (good, *wrong, last):
            data = answer.value
            if "events" in name:
                found = read_event(answer.value, answer.headers)
                assert (found.type, found.source) == ("scored", "/m")
                data = found.data
            values.append(case.read(data))
        assert values[0] == values[-1] == ANSWER
        assert all(value["error"] for value in values[1:-1]), values
        assert {dict(answer.headers)["status"] for answer in (good, last)} == {b"OK"}
        assert scene.letters == others


async def test_bytes_are_left_to_the_model(tmp_path: Path):
    config = TWO_NUMBERS.replace("TYPE_FP32 dims: [2]", "TYPE_STRING dims: [1]")
    text = '[source]\ntopic = "orders"\nformat = "raw"\noffset_reset = "earliest"\n'
    async with mapped(tmp_path, f'{text}[inputs.INPUT0]\nfield = "value"\n', config) as scene:
        (answer,) = await scene.send((b"\xc3\xa9 as it is", ()))
        assert json.loads(answer.value) == {"OUTPUT0": "é as it is"}


async def test_P17_a_repeated_event_is_answered_by_the_same_event(tmp_path: Path):
    """What a repeat gets is an event still, with the headers that make it one."""
    case = CASES["json, binary events"]
    text = MAPPING.format(source=case.source, results=case.results)
    record = (case.value, [*case.headers, ("idempotency-key", b"k")])
    async with mapped(tmp_path, text) as scene:
        (first,) = await scene.send(record)
        (again,) = await scene.send(record)
        assert dict(again.headers)["replayed"] == b"true"
        assert read_event(again.value, again.headers) == read_event(first.value, first.headers)


async def test_R10_a_record_that_names_where_its_answer_goes_is_answered_there(tmp_path: Path):
    """As Spring's `ReplyingKafkaTemplate` names it: with its own bytes, which come back untouched; errors too."""
    asked = [
        ("kafka_replyTopic", b"t.spring"),
        ("kafka_replyPartition", (2).to_bytes(4, "big")),
        ("kafka_correlationId", bytes(range(16))),
    ]
    text = MAPPING.format(source='format = "json"', results="")
    async with mapped(tmp_path, text) as scene:
        answers = await scene.send((PLAIN["json"], asked), (b'{"d": 1}', asked))
    assert [(answer.topic, answer.partition) for answer in answers] == [("t.spring", 2)] * 2
    for answer in answers:
        assert ("kafka_correlationId", bytes(range(16))) in answer.headers
        assert "id" not in dict(answer.headers)
    assert json.loads(answers[0].value) == ANSWER
    assert json.loads(answers[1].value)["error"].startswith("field 'lines[0].price' is missing")
