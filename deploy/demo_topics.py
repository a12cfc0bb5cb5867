"""`make demo-topics`: a model is put onto a topic that is there already, by one mapping file.

A plain Java producer writes scikit-learn's table of breast cancer cells as Avro through a Schema Registry; Headrace
scores them with a classifier exported from scikit-learn, and writes Avro whose schema it has made and registered; a
plain consumer reads that. In the middle the producer's schema gains a field. Ends with a non-zero status when an answer
is missing, comes twice, or is not scikit-learn's own within 1e-5.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
from aiokafka import AIOKafkaConsumer
from headrace.deploy.console import out as console
from headrace.deploy.console import print_table
from headrace.deploy.demo_topics_java import (
    confluent,
    fetch_producer,
    fetch_registry,
    fetch_schema,
    produce,
    schema_registry,
)
from headrace.deploy.demo_topics_table import (
    MODEL,
    RESULTS,
    TOPIC,
    UNKNOWN,
    Table,
    fit_table,
    hospital_of,
    records_text,
    write_files,
)
from headrace.deploy.serving import serving
from headrace.schemas.errors import ConfigError

TOLERANCE = 1e-5
ANSWERS_S = 60.0
"""How long answers may take after the last record, seconds."""

SHOWN = 5


@dataclass(slots=True)
class Run:
    """What the demo did.

    Attributes:
        answers: Fields of each result, by the id of its record.
        twice: Ids that were answered more than once.
        failed: Results that are errors.
        schemas: Ids of the schemas that results were written with.
        seconds: From the start of the first producer to the last answer.
    """

    answers: dict[int, dict[str, Any]] = field(default_factory=dict)
    twice: list[int] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    schemas: set[int] = field(default_factory=set)
    seconds: float = 0.0


def main() -> None:
    """Run the demo from the command line."""
    parser = argparse.ArgumentParser(prog="make demo-topics", description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=4, help="times the table is sent (default 4)")
    options = parser.parse_args()
    if options.times < 2:
        parser.error("expected --times of 2 or more: one with each schema")
    try:
        is_good = asyncio.run(demo(options.times))
    except ConfigError as exc:
        print(exc, file=sys.stderr)
        sys.exit(1)
    sys.exit(0 if is_good else 1)


async def demo(times: int) -> bool:
    """Serve, produce with both schemas, read and compare; returns whether all is equal.

    Raises:
        ConfigError: Something is missing, or does not start.
    """
    registry_app = await asyncio.to_thread(fetch_registry)
    jars = await asyncio.to_thread(fetch_producer)
    table = await asyncio.to_thread(fit_table)
    run = Run()
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as name:
        folder = Path(name)
        async with schema_registry(registry_app, folder / "registry.log") as root:
            write_files(folder, table, confluent(root))
            mapping = folder / f"{MODEL}.toml"
            console.print(f"[bold]headrace serve[/] models --mapping {MODEL}={mapping.name}")
            console.print(mapping.read_text(), style="dim", markup=False)
            options = ("--mapping", f"{MODEL}={mapping}")
            async with serving(folder / "models", folder / "serve.log", options) as service:
                await _exchange(run, table, folder, (service.bootstrap, root, jars), times)
    return _report(run, table, times)


async def _exchange(
    run: Run, table: Table, folder: Path, where: tuple[str, str, Path], times: int
) -> None:
    """Let the Java producer send with the old schema, then with the new one, while a consumer reads."""
    bootstrap, root, jars = where
    half = len(table.rows) * (times // 2)
    everything = range(len(table.rows) * times)
    begun = time.monotonic()
    reading = asyncio.create_task(_read(run, bootstrap, root, len(everything)))
    try:
        for version, ids in ((1, everything[:half]), (2, everything[half:])):
            records = folder / f"records-v{version}.jsonl"
            records.write_text(records_text(table, ids, version))
            schema = folder / f"cells-v{version}.avsc"
            await produce(jars, bootstrap, root, TOPIC, schema, records)
            console.print(
                f"Java has sent {len(ids)} records with schema {version}; {len(run.answers)} are answered."
            )
        await asyncio.wait([reading], timeout=ANSWERS_S)
        if reading.done():
            reading.result()
    finally:
        reading.cancel()
        await asyncio.wait([reading])
    run.seconds = time.monotonic() - begun


async def _read(run: Run, bootstrap: str, root: str, count: int) -> None:
    """Read results as anybody may: by their schema in the registry, with nothing of Headrace."""
    schemas: dict[int, Any] = {}
    consumer = AIOKafkaConsumer(
        RESULTS, bootstrap_servers=bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=50
    )
    await consumer.start()
    try:
        async for record in consumer:
            schema_id = int.from_bytes(record.value[1:5], "big")
            if schema_id not in schemas:
                schemas[schema_id] = fastavro.parse_schema(await fetch_schema(root, schema_id))
                run.schemas.add(schema_id)
            fields: Any = fastavro.schemaless_reader(
                BytesIO(record.value[5:]), schemas[schema_id], None
            )
            if fields.get("error"):
                run.failed.append(fields["error"])
                continue
            if fields["id"] in run.answers:
                run.twice.append(fields["id"])
            run.answers[fields["id"]] = fields
            if len(run.answers) == count:
                return
    finally:
        await consumer.stop()


def _report(run: Run, table: Table, times: int) -> bool:
    """Hold each answer against the estimator's own, and say what came of it."""
    rows = len(table.rows)
    count, half = rows * times, rows * (times // 2)
    largest = 0.0
    different: list[int] = []
    for number, answer in run.answers.items():
        expected = table.expected[number % rows]
        difference = max(
            abs(a - b) for a, b in zip(answer["probabilities"], expected, strict=True)
        )
        largest = max(largest, difference)
        hospital = UNKNOWN if number < half else hospital_of(number)
        label = table.labels[int(expected.argmax())]
        if difference > TOLERANCE or (answer["hospital"], answer["diagnosis"]) != (
            hospital,
            label,
        ):
            different.append(number)
    _print_some(run, (0, 1, half, half + 1))
    for text in run.failed[:SHOWN]:
        console.print(f"[red]failed: {text}[/]")
    for number in different[:SHOWN]:
        console.print(f"[red]{number}: {run.answers[number]}[/]", markup=True)
    missing = count - len(run.answers)
    is_good = not (missing or different or run.twice or run.failed)
    verdict = (
        f"{len(run.answers)} of {count} records answered within {run.seconds:.0f} s, Java's two starts included, "
        f"{len(run.twice)} of them twice, "
        f"{len(run.failed)} with an error, {len(different)} not scikit-learn's own (largest difference {largest:.1e}, "
        f"allowed {TOLERANCE:g}); the schema gained a field after {half}."
    )
    console.print(f"[bold {'green' if is_good else 'red'}]{verdict}[/]")
    return is_good


def _print_some(run: Run, numbers: Sequence[int]) -> None:
    print_table(
        ["id", "hospital", "diagnosis", "probabilities"],
        [
            (
                number,
                found["hospital"],
                found["diagnosis"],
                [round(p, 6) for p in found["probabilities"]],
            )
            for number in numbers
            if (found := run.answers.get(number)) is not None
        ],
        title="Some results, as the registered schema reads them",
    )


if __name__ == "__main__":
    main()
