"""`headrace sequences`: workers found in the status topic, each asked on its own port, and every stumble a sentence."""

import asyncio
import json
import socket
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from command_kit import as_process, command
from gateway_kit import TOPOLOGY, identity_config, make_topics
from headrace.deploy.commands_sequences import live_workers
from headrace.deploy.failure import CommandFailed
from headrace.deploy.worker_http import Views, WorkerHttp
from headrace.streams.announce import Announcer
from headrace.streams.kafka import KafkaLog
from headrace.streams.memory import MemoryLog
from headrace.streams.sequence_list import (
    BACKLOG,
    NO_INSTANCE,
    SequencePage,
    SequenceRow,
    slot_name,
)
from headrace.streams.status import (
    ModelState,
    SequenceCounts,
    VersionStatus,
    WorkerStatus,
)
from headrace.streams.topology import Topology
from headrace.streams.watch import wall_ms

SEQUENCE_MODEL = identity_config(sequence_batching={})
ROWS = {
    "w1": [
        SequenceRow(7, 0, slot_name(3), 1, 40, 1_500, 2, "w1"),
        SequenceRow("7", 0, BACKLOG, NO_INSTANCE, 1, 500, 2, "w1"),
    ],
    "w2": [SequenceRow("cam\x1b[31m", 1, slot_name(0), 0, 12, 1_000, 1, "w2")],
}


def status(worker="w1", *, at_ms=0, config=SEQUENCE_MODEL, **more):
    """Return a worker's word about the model ``echo``, written now unless ``at_ms`` says otherwise."""
    version = VersionStatus(1, ModelState.READY, config=config)
    return WorkerStatus(
        *(worker, "echo", at_ms or wall_ms()), versions=(version,), timeout_ms=180_000, **more
    )


async def say(log, *statuses, topology=TOPOLOGY):
    async with log.publisher() as publisher:
        await Announcer(log, publisher, topology.status).write(statuses)


@asynccontextmanager
async def told(*statuses):
    """A memory log with these words in its status topic."""
    async with MemoryLog() as log:
        await make_topics(log)
        await say(log, *statuses)
        yield log


# Which workers there are.


async def test_every_live_worker_of_the_model_is_found():
    """Not that one whose word is old."""
    words = (
        status("w2", url="http://b"),
        status("w1", url="http://a"),
        status("w3", at_ms=1, url="http://c"),
    )
    async with told(*words) as log:
        found = await live_workers(log, TOPOLOGY.status, "echo")
    assert [(worker.worker, worker.url) for worker in found] == [
        ("w1", "http://a"),
        ("w2", "http://b"),
    ]


async def test_a_worker_whose_clock_is_behind_is_waited_for():
    """Its words look old, but for those that come while we watch."""
    behind = status(at_ms=1)
    async with told(behind) as log:
        asking = asyncio.create_task(live_workers(log, TOPOLOGY.status, "echo"))
        while not asking.done():
            await say(log, behind)
    assert [worker.worker for worker in asking.result()] == ["w1"]


@pytest.mark.parametrize(
    ("words", "model", "sentence"),
    [
        (list, "echo", "there is no model 'echo', known models: none"),
        (lambda: [status()], "eko", "there is no model 'eko', known models: echo"),
        (lambda: [status(at_ms=1)], "echo", "no live worker serves model 'echo'"),
        (
            lambda: [status(config=identity_config())],
            "echo",
            "model 'echo' has no sequences: there is no sequence_batching in its configuration",
        ),
    ],
    ids=["no-model", "another-model", "dead", "stateless"],
)
async def test_a_question_that_no_worker_can_answer_is_one_sentence(words, model, sentence):
    # Made now: a word of when the tests were collected would be an old one.
    async with told(*words()) as log:
        with pytest.raises(CommandFailed) as caught:
            await live_workers(log, TOPOLOGY.status, model, wait_s=0.1)
    assert str(caught.value) == sentence


async def test_a_missing_status_topic_is_one_sentence():
    async with MemoryLog() as log:
        with pytest.raises(CommandFailed, match=r"topic t\.status does not exist: no worker"):
            await live_workers(log, "t.status", "echo")


# The whole command, against a real broker and real ports.


