"""What the topics demo has in Java, all fetched by Maven: a Schema Registry, and a producer that writes through it."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from headrace.deploy.demo_speech_assets import cache_folder
from headrace.deploy.serving import free_ports, tail
from headrace.schemas.errors import ConfigError
from headrace.streams import embedded_child

REGISTRY = "2.6.13.Final"
START_S = 90.0
SEND_S = 120.0
HERE = Path(__file__).parent / "kafka"
JAVA = ("java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def fetch_registry() -> Path:
    """Return the folder of the registry, fetched at the first time.

    Raises:
        ConfigError: Java or Maven is missing, or Maven cannot fetch it.
    """
    artifact = f"io.apicurio:apicurio-registry-app:{REGISTRY}:tar.gz:all"
    folder = cache_folder().parent / f"apicurio-{REGISTRY}"
    return _fetched(folder, "app", "dependency:unpack", f"-Dartifact={artifact}")


def fetch_producer() -> Path:
    """Return the folder of the producer's jars; as `fetch_registry`."""
    folder = cache_folder().parent / f"avro-producer-{REGISTRY}"
    goal = ("dependency:copy-dependencies", "-f", str(HERE / "avro.xml"))
    return _fetched(folder, "libs", *goal)


def _fetched(folder: Path, name: str, *goal: str) -> Path:
    if shutil.which("java") is None:
        raise ConfigError("Java 17 or newer is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes may fetch it
        if (folder / "ready").exists():
            return folder / name
        if shutil.which("mvn") is None:
            raise ConfigError("Maven is not installed")
        shutil.rmtree(folder / name, ignore_errors=True)
        command = ["mvn", "-q", "-B", *goal, f"-DoutputDirectory={folder / name}"]
        done = subprocess.run(  # noqa: S603  # our own command line
            command,
            cwd=folder,  # a pom of where this runs is none of its business
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ConfigError(f"Maven failed: {done.stdout[-500:]}", field=" ".join(goal))
        (folder / "ready").touch()
    return folder / name


@asynccontextmanager
async def schema_registry(app: Path, log: Path) -> AsyncIterator[str]:
    """Run a registry that refuses incompatible schemas while the block runs; yields its root.

    Raises:
        ConfigError: It does not start; the end of its log is in the sentence.
    """
    (port,) = free_ports(1)
    root = f"http://127.0.0.1:{port}"
    runner = app / f"apicurio-registry-app-{REGISTRY}-runner.jar"
    address = {"QUARKUS_HTTP_HOST": "127.0.0.1", "QUARKUS_HTTP_PORT": str(port)}
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", embedded_child.__file__, str(os.getpid())),
            *(_program(), *JAVA[1:], "-jar", str(runner)),
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            cwd=app,
            env={**os.environ, **address},
        )
    try:
        deadline = asyncio.get_running_loop().time() + START_S
        while not await _is_strict(f"{confluent(root)}/config"):
            if process.returncode is not None or asyncio.get_running_loop().time() > deadline:
                raise ConfigError(f"the Schema Registry did not start:\n{tail(log)}")
            await asyncio.sleep(0.2)
        yield root
    finally:
        process.kill()
        await process.wait()


async def _is_strict(url: str) -> bool:
    """Have a registry refuse what is not compatible with what there was; False where it does not answer yet."""
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.put(url, json={"compatibility": "BACKWARD"}) as answer,
        ):
            return answer.status == 200
    except aiohttp.ClientError:
        return False


def confluent(root: str) -> str:
    """Return the URL of a registry's Confluent interface."""
    return f"{root}/apis/ccompat/v7"


async def fetch_schema(root: str, schema_id: int) -> dict[str, object]:
    """Return a schema, asked for as anybody may."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{confluent(root)}/schemas/ids/{schema_id}") as answer,
    ):
        found: dict[str, object] = json.loads((await answer.json())["schema"])
        return found


async def produce(
    jars: Path, bootstrap: str, root: str, topic: str, schema: Path, records: Path
) -> None:
    """Run the Java producer to its end.

    Raises:
        ConfigError: It fails; what it said is in the sentence.
    """
    process = await asyncio.create_subprocess_exec(
        *(_program(), *JAVA[1:], "-cp", f"{jars}/*", str(HERE / "Produce.java")),
        *(bootstrap, f"{root}/apis/registry/v2", topic, str(schema), str(records)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(SEND_S):
            said, _ = await process.communicate()
    except TimeoutError:
        raise ConfigError(f"the Java producer has not ended after {SEND_S:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise ConfigError(f"the Java producer failed:\n{said.decode(errors='replace')[-2000:]}")


def _program() -> str:
    return shutil.which("java") or "java"
