"""The command line: help with examples, and every stumble as one sentence with an exit status."""

import errno
import socket

import pytest
from headrace.deploy.cli import main
from headrace.deploy.failure import CommandFailed, known_failure, port_taken
from headrace.deploy.settings import Settings, variable_name
from headrace.schemas.errors import ConfigError, LogError

COMMANDS = (
    ["serve"],
    ["worker"],
    ["gateway"],
    ["infer"],
    ["models"],
    ["models", "check"],
    ["sequences"],
    ["dlq"],
    ["dlq", "list"],
    ["dlq", "show"],
    ["dlq", "redrive"],
    ["audit"],
    ["claims"],
    ["claims", "cleanup"],
    ["topics"],
    ["topics", "list"],
    ["topics", "schema"],
    ["topics", "describe"],
)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    """No settings of the machine count, and help is not cut to a terminal's width."""
    for field in Settings.model_fields:
        monkeypatch.delenv(variable_name(field), raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")


def run(capsys, *arguments):
    """Run a command line; returns exit status, standard output and standard error."""
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    printed = capsys.readouterr()
    return caught.value.code or 0, printed.out, printed.err


@pytest.fixture
def closed_port():
    """A port on which nobody listens while the test runs: bound, not listening."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_each_command_explains_itself_with_examples(capsys, command):
    status, out, _ = run(capsys, *command, "--help")
    assert status == 0
    assert "Examples" in out
    assert f"headrace {' '.join(command)}" in out


def test_help_names_default_and_variable_of_each_option(capsys):
    _, out, _ = run(capsys, "serve", "--help")
    text = " ".join(out.replace("│", " ").split())
    assert "--http-port" in text
    assert "(default: 8000; HEADRACE_HTTP_PORT)" in text
    assert "(default: true; HEADRACE_EXIT_ON_ERROR)" in text


def test_version_is_printed(capsys):
    assert run(capsys, "--version")[:2] == (0, "0.1.0\n")


def test_an_unknown_option_ends_with_2(capsys):
    status, _, err = run(capsys, "serve", "--http-prot", "1")
    assert status == 2
    assert "--http-prot" in err


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["serve"], 2, "no models are named: give a model repository, a model folder or"),
        (["serve", "/nowhere"], 1, "/nowhere"),
        (["serve", "x.onnx", "--http-port", "http"], 1, "--http-port = http: expected a valid"),
        (
            ["serve", "x.onnx", "--model-control-mode", "explicit"],
            1,
            "--model-control-mode = explicit: expected none; loading and unloading at run time",
        ),
        (["gateway"], 1, "no Kafka is named: give --bootstrap-servers host:port"),
        (["worker", "x.onnx"], 1, "no Kafka is named: give --bootstrap-servers host:port"),
        (["topics"], 2, "no models are named"),
        (["topics", "list"], 2, "no models are named"),
        (["topics", "/nowhere"], 1, "/nowhere"),
        (["topics", "describe"], 1, "no Kafka is named: give --bootstrap-servers host:port"),
        (["topics", "schema", "m"], 1, "no Kafka is named: give --bootstrap-servers host:port"),
        (["sequences", "m"], 1, "no Kafka is named: give --bootstrap-servers host:port"),
        (["dlq", "list"], 1, "no Kafka is named: give --bootstrap-servers host:port"),
        (["dlq", "show", "0/1"], 1, "no Kafka is named: give --bootstrap-servers host:port"),
        (["dlq", "show", "01"], 2, "'01' is no dead letter's id, expected partition/offset"),
        (["dlq", "redrive"], 2, "say which dead letters: ids, --model, --reason"),
        (["models", "check"], 2, "no models are named"),
        (["models", "check", "/nowhere"], 1, "/nowhere"),
        (["infer", "m"], 2, "say what to send: NAME=VALUES, --example, or --request FILE"),
        (["infer", "m", "x=1", "--example"], 2, "exactly one of them"),
        (
            ["infer", "m", "--request", "/nowhere.json"],
            1,
            "/nowhere.json: the file cannot be read",
        ),
        (
            ["infer", "m", "--request", "r.json", "--output", "y"],
            2,
            "--output has no effect on --request",
        ),
        (["infer", "m", "--example", "--url", "nonsense"], 2, "expected something like http://"),
        (
            ["gateway", "--kafka-config", "/nowhere.properties"],
            1,
            "--kafka-config = /nowhere.properties: the file cannot be read",
        ),
        (
            ["worker", "x.onnx", "--kafka-config", "/dev/null"],
            1,
            "--kafka-config = /dev/null: expected bootstrap.servers in it",
        ),
        (["serve", "x.onnx", "--config", "/no.toml"], 1, "--config = /no.toml: the file cannot"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_stumble_is_one_sentence_and_a_status(capsys, arguments, status, sentence):
    got, out, err = run(capsys, *arguments)
    assert sentence in err
    assert got == status
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in out + err


@pytest.mark.parametrize("command", [["infer", "m", "--example"], ["models"]], ids=" ".join)
def test_no_gateway_is_a_sentence_that_says_how_to_start_one(capsys, closed_port, command):
    url = f"http://127.0.0.1:{closed_port}"
    status, _, err = run(capsys, *command, "--url", url)
    assert status == 1
    assert err.startswith(f"no gateway answers on {url}")
    assert "headrace serve PATH" in err


def test_debug_shows_where_an_error_comes_from(capsys):
    with pytest.raises(ConfigError):
        main(["--debug", "gateway"])


def test_a_taken_port_names_the_option_that_chooses_another():
    error = OSError(errno.EADDRINUSE, "in use")
    assert str(port_taken(error, "--http-port", "127.0.0.1", 8000)) == (
        "port 8000 on 127.0.0.1 is taken by another process, choose another with --http-port"
    )
    denied = OSError(errno.EACCES, "attempted something long")
    assert str(port_taken(denied, "--http-port", "127.0.0.1", 80)) == (
        "cannot listen on 127.0.0.1:80 (--http-port): Permission denied"
    )


def test_a_known_cause_is_found_inside_the_groups_that_tasks_make():
    inner = ExceptionGroup("inner", [LogError("no broker answers", retriable=True)])
    group = ExceptionGroup("outer", [ValueError("noise"), inner])
    assert str(known_failure(group)) == "no broker answers"
    assert known_failure(ValueError("a bug")) is None
    failure = CommandFailed("so", status=2)
    assert known_failure(failure) is failure


def test_paragraphs_of_help_are_broken_by_the_terminal_alone(capsys):
    """Where the source breaks a line, a narrow terminal would break it again a few words later."""
    _, out, _ = run(capsys, "audit", "--help")
    assert "what the models' groups have committed. Joins no group, writes nothing." in out