@asynccontextmanager
async def workers(*names):
    """Run the ports of these workers; yields the status of each."""
    async with AsyncExitStack() as stack:
        statuses = []
        for name in names:
            http = await stack.enter_async_context(WorkerHttp("127.0.0.1", 0))

            def sequences(model, limit, rows=ROWS[name]):
                return SequencePage(tuple(rows[:limit]), 10) if model == "echo" else None

            http.show(Views(lambda: True, list, sequences=sequences))
            counts = SequenceCounts(live=10)
            url = f"http://127.0.0.1:{http.port}"
            statuses.append(status(name, url=url, sequences=counts))
        yield statuses


@asynccontextmanager
async def broker(properties, prefix, *statuses):
    """The embedded broker with these words in a status topic of its own; yields the command's options."""
    topology = Topology(prefix=prefix)
    async with KafkaLog(properties) as log:
        await log.ensure(
            [spec for spec in topology.shared_specs() if spec.name == topology.status]
        )
        await say(log, *statuses, topology=topology)
    yield (f"--bootstrap-servers={properties['bootstrap.servers']}", f"--topic-prefix={prefix}")


async def run(*arguments, how=command):
    """Run ``headrace sequences echo``; returns exit status, standard output and standard error."""
    return await how("sequences", "echo", *arguments, columns=160)


@pytest.fixture
def closed_url():
    """A root where nobody listens while the test runs: bound, not listening."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.embedded
async def test_the_rows_of_all_workers_are_one_table(embedded_properties, unique):
    """The most recently active first; a string id in quotes, and none that a terminal would obey."""
    async with (
        workers("w1", "w2") as statuses,
        broker(embedded_properties, unique("s"), *statuses) as options,
    ):
        code, table, complaints = await run(*options, how=as_process)
        assert (code, complaints) == (0, "")
        lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines()]
        assert "echo: 3 of 20 live sequences" in table
        assert [cells for cells in lines if cells] == [
            ["'7'", "0", "backlog", "1", "0.5 s", "2", "w1"],
            [r"'cam\x1b[31m'", "1", "instance 0, slot 0", "12", "1.0 s", "1", "w2"],
            ["7", "0", "instance 1, slot 3", "40", "1.5 s", "2", "w1"],
        ]
        code, document, _ = await run(*options, "--json", "--limit", "2")
        assert code == 0
        page = json.loads(document)
        assert page["total"] == 20
        assert [row["id"] for row in page["sequences"]] == ["7", "cam\x1b[31m"]


@pytest.mark.embedded
async def test_a_worker_that_cannot_be_asked_is_named_and_the_others_are_shown(
    embedded_properties, unique, closed_url
):
    async with (
        workers("w2") as statuses,
        broker(
            embedded_properties,
            unique("s"),
            *statuses,
            status("w1", url=closed_url),
            status("w3"),
        ) as options,
    ):
        code, table, complaints = await run(*options)
    assert code == 0
    assert "1 of 10 live sequences" in table
    assert complaints.splitlines() == [
        (
            f"worker 'w1' cannot be reached on {closed_url} (Connection refused); "
            "--worker-advertised-url of the worker says where others reach it"
        ),
        "worker 'w3' has told no address; --worker-advertised-url of the worker names one",
    ]


@pytest.mark.embedded
async def test_the_command_fails_where_no_worker_answers(embedded_properties, unique, closed_url):
    async with WorkerHttp("127.0.0.1", 0) as http:
        http.show(Views(lambda: True, list, sequences=lambda _model, _limit: None))
        words = (
            status("w1", url=closed_url),
            status("w2", url=f"http://127.0.0.1:{http.port}"),
        )
        async with broker(embedded_properties, unique("s"), *words) as options:
            code, table, complaints = await run(*options)
    assert (code, table) == (1, "")
    lines = complaints.splitlines()
    assert lines[0].startswith("worker 'w1' cannot be reached on ")
    assert lines[1].endswith("answered 404: this worker serves no sequence model 'echo'")
    assert lines[2:] == ["no worker of model 'echo' told its sequences"]


@pytest.mark.embedded
async def test_a_model_without_live_sequences_is_a_sentence(embedded_properties, unique):
    async with WorkerHttp("127.0.0.1", 0) as http:
        http.show(Views(lambda: True, list, sequences=lambda _model, _limit: SequencePage((), 0)))
        word = status(url=f"http://127.0.0.1:{http.port}")
        async with broker(embedded_properties, unique("s"), word) as options:
            code, printed, _ = await run(*options)
    assert (code, printed) == (0, "Model 'echo' has no live sequences.\n")
