"""Every command and program of the README, run as it is written against a real `headrace serve`.

Only addresses are replaced, by those of the service that the test started on free ports.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import pytest_asyncio
from affine_model import save_affine
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from headrace.deploy.serving import serving

pytestmark = pytest.mark.embedded
in_module_loop = pytest.mark.asyncio(loop_scope="module")  # the service is started once

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SEQUENCES = README[README.index("\n## Sequences") : README.index("\n## HTTP and gRPC")]
OWN_TOPICS = README[README.index("\n## Put a model on your topic") : README.index("\n## Clients")]
BLOCKS = BLOCK.findall(README.replace(SEQUENCES, "").replace(OWN_TOPICS, ""))
COMMANDS = [
    line.removeprefix("$ ").partition("    #")[0].strip()
    for language, text in BLOCKS
    if language == "console"
    for line in text.splitlines()
    if line.startswith("$ ")
]
PROGRAMS = [text for language, text in BLOCKS if language == "python"]
SET_UP = ("make ", "pip install", "headrace serve")
ASKING = [command for command in COMMANDS if not command.startswith(SET_UP)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory):
    """``headrace serve my_model.onnx``, as in the README."""
    folder = tmp_path_factory.mktemp("readme")
    save_affine(folder / "my_model.onnx")
    async with serving(folder / "my_model.onnx", folder / "serve.log") as running:
        yield running


def with_addresses(text, service):
    found = text.replace("127.0.0.1:8000", service.url.removeprefix("http://"))
    return found.replace("127.0.0.1:8001", service.grpc).replace(
        "127.0.0.1:9092", service.bootstrap
    )


def run(command, service):
    """Run a command line with our own commands found first; returns what it prints."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment["HEADRACE_URL"] = service.url
    done = subprocess.run(
        ["bash", "-c", with_addresses(command, service)],
        env=environment,
        cwd=service.log.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def shell(script, folder):
    """Run lines of a page in a folder, with our own commands found first; returns what they print."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "160"}
    done = subprocess.run(
        ["bash", "-ec", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_readme_says_what_the_tests_run():
    assert "make demo" in COMMANDS
    assert "make test" in COMMANDS
    assert "headrace serve my_model.onnx" in COMMANDS
    assert len(ASKING) >= 3
    assert len(PROGRAMS) == 3


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("make ")])
def test_the_make_commands_exist(command):
    planned = subprocess.run(
        [*command.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert planned.returncode == 0, planned.stderr


@in_module_loop
@pytest.mark.parametrize("command", ASKING)
async def test_each_command_answers(command, service):
    printed = run(command, service)
    assert "my_model" in printed


@pytest.mark.asyncio
async def test_the_section_on_sequences_answers_as_printed(tmp_path):
    """Its model is made, served, asked twice and listed by the very lines of the page."""
    speech, (_, text) = BLOCK.findall(SEQUENCES)
    assert speech[1].startswith("$ make demo-speech ")
    making, asking = text.split("$ headrace serve sums\n")
    shell(making.replace("$ ", ""), tmp_path)
    commands = [line.removeprefix("$ ") for line in asking.splitlines()]
    assert [command.split()[0] for command in commands] == ["curl", "curl", "headrace"]
    async with serving(tmp_path / "sums", tmp_path / "serve.log") as service:
        answers = [json.loads(run(command, service)) for command in commands[:2]]
        assert [answer["outputs"][0]["data"] for answer in answers] == [[5], [11]]
        listed = run(commands[2], service)
        assert re.search(r"\b7\b.*slot 0", listed), listed


@pytest.mark.asyncio
@pytest.mark.timeout(
    300
)  # three commands, each an interpreter, where others keep the machine busy
async def test_the_section_on_own_topics_answers_as_printed(tmp_path):
    """A mapping is made, checked and tried by the very lines of the page; then a record of the sample is scored."""
    (_, text), (_, whole) = BLOCK.findall(OWN_TOPICS)
    *lines, serve = [line.removeprefix("$ ") for line in text.splitlines()]
    save_affine(tmp_path / "my_model.onnx")
    printed = shell("\n".join(lines), tmp_path)
    assert '{"order_id":"A-17","y":[3.0,5.0,7.0,9.0]}' in printed
    tomllib.loads(whole)
    command, model, option, mapping = serve.removeprefix("headrace ").split()
    assert (command, model) == ("serve", "my_model.onnx")
    name, _, file = mapping.partition("=")
    options = (option, f"{name}={tmp_path / file}")
    async with (
        serving(tmp_path / model, tmp_path / "serve.log", options) as service,
        AIOKafkaProducer(bootstrap_servers=service.bootstrap) as producer,
        AIOKafkaConsumer(
            "orders.results", bootstrap_servers=service.bootstrap, auto_offset_reset="earliest"
        ) as consumer,
    ):
        await producer.send("orders", (tmp_path / "order.json").read_bytes())
        async with asyncio.timeout(60):
            record = await anext(consumer)
        assert json.loads(record.value)["y"] == [3.0, 5.0, 7.0, 9.0]


@in_module_loop
async def test_curl_answers_with_the_models_values(service):
    command, later = [c for c in ASKING if c.startswith("curl") and "/infer" in c]
    assert "respond-async" in later
    response = json.loads(run(command, service))
    assert response["outputs"][0]["shape"] == [1, 4]
    assert response["outputs"][0]["data"] == [3.0, 5.0, 7.0, 9.0]


@in_module_loop
async def test_the_plain_program_gets_its_answer_from_the_results_topic(service, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(with_addresses(PROGRAMS[0], service))
    printed = run(f"{sys.executable} {program}", service)
    assert printed.startswith("b'first' b'OK' {")
    assert "[3.0, 5.0, 7.0, 9.0]" in printed


@in_module_loop
async def test_the_program_with_our_own_client_prints_the_models_values(service, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(with_addresses(PROGRAMS[1], service))
    assert run(f"{sys.executable} {program}", service).strip() == "[[3. 5. 7. 9.]]"


@in_module_loop
async def test_the_program_with_tritons_own_client_prints_the_models_values(service, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(with_addresses(PROGRAMS[2], service))
    assert run(f"{sys.executable} {program}", service).strip() == "[[3. 5. 7. 9.]]"


@in_module_loop
async def test_the_same_is_served_from_a_kafka_that_is_named(service, tmp_path):
    """The README's line with ``--bootstrap-servers``; the broker is the first service's."""
    (line,) = re.findall(r"`headrace serve (\S+) (--bootstrap-servers) \S+`", README)
    assert line[0] == "/path/to/model_repository"
    repository = tmp_path / "models" / "other" / "1"
    repository.mkdir(parents=True)
    save_affine(repository / "model.onnx")
    options = (line[1], service.bootstrap, "--topic-prefix", "second")
    async with serving(tmp_path / "models", tmp_path / "serve.log", options) as second:
        printed = run(f"headrace infer other --example --url {second.url}", second)
        assert "other version 1" in printed
        by_record = f"headrace infer other 1,2,3,4 --json {' '.join(options)}"
        assert json.loads(run(by_record, second))["outputs"][0]["data"] == [3.0, 5.0, 7.0, 9.0]


def test_every_option_of_the_readme_exists():
    from headrace.deploy.settings import Settings, option_name

    known = {option_name(field) for field in Settings.model_fields}
    own = {
        *("--example", "--request", "--create", "--execute", "--again"),
        *("--help", "--language", "--limit", "--output", "--timeout-ms", "--url"),
        *("--dry-run", "--sample", "--source", "--topic"),
        *("--include_imports", "--descriptor_set_out", "--include", "--descriptor"),  # protoc's
    }
    assert set(re.findall(r"--[a-z][a-z-]+", README)) <= known | own


def test_every_default_of_the_option_table_is_the_real_one():
    from headrace.deploy.settings import Settings

    rows = re.findall(r"^\| (`--[^|]*) \| ([^|]+) \|", README, re.MULTILINE)
    checked = 0
    for names, values in rows:
        fields = [n.strip("`-").replace("-", "_") for n in names.strip().split(", ")]
        if fields[0] in ("model_repository", "bootstrap_servers", "broker_port"):
            continue
        shown = [value.strip("` ") for value in values.split(", ")]
        for field, value in zip(fields, shown, strict=True):
            real = Settings.model_fields[field].default
            assert value == (str(real).lower() if isinstance(real, bool) else str(real))
            checked += 1
    assert checked >= 8
