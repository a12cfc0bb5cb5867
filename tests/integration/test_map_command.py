"""`headrace map`: a mapping is proposed from a sample, checked, and tried dry; nothing needs a broker."""

import asyncio
import json
import re
import tomllib
from pathlib import Path

import fastavro
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from command_kit import as_process, command
from headrace.deploy.serving import serving
from sequence_kit import MODEL as SUMS
from sequence_kit import write_sums
from service_kit import write_models

CONFIG = """
backend: "identity"
max_batch_size: 8
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [3] }, { name: "INPUT1" data_type: TYPE_INT32 dims: [1] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [3] }, { name: "OUTPUT1" data_type: TYPE_INT32 dims: [1] }]
"""
SAMPLE = {"payment_id": "p-1", "amount": 12.5, "card": {"age": 3}, "rate": 0.25, "INPUT1": 7}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A model, a sample, and the mapping that is proposed for them."""
    write_models(tmp_path / "models", {"fraud": CONFIG})
    (tmp_path / "payments.json").write_text(json.dumps(SAMPLE))
    return tmp_path


async def test_what_is_proposed_fits_and_shows_what_it_makes(root: Path) -> None:
    models, sample = str(root / "models"), str(root / "payments.json")
    status, said, _ = await command("map", "propose", "fraud", models, "--sample", sample)
    assert status == 0
    found = tomllib.loads(said)
    assert found["source"]["topic"] == "payments"
    assert found["inputs"]["INPUT0"]["fields"] == ["amount", "card.age", "rate"]
    mapping = root / "fraud.toml"
    mapping.write_text(said)
    option = ("--mapping", f"fraud={mapping}")
    status, said, _ = await command("map", "check", models, *option)
    assert status == 0
    assert "amount, card.age, rate" in said
    status, said, _ = await command("map", "run", models, *option, "--dry-run", "--sample", sample)
    assert status == 0
    assert "INPUT1 INT32 [1] [7]" in said
    assert '{"payment_id":"p-1","OUTPUT0":[12.5,3.0,0.25],"OUTPUT1":7}' in said
    bad = root / "bad.json"
    bad.write_text(f"{json.dumps(SAMPLE)}\n{json.dumps({**SAMPLE, 'amount': 'x'})}\n")
    status, said, complained = await command(
        "map", "run", models, *option, "--dry-run", "--sample", str(bad)
    )
    assert status == 1
    assert "INVALID_ARG: field 'amount' is 'x', expected a finite number" in said
    assert complained == "1 record would be answered with an error\n"


MAPPING = """[source]
topic = "payments"
format = "json"
offset_reset = "latest"
[inputs.INPUT0]
fields = ["a", "b", "c"]
[inputs.INPUT1]
field = "d"
"""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check"], "no mapping is named: give --mapping MODEL=FILE"),
        (["check", "--mapping", "fraud"], "--mapping = fraud: expected MODEL=FILE"),
        (["check", "--mapping", "fraud=none.toml"], "the file cannot be read: No such file"),
        (["check", "--mapping", "frad=FILE"], "there is no such model, did you mean 'fraud'?"),
        (["check", "--mapping", "fraud=FILE"], "inputs.INPUTO: model 'fraud' has no such input"),
        (["run", "--mapping", "fraud=FILE"], "expected --dry-run"),
        (
            ["propose", "fraud"],
            "no record is named: give --sample FILE, --topic TOPIC or --source FILE",
        ),
        (["propose", "fraud", "--topic", "t"], "no Kafka is named"),
        (["propose", "fraud", "--sample", "none"], "--sample = none: the file cannot be read"),
    ],
)
async def test_what_is_wrong_is_one_sentence(root: Path, arguments, words) -> None:
    mapping = root / "wrong.toml"
    mapping.write_text(MAPPING.replace("INPUT0", "INPUTO"))
    given = [word.replace("FILE", str(mapping)) for word in arguments]
    status, _, said = await command("map", *given, "--model-repository", str(root / "models"))
    assert status in (1, 2)
    assert words in said


async def test_a_mapping_is_proposed_for_records_that_are_no_json(root: Path) -> None:
    """From the beginning of the file, which says how they are read, to a mapping that is served as it is."""
    lines = {"type": "array", "items": "float"}
    fields = [{"name": "payment_id", "type": "string"}, {"name": "count", "type": "int"}]
    schema = {"type": "record", "name": "P", "fields": [*fields, {"name": "rates", "type": lines}]}
    (root / "payment.avsc").write_text(json.dumps(schema))
    begun, sample = root / "begun.toml", root / "payment.avro"
    head = '[source]  # as it is\ntopic = "t"\nformat = "avro"\nschema = "payment.avsc"\noffset_reset = "latest"\n'
    begun.write_text(head)
    with sample.open("wb") as out:
        record = {"payment_id": "p", "count": 7, "rates": [1.0, 2.5, 3.0]}
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
    models, given = str(root / "models"), ("--sample", str(sample))
    propose = ("map", "propose", "fraud", models, "--source", str(begun))
    status, said, complained = await command(*propose, *given)
    assert status == 0, complained
    assert said.startswith(head)
    assert 'field = "rates"  # sample: a list of 3' in said
    (root / "fraud.toml").write_text(said)
    option = ("--mapping", f"fraud={root / 'fraud.toml'}", "--dry-run")
    status, said, _ = await command("map", "run", models, *option, *given)
    assert status == 0
    assert '{"payment_id":"p","OUTPUT0":[1.0,2.5,3.0],"OUTPUT1":7}' in said
    status, _, said = await command(*propose, "--topic", "u")
    assert (status, said) == (2, "expected either --topic or --source, which names a topic\n")
    begun.write_text(f"{head}[results]\n")
    status, _, said = await command(*propose, *given)
    assert status == 1
    assert "results: there is no such key, expected source" in said


async def test_the_records_of_a_sequence_model_are_served_in_their_order(tmp_path: Path) -> None:
    """As a worker would, from the first record on; what began before that is told."""
    write_sums(tmp_path / "models")
    sample, bad = tmp_path / "rides.json", tmp_path / "bad.json"
    sample.write_text('{"car_id": "a", "INPUT": 4}')
    models, mapping = str(tmp_path / "models"), tmp_path / "sums.toml"
    _, said, _ = await command("map", "propose", SUMS, models, "--sample", str(sample))
    mapping.write_text(said)
    steps = [("a", 4), ("b", 10), ("a", 5), ("b", "x"), ("b", 1)]
    lines = [json.dumps({"car_id": car, "INPUT": value}) for car, value in steps]
    bad.write_text("\n".join(lines))
    run = ("map", "run", models, "--mapping", f"{SUMS}={mapping}", "--dry-run", "--sample")
    status, printed, complained = await command(*run, str(bad))
    assert (status, complained) == (1, "1 record would be answered with an error\n")
    assert "sequence a" in printed
    for car, total in (("a", 4), ("b", 10), ("a", 9), ("b", 11)):
        assert f'{{"car_id":"{car}","OUTPUT":{total}}}' in printed
    assert "field 'INPUT' is 'x'" in printed
    begins = 'start = { field = "INPUT", equals = 10 }'
    mapping.write_text(said.replace('start = "first-sight"', begins))
    _, printed, _ = await command(*run, str(bad))
    assert printed.count("(its sequence began before these records)") == 2
    assert '{"car_id":"b","OUTPUT":11}' in printed


@pytest.mark.embedded
async def test_serve_puts_a_model_on_a_topic_of_the_embedded_broker(root: Path) -> None:
    """The topic is made there, for nobody else could; the mapping of a laptop is that of production."""
    mapping = root / "fraud.toml"
    text = (
        MAPPING.replace('"latest"', '"earliest"') + '[results]\ntopic = "scored"\npass = ["n"]\n'
    )
    mapping.write_text(text)
    options = ("--mapping", f"fraud={mapping}")
    async with serving(root / "models", root / "serve.log", options) as service:
        async with AIOKafkaProducer(bootstrap_servers=service.bootstrap) as producer:
            for number in range(3):
                fields = {"n": number, "a": 1, "b": 2, "c": 3, "d": number}
                await producer.send_and_wait("payments", json.dumps(fields).encode())
        found = []
        async with AIOKafkaConsumer(
            "scored", bootstrap_servers=service.bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            async with asyncio.timeout(30):
                while len(found) < 3:
                    found.append(json.loads((await consumer.getone()).value))
        kafka = ("--bootstrap-servers", service.bootstrap)
        status, listed, _ = await command("topics", str(root / "models"), *options, *kafka)
        dry = ("--dry-run", "--limit", "2", *kafka)
        _, tried, _ = await command("map", "run", str(root / "models"), *options, *dry)
        named = ("fraud", str(root / "models"), "--topic", "payments")
        _, proposed, _ = await command("map", "propose", *named, *kafka)
    assert sorted((result["n"], result["OUTPUT1"]) for result in found) == [(0, 0), (1, 1), (2, 2)]
    assert status == 0, listed
    assert re.search(r"payments\W+4\W+yours, never made here\W+yes", listed)
    assert re.search(r"scored\W+4\W+the broker's\W+yes", listed)
    assert "headrace.fraud.requests" not in listed
    assert len(re.findall(r'\{"n":\d,"OUTPUT0":\[1.0,2.0,3.0\],"OUTPUT1":\d\}', tried)) == 2
    assert tomllib.loads(proposed)["source"]["topic"] == "payments"
    assert "payments to scored" in (root / "serve.log").read_text()


async def test_a_worker_refuses_a_mapping_that_does_not_fit_before_anything_starts(
    root: Path,
) -> None:
    """Whoever mistyped a name hears of it, and of the nearest one."""
    mapping = root / "wrong.toml"
    mapping.write_text(MAPPING.replace("INPUT0", "INPUTO"))
    arguments = ("--mapping", f"fraud={mapping}", "--bootstrap-servers", "127.0.0.1:1")
    status, _, said = await as_process("worker", str(root / "models"), *arguments)
    assert status == 1
    assert "inputs.INPUTO: model 'fraud' has no such input, did you mean 'INPUT" in said


async def test_a_field_that_the_schema_does_not_have_is_refused(root: Path) -> None:
    fields = [{"name": name, "type": "double"} for name in ("amount", "age", "rate", "count")]
    schema = {"type": "record", "name": "Payment", "fields": fields}
    (root / "payment.avsc").write_text(json.dumps(schema))
    mapping = root / "wrong.toml"
    text = MAPPING.replace('"json"', '"avro"\nschema = "payment.avsc"')
    mapping.write_text(text.replace('["a", "b", "c"]', '["amuont", "age", "rate"]'))
    option = ("--mapping", f"fraud={mapping}")
    status, _, said = await command("map", "check", str(root / "models"), *option)
    assert status == 1
    assert "inputs.INPUT0 = amuont: the avro records have no field 'amuont'" in said
    assert "did you mean 'amount'?" in said


async def test_events_in_a_file_are_in_structured_mode(root: Path) -> None:
    event = {"specversion": "1.0", "id": "e-1", "source": "/shop", "type": "made"}
    data = {"a": 1, "b": 2, "c": 3, "d": 4}
    sample, mapping = root / "events.json", root / "events.toml"
    sample.write_text(json.dumps({**event, "data": data}))
    results = '[results]\npass = ["cloudevent.id"]\n'
    mapping.write_text(
        MAPPING.replace("offset_reset", "cloudevents = true\noffset_reset") + results
    )
    arguments = ("--mapping", f"fraud={mapping}", "--dry-run", "--sample", str(sample))
    status, said, _ = await command("map", "run", str(root / "models"), *arguments)
    assert status == 0
    assert '{"id":"e-1","OUTPUT0":[1.0,2.0,3.0],"OUTPUT1":4}' in said
