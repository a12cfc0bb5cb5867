"""Every command of examples/README.md, run as it is printed, and every program that `headrace topics schema` prints.

Against `headrace serve examples/models` with the broker inside; kcat, where it is installed, against an Apache Kafka.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

import brokers
import pytest
import pytest_asyncio
from command_kit import command
from headrace.deploy.serving import Service, serving
from headrace.deploy.snippets import Language

in_module_loop = pytest.mark.asyncio(loop_scope="module")  # the service is started once
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
README = (EXAMPLES / "README.md").read_text(encoding="utf-8")
COMMANDS = {
    re.split(r"[/ ]", line)[-1]: line.removeprefix("$ ")
    for line in README.splitlines()
    if line.startswith("$ ")
}
"""Last word → command."""

PATIENCE_S = 100
FAST_JAVA = "-Xmx256m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # as `brokers.java`
IN_JAVA = "'examples/java/target/dependency/*'"
ECHOED = r'"name":"y","datatype":"FP32","shape":\[1,3\],"data":\[1.0,2.0,3.0\]'
SUMS = r'"name":"sum","datatype":"INT32","shape":\[1,1\],"data":\[{}\]'

PRINTED = {
    "python_async.py": r"""infer \[\[\[0\.0, .*\[\[3\.0, 3\.0, 3\.0\]\]\]
stream 5 *
stream 6 *
stream 7 final
sequence 1
sequence 3
result headrace\.echo\.requests/\d+/\d+ 8\.0
error NOT_FOUND unknown_model .*'ecko' is not found, known models: each, echo, total
""",
    "python_sync.py": r"""infer \[\[1\.5, 2\.5\]\]
stream 5
stream 6
sequence 1
sequence 3
sequence 6
""",
    "curl.sh": rf"""\{{"id":"one",.*{ECHOED}\}}\]\}}
.*{SUMS.format(5)}.*
.*{SUMS.format(10)}.*
data: .*"y":5\}}

data: .*"y":6\}}

data: .*"y":7\}}

""",
    "confluent_client.py": r"OK \[1\.0, 2\.0, 3\.0\]\n",
    "PlainClient.java": rf"OK\n\{{.*{ECHOED}.*\n",
    "SpringClient.java": (
        rf"\{{.*{ECHOED}.*\nINVALID_ARG .*unexpected inference input 'z' for model 'echo'.*\n"
    ),
    "kcat.sh": rf".*status=OK.*\n\{{.*{ECHOED}.*\n7 \{{.*{SUMS.format(5)}.*\n",
}
"""Example → what it prints, a regular expression."""

ELSEWHERE = {"faust_alerts.py"}
"""Examples that a test of their own runs."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory):
    """``headrace serve examples/models``."""
    folder = tmp_path_factory.mktemp("examples")
    async with serving(EXAMPLES / "models", folder / "serve.log") as running:
        yield running


