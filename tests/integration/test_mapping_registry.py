"""A mapped topic of Avro records and a real Schema Registry: evolution, unknown schemas, outage (FAULTS B34, B35)."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import brokers
import fastavro
import pytest
from command_kit import command
from headrace.consumers.mapped import MappedModel, mapped_topics
from headrace.consumers.service import Worker
from headrace.deploy.mappings import result_format, source_format
from headrace.schemas.errors import ConfigError
from headrace.schemas.framing import framed
from headrace.schemas.mapping_check import fit_mapping
from headrace.schemas.mapping_file import read_mapping
from headrace.schemas.record import Out
from headrace.streams.log import TopicSpec
from headrace.streams.memory import MemoryLog
from headrace.streams.registry_settings import RegistrySettings
from headrace.streams.schema_registry import SchemaRegistry
from headrace.streams.topology import Topology
from registry_kit import Registry, running
from service_kit import TWO_NUMBERS, Producer, Tap, committed, loaded, until, working, write_models
from tcp_proxy import TcpProxy

MODEL = "fraud"
MAPPING = """
[source]
topic = "payments"
format = "avro"
framing = "confluent"
schema = "v2.avsc"
offset_reset = "earliest"

[inputs.INPUT0]
fields = ["amount", "risk"]

[results]
topic = "payments.scored"
format = "avro"
framing = "confluent"
pass = ["id", "country"]

[results.fields]
scores = "OUTPUT0"
"""


def schema(*fields: tuple) -> str:
    made = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return json.dumps({"type": "record", "name": "Payment", "namespace": "shop", "fields": made})


FIRST = (("id", "long"), ("amount", "double"), ("risk", "float", 0.25))
V1 = schema(*FIRST[:2])
V2 = schema(*FIRST, ("country", "string", "??"))
V3 = schema(*FIRST, ("country", "string", "??"), ("shop", ["null", "string"], None))


def written(text: str, schema_id: int, **fields: object) -> bytes:
    """Return what a producer writes."""
    out = io.BytesIO(framed(schema_id))
    out.seek(0, io.SEEK_END)
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(text)), fields)
    return out.getvalue()


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry for the tests of this file."""
    with running(tmp_path_factory.mktemp("registry")) as found:
        yield found


@dataclass
class Scene:
    """A worker on a mapped topic of two partitions.

    Attributes:
        worker: In this process.
        producer: Of records.
        tap: Reads results and dead letters.
        cable: Between the worker and its registry.
        topology: Its topics.
        log: All of it is in memory.
    """

    worker: Worker
    producer: Producer
    tap: Tap
    cable: TcpProxy
    topology: Topology
    log: MemoryLog

    async def send(self, *values: bytes, partition: int = 0) -> list[str]:
        return await self.producer.send([Out("payments", partition, None, v) for v in values])

    def results(self, registry: Registry, sources: list[str]) -> list[dict]:
        """Return the results of records, as anybody reads them who asks the registry."""
        answers = self.tap.by_source(self.topology.results(MODEL))
        found = []
        for source in sources:
            (record,) = answers[source]
            number = int.from_bytes(record.value[1:5], "big")
            text = registry.ask("GET", f"/schemas/ids/{number}")["schema"]
            parsed = fastavro.parse_schema(json.loads(text))
            found.append(fastavro.schemaless_reader(io.BytesIO(record.value[5:]), parsed, None))
        return found

    @property
    def letters(self) -> list[bytes]:
        return [r.value for r in self.tap.records if r.topic == self.topology.dead_letters]


@asynccontextmanager
async def scene(registry: Registry, folder: Path, subject: str) -> AsyncIterator[Scene]:
    """Run it; ``subject`` is of the results' schema."""
    text = MAPPING.replace("[results]\n", f'[results]\nsubject = "{subject}"\n')
    mapping = read_mapping(text, "fraud.toml", lambda _: V2.encode())
    async with (
        TcpProxy(brokers.free_port(), registry.port) as cable,
        SchemaRegistry(
            RegistrySettings(
                (registry.url.replace(str(registry.port), str(cable.port)),),
                max_retries=1,
                timeout_s=0.5,
                wait_s=0.02,
            )
        ) as schemas,
        MemoryLog(commit_interval_ms=0) as log,
        loaded(write_models(folder, {MODEL: TWO_NUMBERS})) as repository,
    ):
        version = repository.models[MODEL].versions[1]
        plan = fit_mapping(mapping, version.signature, version.labels)
        results = await result_format(mapping.results.format, plan, "payments.scored", schemas)
        source = source_format(mapping.source.format, mapping.file)
        mapped = {MODEL: MappedModel(mapping, {1: plan}, source, {1: results}, schemas)}
        topology = Topology("m", partitions=2, mapped={MODEL: mapped_topics(mapping)})
        await log.ensure([TopicSpec("payments", 2)])
        async with (
            working(log, repository, topology, mapped=mapped) as service,
            Tap(log, topology.results(MODEL), topology.dead_letters) as tap,
        ):
            yield Scene(service.worker, Producer(log, {}), tap, cable, topology, log)


