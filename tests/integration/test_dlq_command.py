"""`headrace dlq`: the whole command against real brokers, what it prints, sends and refuses."""

import base64
import json
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
from command_kit import as_process, command
from headrace.schemas.codec import encode_request
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import JSON, Out
from headrace.schemas.tensor import Tensor
from headrace.streams.kafka import KafkaLog
from headrace.streams.topology import Topology
from letter_kit import letter, make_topics, put, records, stored

KINDS = [
    pytest.param("embedded", id="embedded", marks=pytest.mark.embedded),
    pytest.param("kafka", id="kafka", marks=pytest.mark.kafka),
]


@dataclass
class Stage:
    """A dead-letter topic on a broker, and the command line that sees it."""

    log: KafkaLog
    topology: Topology
    options: tuple[str, ...]
    requests: str = field(init=False)

    def __post_init__(self):
        self.requests = self.topology.requests("m")

    async def put(self, *letters):
        """Write letters of the model's requests, those of partition n to partition n."""
        await put(
            self.log,
            *(stored(one, one.source.partition, self.topology.dead_letters) for one in letters),
        )

    def letter(self, offset=0, **more):
        """Return a letter of the model's requests."""
        return letter(offset, **({"topic": self.requests} | more))

    async def sent(self):
        """Return the requests that are there."""
        return await records(self.log, self.requests)

    async def run(self, *arguments, how=command):
        """Run ``headrace dlq``; returns exit status, standard output and standard error."""
        return await how("dlq", *arguments, *self.options)

    async def json(self, *arguments, how=command):
        """Run it with ``--json``; returns what it prints."""
        code, printed, complained = await self.run(*arguments, "--json", how=how)
        assert (code, complained) == (0, "")
        return json.loads(printed)


@asynccontextmanager
async def staged(properties, prefix, *, requests=2):
    """Make the topics; 0 partitions leaves the requests out."""
    topology = Topology(prefix=prefix)
    options = (
        f"--bootstrap-servers={properties['bootstrap.servers']}",
        f"--topic-prefix={prefix}",
    )
    async with KafkaLog(properties) as log:
        stage = Stage(log, topology, options)
        names = {"topic": topology.dead_letters, "source": stage.requests}
        await make_topics(log, requests=requests, **names)
        yield stage


@pytest.fixture
async def stage(embedded_properties, unique):
    async with staged(embedded_properties, unique("q")) as made:
        yield made


def cells(table):
    """Return the rows of a table, the head left out."""
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines()]
    return [row for row in lines if row]


@pytest.mark.parametrize("kind", KINDS)
async def test_letters_are_listed_shown_and_sent_again(request, unique, kind):
    """A dry run sends nothing; what was sent is not sent twice; every broker."""
    properties = request.getfixturevalue(f"{kind}_properties")
    how = as_process if kind == "embedded" else command
    async with staged(properties, unique("q")) as stage:
        headers = (("id", b"r"), ("x-null", None), ("attempt", b"1"))
        await stage.put(
            stage.letter(7, partition=1, headers=headers),
            stage.letter(8, partition=1, model="n", reason="malformed", error_class="X\x1b[31m"),
            stage.letter(9, partition=0),
        )
        page = await stage.json("list", "--oldest-first", how=how)
        assert [one["id"] for one in page["letters"]] == ["0/0", "1/0", "1/1"]
        assert [one["source"].rpartition("/")[2] for one in page["letters"]] == ["9", "7", "8"]
        assert page["total"] == 3
        code, table, complaints = await stage.run("list", "--reason", "malformed")
        assert (code, complaints) == (0, "")
        (written, source, facts) = cells(table)
        assert (written[0], written[2]) == ("1/1", "malformed")
        assert written[1].endswith("Z pending")
        assert source == ["", f"{stage.requests}/1/8", r"X\x1b[31m: bad bytes"]
        assert facts == ["", "n 1, attempts 1, 7 bytes", ""]

        code, table, _ = await stage.run("redrive", "--model", "m")
        assert code == 0
        assert "dry run: 2 of 2 dead letters would be sent; --execute sends them" in table
        assert await stage.sent() == []
        execute = ("redrive", "--model", "m", "--execute")
        code, table, complaints = await stage.run(*execute, how=how)
        assert (code, complaints) == (0, "")
        assert "2 of 2 dead letters sent" in table
        assert [row[3:] for row in cells(table)] == [
            [f"{stage.requests}/0", "2", "sent"],
            [f"{stage.requests}/1", "2", "sent"],
        ]
        first, second = await stage.sent()
        assert (first.partition, first.key, first.value) == (0, b"k9", b"value 9")
        assert (second.partition, second.key, second.value) == (1, b"k7", b"value 7")
        assert list(second.headers) == [("id", b"r"), ("x-null", None), ("attempt", b"2")]

        page = await stage.json("list", "--state", "redriven")
        assert {one["id"] for one in page["letters"]} == {"0/0", "1/0"}
        code, printed, _ = await stage.run("redrive", "--model", "m", "--execute")
        assert (code, printed) == (0, "No dead letter matches.\n")
        code, table, complaints = await stage.run("redrive", "1/0", "1/1", "--execute")
        assert code == 1
        assert "1/0" in table
        assert "refused: it was redriven already, expected --again to send it once more" in table
        assert complaints == "1 of 2 dead letters were not sent\n"
        code, *_ = await stage.run("redrive", "1/0", "--again", "--execute")
        assert code == 0
        attempts = [dict(one.headers)["attempt"] for one in await stage.sent() if one.key == b"k7"]
        assert attempts == [b"2", b"3"]