def ran(line: str, **environment: str) -> str:
    """Run a command line in the repository's root, our own Python first; returns what it prints."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=ROOT,
        env={**os.environ, "PATH": path, "JDK_JAVA_OPTIONS": FAST_JAVA, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    return done.stdout


def spring_jars() -> Path:
    """Return the folder of the jars that the examples in Java need."""
    try:
        return brokers.fetched(EXAMPLES / "java" / "pom.xml", brokers.cache().parent / "examples")
    except brokers.Unavailable as missing:
        brokers.lacking(str(missing))


def played(name: str, kafka: str, gateway: str = "") -> None:
    """Run an example as its command is printed, and compare what it prints."""
    line = COMMANDS[name]
    if IN_JAVA in line:
        line = line.replace(IN_JAVA, f"'{spring_jars()}/*'")
    printed = ran(line, HEADRACE_BOOTSTRAP_SERVERS=kafka, HEADRACE_URL=gateway)
    assert re.fullmatch(PRINTED[name], printed), printed


def test_every_example_has_its_line_its_command_and_its_test():
    files = {path.name for path in EXAMPLES.rglob("*.*") if path.suffix in (".py", ".sh", ".java")}
    assert files == PRINTED.keys() | ELSEWHERE
    assert all(f"/{name})" in README or f"({name})" in README for name in files)
    assert files - ELSEWHERE <= COMMANDS.keys()


@in_module_loop
@pytest.mark.embedded
@pytest.mark.parametrize("name", sorted(PRINTED.keys() - {"kcat.sh"}))
async def test_an_example_runs_as_printed(name: str, service: Service):
    if name == "confluent_client.py" and importlib.util.find_spec("confluent_kafka") is None:
        brokers.lacking("no confluent-kafka: pip install 'headrace[librdkafka]'")
    if name == "curl.sh" and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    await asyncio.to_thread(played, name, service.bootstrap, service.url)


async def topics(service: Service, *arguments: str) -> str:
    """Return what `headrace topics` prints."""
    options = ("--bootstrap-servers", service.bootstrap)
    status, printed, complained = await command("topics", *arguments, *options)
    assert status == 0, complained
    return printed


async def snippet(service: Service, model: str, language: Language) -> str:
    """Return a program that `headrace topics schema` prints."""
    return await topics(service, "schema", model, "--language", language, "--url", service.url)


@in_module_loop
@pytest.mark.embedded
@pytest.mark.parametrize("model", ["echo", "each", "total"])
async def test_a_printed_program_in_python_or_for_curl_runs_as_printed(model, service, tmp_path):
    output = "sum" if model == "total" else "y"
    if model != "echo":  # which asks as `total` does
        program = tmp_path / "ask.py"
        program.write_text(await snippet(service, model, Language.PYTHON), encoding="utf-8")
        assert f"{{'{output}': array([[0" in await asyncio.to_thread(ran, f"python {program}")
    if shutil.which("curl") is not None:
        asking = await snippet(service, model, Language.CURL)
        assert f'"{output}"' in await asyncio.to_thread(ran, asking)


@in_module_loop
@pytest.mark.embedded
async def test_a_printed_program_in_java_runs_as_printed(service, tmp_path):
    """With a key and the headers of a sequence."""
    program = tmp_path / "Ask.java"
    program.write_text(await snippet(service, "total", Language.JAVA), encoding="utf-8")
    printed = await asyncio.to_thread(ran, f"java -cp '{spring_jars()}/*' {program}")
    assert re.fullmatch(rf"OK\n.*{SUMS.format(0)}.*\n", printed), printed


@in_module_loop
@pytest.mark.embedded
async def test_schema_prints_topics_tensors_headers_and_both_avro_schemas(service):
    printed = await topics(service, "schema", "total")
    for text in (
        "headrace.total.requests",
        "headrace.total.results",
        "the key is the sequence id as text, hashed by murmur2",
        "idempotency-key",
        "response-index",
        '"name": "InferRequest"',
        '"name": "InferResponse"',
        "client.sequence",
    ):
        assert text in printed, text
    assert re.search(r"input\W+x\W+INT32\W+-1, 1\b", printed)


@in_module_loop
@pytest.mark.embedded
async def test_describe_tells_lag_and_who_reads_what(service):
    """A model's partitions; a line for each model; the same as JSON."""
    window = ("--window-secs", "0.1")
    printed = await topics(service, "describe", "echo", *window)
    assert "echo: headrace.echo.requests, group headrace.echo" in printed
    rows = re.findall(r"^│ (\d) .*│ (\S+) +│$", printed, re.MULTILINE)
    assert [number for number, _ in rows] == list("0123")
    (owner,) = {worker for _, worker in rows}
    printed = await topics(service, "describe", *window)
    assert re.search(rf"each\W+4\W+\d+\W.*\W{re.escape(owner)}\W+0\W", printed)
    found = json.loads(await topics(service, "describe", "--json", *window))
    assert found.keys() == {"each", "echo", "total"}
    for partition in found["echo"]:
        assert partition["workers"] == [owner]
        assert partition["lag"] <= partition["end"]


@in_module_loop
@pytest.mark.embedded
@pytest.mark.parametrize("what", ["schema", "describe"])
async def test_B77_a_model_that_nobody_serves_is_one_sentence_with_the_known_ones(what, service):
    options = ("--bootstrap-servers", service.bootstrap)
    status, _, complained = await command("topics", what, "ecko", *options)
    assert status == 1
    assert complained == "there is no model 'ecko', known models: each, echo, total\n"


@pytest.fixture
def kcat() -> None:
    """It is a Debian package, which no registry for Python or Java has."""
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not installed")


@pytest.mark.kafka
async def test_kcat_runs_as_printed(kcat, kafka_properties: Mapping[str, str], tmp_path):
    bootstrap = kafka_properties["bootstrap.servers"]
    options = ("--bootstrap-servers", bootstrap, "--worker-id", f"w{uuid.uuid4().hex[:8]}")
    async with serving(EXAMPLES / "models", tmp_path / "serve.log", options) as service:
        await asyncio.to_thread(played, "kcat.sh", bootstrap)
        service.bootstrap = bootstrap
        program = await snippet(service, "total", Language.KCAT)
        printed = await asyncio.to_thread(ran, program)
    assert re.search(SUMS.format(0), printed), printed