async def test_B34_a_schema_evolves_while_the_worker_runs(registry, tmp_path: Path, unique):
    """Old, present and future records are read alike; what cannot be read is kept, and its neighbours are served."""
    orders = unique("payments")
    one, two, three = (registry.register(orders, text) for text in (V1, V2, V3))
    other = registry.register(
        unique("proto"),
        'syntax = "proto3"; message A { message B { int32 c = 1; } }',
        schemaType="PROTOBUF",
    )
    async with scene(registry, tmp_path, unique("results")) as found:
        good = await found.send(written(V1, one, id=1, amount=2.5))
        await found.tap.answered(good)
        good += await found.send(
            written(V2, two, id=2, amount=3.5, risk=0.5, country="NL"),
            written(V3, three, id=3, amount=4.5, risk=1.0, country="DE", shop="x"),
        )
        bad = [
            written(V1, 424_242, id=4, amount=1.0),
            written(V1, one, id=0, amount=1.0)[5:],  # plain, and its first byte is 0
            framed(other) + b"\x04\x00\x00" + b"\x08\x07",  # Protobuf with an index of two numbers
            b"\x01" + written(V1, one, id=5, amount=1.0)[1:],
        ]
        wrong = await found.send(*bad)
        good += await found.send(written(V1, one, id=6, amount=5.5))
        await found.tap.answered([*good, *wrong])
        assert found.results(registry, good) == [
            {"id": number, "country": country, "scores": scores, "error": None}
            for number, country, scores in (
                (1, "??", [2.5, 0.25]),
                (2, "NL", [3.5, 0.5]),
                (3, "DE", [4.5, 1.0]),
                (6, "??", [5.5, 0.25]),
            )
        ]
        errors = [result["error"] for result in found.results(registry, wrong)]
        for error, words in zip(
            errors,
            (
                "schema 424242, and the registry has none of that id",
                "and the registry has none of that id",
                f"schema {other} of the registry, which cannot be used: the text is no Avro schema",
                "not in Confluent framing: its first byte is 1",
            ),
            strict=True,
        ):
            assert words in error
        assert found.letters == bad


async def test_B34_a_registry_that_is_away_costs_nothing_but_time(
    registry, tmp_path: Path, unique
):
    """Known schemas are served; a partition waits for its unknown one, in order; readiness says why."""
    orders = unique("payments")
    one, two = registry.register(orders, V1), registry.register(orders, V2)
    async with scene(registry, tmp_path, unique("results")) as found:
        known = await found.send(written(V1, one, id=1, amount=1.0))
        await found.tap.answered(known)
        model = found.worker.models[MODEL]
        await until(model.ready)
        found.cable.cut()
        sources = []
        for number in range(10, 40, 3):  # a block each, some while the first one waits
            sources += await found.send(
                written(V1, one, id=number, amount=1.0),
                written(V2, two, id=number + 1, amount=1.0, risk=0.5, country="NL"),
                written(V1, one, id=number + 2, amount=1.0),
            )
        others = await found.send(
            *(written(V1, one, id=number, amount=2.0) for number in range(100, 110)), partition=1
        )
        await found.tap.answered(others)
        await until(lambda: f"records wait for schema {two}" in model.troubled())
        assert "does not answer" in model.troubled()
        assert not model.ready()
        assert not any(source in found.tap.by_source() for source in sources[1:])
        await found.cable.heal()
        await found.tap.answered(sources)
        await until(model.ready)
        results = found.results(registry, sources)
        assert [result["id"] for result in results] == list(range(10, 40))
        assert not any(result["error"] for result in results)
        assert found.letters == []
        ends = await committed(found.log, found.topology, MODEL)
        assert all(offset == end for offset, end in ends.values())


async def test_B34_results_that_do_not_fit_the_subject_are_refused_at_start(
    registry, tmp_path: Path, unique
):
    subject = unique("results")
    registry.register(subject, schema(("scores", "string")))
    with pytest.raises(
        ConfigError, match=f"not compatible with those that subject '{subject}' has"
    ):
        async with scene(registry, tmp_path, subject):
            pass


async def test_B34_commands_ask_the_registry_for_the_schema_of_a_sample(
    registry, tmp_path: Path, unique
):
    """A mapping is proposed from a framed record, and tried on it, with the defaults of the reader's schema."""
    number = registry.register(unique("payments"), V1)
    models = str(write_models(tmp_path / "models", {MODEL: TWO_NUMBERS}))
    (tmp_path / "v2.avsc").write_text(V2)
    (tmp_path / "sample").write_bytes(written(V1, number, id=1, amount=2.5))
    begun, mapping = tmp_path / "begun.toml", tmp_path / "fraud.toml"
    head = MAPPING.split("[inputs", maxsplit=1)[0].replace(
        "[source]", f'[source]\nregistry = "{registry.url}"'
    )
    begun.write_text(head)
    given = ("--sample", str(tmp_path / "sample"))
    named = (MODEL, models, "--source", str(begun))
    status, said, complained = await command("map", "propose", *named, *given)
    assert status == 0, complained
    assert '"risk",  # sample: 0.25' in said
    mapping.write_text(said)
    tried = ("map", "run", models, "--mapping", f"{MODEL}={mapping}", "--dry-run", *given)
    status, printed, complained = await command(*tried)
    assert status == 0, complained
    assert '{"id":1,"OUTPUT0":[2.5,0.25]}' in printed
    (tmp_path / "sample").write_bytes(written(V1, 424_242, id=1, amount=2.5))
    status, _, complained = await command("map", "propose", *named, *given)
    assert status == 1
    assert "schema 424242, and the registry has none of that id" in complained
