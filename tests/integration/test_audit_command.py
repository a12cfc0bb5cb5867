"""`headrace audit` against a real broker: a table or JSON, examples with coordinates, and an exit status that tells."""

import asyncio
import json
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import pytest
from audit_kit import TOPOLOGY, answer, request, value_of
from command_kit import as_process, command
from headrace.deploy import commands_audit, console
from headrace.deploy.cli import main
from headrace.deploy.commands_audit import print_report
from headrace.deploy.failure import CommandFailed
from headrace.schemas.record import TP, Out
from headrace.streams.audit_report import (
    AuditReport,
    Counts,
    Example,
    Kind,
    ModelReport,
    PartitionReport,
    Verdict,
)
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import LATEST, Mode, Position, Span
from log_kit import PATIENCE_S, join

CLEAN, FINDINGS, UNSURE = 0, 1, 2


class Topics:
    """The model's topics on the embedded broker, under a prefix of their own.

    Attributes:
        options: Of the command, to find them.
    """

    def __init__(self, log, prefix, bootstrap):
        self.topology = replace(TOPOLOGY, prefix=prefix)
        self.options = (f"--bootstrap-servers={bootstrap}", f"--topic-prefix={prefix}")
        self.requests = self.topology.requests("echo")
        self.results = self.topology.results("echo")
        self._log = log

    async def write(self, *outs):
        """Write requests and answers, under this prefix."""
        async with self._log.publisher() as publisher:
            for out in outs:
                topic = out.topic.replace(TOPOLOGY.prefix, self.topology.prefix, 1)
                await publisher.publish(
                    [Out(topic, out.partition, out.key, out.value, out.headers)]
                )

    def answer(self, partition, offset, **more):
        """Return an answer to a request of ours."""
        return answer(f"{self.requests}/{partition}/{offset}", **more)


@pytest.fixture
async def topics(embedded_properties, unique):
    """Three requests in partition 0, each answered once."""
    prefix = unique("t")
    async with KafkaLog(embedded_properties) as log:
        topics = Topics(log, prefix, embedded_properties["bootstrap.servers"])
        await log.ensure([*topics.topology.shared_specs(), *topics.topology.model_specs("echo")])
        await topics.write(*[request(0)] * 3)
        await topics.write(*[topics.answer(0, offset) for offset in range(3)])
        yield topics


async def run(*arguments, how=command):
    """Run ``headrace audit``; returns exit status, standard output and standard error."""
    return await how("audit", *arguments)


def rows(table):
    """Return the cells of each row."""
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines()]
    return [cells for cells in lines if cells]


@pytest.mark.embedded
async def test_a_clean_log_ends_with_0_and_a_table(topics):
    code, table, complaints = await run("echo", *topics.options)
    assert (code, complaints) == (CLEAN, "")
    assert rows(table) == [
        ["echo", "0", "0-3", "3", "3", ""],
        ["echo", "1", "0-0", "0", "0", ""],
        ["all", "", "", "3", "3", ""],
    ]
    assert table.splitlines()[-1] == (
        "Clean, as at_least_once promises: 3 of 3 requests are answered, 0 are pending."
    )


@pytest.mark.embedded
async def test_findings_end_with_1_and_their_coordinates(topics):
    """A name that somebody else chose never reaches the terminal as it is."""
    await topics.write(
        topics.answer(0, 1, value=value_of((9.0, 9.0))),
        topics.answer(0, 77),
        answer("\x1b[31m/0/5", to=(TOPOLOGY.results("echo"), 0)),
        request(1),
    )
    code, table, complaints = await run(*topics.options, how=as_process)
    assert (code, complaints) == (FINDINGS, "")
    assert rows(table)[-1] == [
        "all",
        "",
        "",
        "4",
        "3",
        "1 pending, 1 different duplicates, 2 orphaned",
    ]
    assert table.splitlines()[-4:] == [
        (
            f"different duplicate: {topics.requests}/0/1: output 'OUTPUT0' has 1 and 9 at element 0: "
            f"{topics.results}/0/1, {topics.results}/0/3"
        ),
        f"orphaned: {topics.requests}/0/77: there is no such request: {topics.results}/0/4",
        rf"orphaned: \x1b[31m/0/5: there is no such partition: {topics.results}/0/5",
        "Not as at_least_once promises: 0 missing, 1 duplicated (0 of them equal), 2 orphaned.",
    ]
    assert "\x1b[31m" not in table