@pytest.mark.embedded
async def test_a_letter_is_shown_with_its_error_headers_request_and_bytes(stage):
    """Nothing of a client's reaches the terminal as it is."""
    tensor = Tensor.from_numpy("x\x1b]0;", np.arange(12, dtype=np.float32).reshape(1, 12))
    value, headers = encode_request(InferRequest((tensor,), id="r1"))
    await stage.put(
        stage.letter(4, key=b"\x1b[2J", value=value, headers=(*headers, ("x\x1b", b"\xff\x00"))),
        stage.letter(5, value=b"\x00\x01binary\xff", headers=()),
        stage.letter(
            6, value=b'{"inputs": "\xc3\xa9\x1b"}', headers=(("content-type", JSON.encode()),)
        ),
        stage.letter(7, value=None),
    )
    code, shown, complaints = await stage.run("show", "0/0", how=as_process)
    assert (code, complaints) == (0, "")
    assert "\x1b" not in shown
    for text in (
        f"{stage.requests}/0/4",
        "UndecodableRecord: bad bytes",
        r"4 bytes: \x1b[2J",
        r"b'\xff\x00'",
        "request\n",
        r"input 'x\x1b]0;' FP32 [1, 12]: [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, …]",
    ):
        assert text in shown, text
    _, shown, _ = await stage.run("show", "0/1")
    assert "no request: " in shown
    assert "  00000000  00 01 62 69 6e 61 72 79 ff                       ..binary." in shown
    _, shown, _ = await stage.run("show", "0/2")
    assert "value as text:\n" in shown
    assert r'{"inputs": "é\x1b"}' in shown
    _, shown, _ = await stage.run("show", "0/3")
    assert "null" in shown
    document = await stage.json("show", "0/1")
    assert base64.b64decode(document["value"]) == b"\x00\x01binary\xff"
    assert (document["state"], document["value_bytes"]) == ("pending", 9)


@pytest.mark.embedded
async def test_what_cannot_be_sent_is_refused_one_by_one_and_the_rest_is_sent(
    embedded_properties, unique
):
    """A topic that is gone, or has fewer partitions than it had; a deadline that has passed."""
    async with staged(embedded_properties, unique("q"), requests=1) as stage:
        past = (("deadline-ms", b"%d" % (time.time_ns() // 1_000_000 - 60_000)),)
        await stage.put(
            stage.letter(1, topic=f"{stage.requests}.gone"),
            stage.letter(2, partition=1),
            stage.letter(3, headers=past),
            stage.letter(4),
        )
        code, table, complaints = await stage.run("redrive", "--all", "--execute")
        assert code == 1
        assert complaints == "3 of 4 dead letters were not sent\n"
        outcomes = {row[0]: row[5] for row in cells(table)}
        assert outcomes["0/0"].startswith(f"refused: topic {stage.requests}.gone does not exist")
        assert outcomes["1/0"].startswith(f"refused: topic {stage.requests} has 1 partitions")
        assert "deadline_passed, expected --drop-deadline" in outcomes["0/1"]
        assert outcomes["0/2"] == "sent"
        assert [one.key for one in await stage.sent()] == [b"k4"]
        code, *_ = await stage.run("redrive", "0/1", "--drop-deadline", "--execute")
        assert code == 0
        assert list((await stage.sent())[1].headers) == [("attempt", b"2")]


@pytest.mark.embedded
async def test_the_oldest_go_first_and_what_is_left_is_told(stage):
    await stage.put(*(stage.letter(n) for n in range(3)))
    document = await stage.json("redrive", "--all", "--limit", "2", "--execute")
    assert (document["dry_run"], document["more"]) == (False, 1)
    assert [(one["id"], one["sent"]) for one in document["letters"]] == [
        ("0/0", True),
        ("0/1", True),
    ]
    assert [one.key for one in await stage.sent()] == [b"k0", b"k1"]
    code, table, complaints = await stage.run("redrive", "--all", "--limit", "1")
    assert code == 0
    assert "0/2" in table
    assert complaints == ""


@pytest.mark.embedded
async def test_every_stumble_is_a_sentence(stage):
    await put(stage.log, Out(stage.topology.dead_letters, 0, b"k", b"somebody else's"))
    for arguments, status, sentence in (
        (("show", "x"), 2, "'x' is no dead letter's id, expected partition/offset such as 0/42"),
        (("show", "0/0"), 1, f"topic {stage.topology.dead_letters} has no dead letter 0/0"),
        (("show", "5/999"), 1, "has no dead letter 5/999"),
        (("redrive",), 2, "say which dead letters: ids, --model, --reason, --partition, --since"),
        (("redrive", "0/0", "1/3"), 1, "has no dead letter 0/0, 1/3 that is selected"),
        (("list", "--since", "yesterday"), 2, "--since = yesterday: expected an age such as 30m"),
    ):
        code, printed, complaints = await stage.run(*arguments)
        assert (code, printed) == (status, ""), complaints
        assert sentence in complaints
    code, printed, complaints = await stage.run("list")
    assert (code, printed) == (0, "No dead letter matches.\n")
    assert complaints == "1 records of the topic are no dead letters and are left out.\n"
    elsewhere = Stage(stage.log, stage.topology, (stage.options[0], "--topic-prefix=nobody"))
    code, _, complaints = await elsewhere.run("list")
    assert code == 1
    assert complaints == "topic nobody.dead-letters does not exist: no worker has been here\n"