@pytest.mark.parametrize("columns", [80, 120])
def test_no_number_and_no_place_is_cut_in_a_narrow_terminal(columns):
    """Half a number is another one, and a place is there to be copied."""
    place = "headrace.densenet_onnx.results/3/1234567"
    counts = Counts(1_234_567, 1_234_560, 4, 1, 1, 3, 12, dead_letters_repeated=1)
    example = Example(Kind.MISSING, place, (place,), "nothing instead of an answer\x1b[31m")
    report = AuditReport(
        [ModelReport("densenet_onnx", [PartitionReport(0, 100_000, 1_334_567, counts)], [example])]
    )
    with console.out.capture() as printed, resized(columns):
        print_report(report, Verdict.FINDINGS, Mode.AT_LEAST_ONCE)
    text = printed.get()
    assert "…" not in text
    assert rf"missing: {place}: nothing instead of an answer\x1b[31m: {place}" in text
    table = text.partition("missing: ")[0]
    assert max(map(len, table.splitlines())) <= columns
    cells = rows(table)
    assert cells[0][3:5] == ["1234567", "1234560"]
    told = [
        "".join(row[at] for row in cells[:-1] if not row[4] or row is cells[0]) for at in (0, 2)
    ]
    assert told == ["densenet_onnx", "100000-1334567"]


@contextmanager
def resized(columns):
    """Let tables be printed as wide as that."""
    before, console.out.width = console.out.width, columns
    try:
        yield
    finally:
        console.out.width = before


@pytest.mark.embedded
async def test_json_says_the_same_and_which_promise_is_broken(topics):
    """An equal duplicate is allowed at least once, and never exactly once; what no group has committed is pending."""
    await topics.write(topics.answer(0, 1), request(1))
    code, document, _ = await run(*topics.options, "--json")
    report = json.loads(document)
    assert (code, report["verdict"]) == (CLEAN, "clean")
    assert (report["total"]["duplicated_equal"], report["total"]["pending"]) == (1, 1)
    (model,) = report["models"]
    assert [p["requests"] for p in model["partitions"]] == [3, 1]
    assert model["examples"] == [
        {
            "kind": "repeated",
            "source": f"{topics.requests}/0/1",
            "answers": [f"{topics.results}/0/1", f"{topics.results}/0/3"],
            "detail": "equal",
        }
    ]
    code, document, _ = await run(
        *topics.options, "--json", "--delivery=exactly_once", "--examples=0"
    )
    report = json.loads(document)
    assert (code, report["verdict"], report["delivery"]) == (FINDINGS, "findings", "exactly_once")
    assert report["models"][0]["examples"] == []


@pytest.mark.embedded
async def test_a_range_is_audited_alone(topics):
    await topics.write(topics.answer(0, 2, value=value_of((9.0, 9.0))))
    for arguments, requests, status in (
        (("--offsets", "0:0-2"), 2, CLEAN),
        (("--offsets", "0:2-"), 1, FINDINGS),
        (("--since", "1h"), 3, FINDINGS),
        (("--until", "2020-01-01T00:00:00"), 0, CLEAN),
    ):
        code, document, complaints = await run("echo", *topics.options, *arguments, "--json")
        assert complaints == ""
        assert (json.loads(document)["total"]["requests"], code) == (requests, status), arguments


@pytest.mark.embedded
async def test_a_mapped_model_is_audited_by_its_mapping(topics, tmp_path):
    """Null values that it passes over need no answer; where it began at a topic's end, a range is asked for."""
    mapping = tmp_path / "echo.toml"
    text = (
        f'[source]\ntopic = "{topics.requests}"\nformat = "json"\noffset_reset = "earliest"\n'
        '[inputs.x]\nfield = "x"\n'
    )
    mapping.write_text(text)
    await topics.write(Out(f"{TOPOLOGY.prefix}.echo.requests", 0, b"k", None, ()))
    options = (*topics.options, "--mapping", f"echo={mapping}")
    status, said, complained = await run("echo", *options)
    assert (status, complained) == (CLEAN, "")
    assert rows(said)[0] == ["echo", "0", "0-4", "3", "3", ""]
    mapping.write_text(text + '[results]\ntopic = "nowhere"\n')
    status, _, complained = await run("echo", *options)
    assert (status, complained) == (2, "topic nowhere of model 'echo' does not exist\n")
    mapping.write_text(text.replace("earliest", "latest"))
    status, _, complained = await run(*options)
    assert status == UNSURE
    assert "was first served from where topic" in complained
    status, said, _ = await run("echo", *options, "--offsets", "0:1-3")
    assert (status, rows(said)[0][3:5]) == (CLEAN, ["2", "2"])


@pytest.mark.embedded
async def test_what_cannot_be_told_ends_with_2(topics, embedded_properties):
    """An answer that was due in a topic that is not there; a model that is not; a Kafka that is not."""
    code, _, complaints = await run("eko", *topics.options)
    assert (code, len(complaints.splitlines())) == (UNSURE, 1)
    assert ".eko.requests of model 'eko' does not exist" in complaints
    code, _, complaints = await run("--bootstrap-servers=127.0.0.1:1")
    assert (code, len(complaints.splitlines())) == (UNSURE, 1)
    await topics.write(request(0, reply=("not.allowed", 0)))
    async with committing(embedded_properties, topics, 4):
        code, table, _ = await run("echo", *topics.options)
    assert code == UNSURE
    assert "its answer was due in 'not.allowed'/0, which does not exist or is not allowed" in table
    assert table.splitlines()[-1].startswith("Cannot tell: 1 answers may have been deleted")


@pytest.mark.parametrize(
    ("delivery", "counts", "sentence"),
    [
        (
            Mode.EXACTLY_ONCE,
            Counts(requests=3, answered=3, dead_letters=1, dead_letters_repeated=1),
            (
                "Not as exactly_once promises: 0 missing, 0 duplicated (0 of them equal), 0 orphaned, "
                "1 dead letters repeated."
            ),
        ),
        (
            Mode.EXACTLY_ONCE,
            Counts(requests=3, answered=2, missing_replies=1),
            (
                "Clean, as exactly_once promises: 2 of 3 requests are answered, 0 are pending, "
                "1 calls got no reply (their callers got 504)."
            ),
        ),
        (
            Mode.EXACTLY_ONCE,
            Counts(requests=3, answered=1, missing=1, missing_replies=1),
            "Not as exactly_once promises: 1 missing, 0 duplicated (0 of them equal), 0 orphaned.",
        ),
        (
            Mode.AT_LEAST_ONCE,
            Counts(requests=3, answered=1, missing=1, missing_replies=1, dead_letters_repeated=1),
            "Not as at_least_once promises: 2 missing, 0 duplicated (0 of them equal), 0 orphaned.",
        ),
    ],
    ids=["letters", "replies", "both", "once"],
)
def test_P13_the_sentence_names_what_breaks_the_promise_and_nothing_else(
    delivery, counts, sentence, capsys
):
    report = AuditReport([ModelReport("echo", [PartitionReport(0, 0, 3, counts)])])
    print_report(report, report.verdict(delivery), delivery)
    assert capsys.readouterr().out.splitlines()[-1] == sentence


@asynccontextmanager
async def committing(properties, topics, offset):
    """Let a member of the model's group commit that it has finished partition 0 up to an offset."""
    tp = TP(topics.requests, 0)
    async with KafkaLog(properties, commit_interval_ms=0) as log:
        async with log.reader({tp: Span(LATEST)}) as reader:
            assert reader.positions()[tp] == offset
        member, source = join(log, topics.topology.group("echo"), topics.requests)
        async with source:
            async with asyncio.timeout(PATIENCE_S):
                while tp not in member.epochs:
                    await source.poll(1, 0.1)
                delivery = log.delivery(source, Mode.AT_LEAST_ONCE)
                await delivery.settle({tp: Position(offset, "", member.epochs[tp])})
                await delivery.flush()
            yield


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "no Kafka is named: give --bootstrap-servers host:port"),
        (["--log-level", "x"], "--log-level = x: expected 'debug'"),
        (
            ["m", "--since", "soon"],
            "--since = soon: expected an age such as 30m, 2h or 7d, a time such as",
        ),
        (["m", "--until", "9" * 16], "--until = 9999"),
        (
            ["m", "--since", "1h", "--until", "2h"],
            "--until = 2h: expected a time after --since 1h",
        ),
        (
            ["m", "--offsets", "0:1-9", "--offsets", "0:20-30"],
            "--offsets is '0:20-30', expected one stretch of partition 0",
        ),
        (["m", "--offsets", "0-9"], "--offsets is '0-9', expected PARTITION:FIRST-END such as"),
        (["m", "--offsets", "0:9-1"], "expected an end that is not before the first offset"),
        (["--offsets", "0:1-9"], "--offsets goes with one model and no times, found 0 models"),
        (
            ["m", "--offsets", "0:1-9", "--since", "1h"],
            "--offsets goes with one model and no times, found 1 models and times",
        ),
        (["m/x", "--offsets", "0:1-9"], "model = m/x: cannot be (part of) a topic's name"),
        (["--delivery", "twice"], "Invalid value for '--delivery'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_stumble_ends_with_2_and_never_with_1(capsys, monkeypatch, arguments, sentence):
    """1 would say that something was found."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("HEADRACE_BOOTSTRAP_SERVERS", raising=False)
    with pytest.raises(SystemExit) as caught:
        main(["audit", *arguments])
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert caught.value.code == UNSURE
    assert "Traceback" not in printed.err


def test_a_bug_of_ours_ends_with_2_as_well():
    @commands_audit._cannot_tell
    def command():
        raise ZeroDivisionError("by zero")

    with pytest.raises(
        CommandFailed, match="internal error, ZeroDivisionError: by zero"
    ) as caught:
        command()
    assert caught.value.status == UNSURE


def test_help_tells_the_statuses_and_has_examples(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as caught:
        main(["audit", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert not caught.value.code
    assert "Ends with 0 if it is clean, 1 if the promise is broken, 2 if it cannot tell" in text
    assert "headrace audit resnet vad --delivery exactly_once --since 2h --json" in text
