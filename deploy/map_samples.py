"""Records to look at for ``headrace map``: from a file, or the last ones of a topic, read without a group."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.deploy.broker import named_kafka, open_log
from headrace.deploy.failure import CommandFailed
from headrace.deploy.settings import Settings, option_name
from headrace.schemas.cloudevents import STRUCTURED_HEADER
from headrace.schemas.errors import ConfigError
from headrace.schemas.mapping import SourceMapping
from headrace.schemas.record import CONTENT_TYPE, TP, Headers, Record
from headrace.streams.log import LATEST, Log, Span

QUIET_S = 1.0
"""A reader that gets nothing for so long has come to the end."""

READ_S = 30.0
"""Reading may take so long altogether."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A record of a file."""

    value: bytes | None
    offset: int
    topic: str = ""
    partition: int = 0
    timestamp: int = 0
    key: bytes | None = None
    headers: Headers = ()


def file_samples(path: Path, topic: str, *, is_lines: bool, headers: Headers = ()) -> list[Record]:
    """Return the records of a file: one per line, or the whole file as one.

    Args:
        path: Of the file.
        topic: That they are said to be from.
        is_lines: It is JSON: one record per line, or one over several.
        headers: That they are said to have.

    Raises:
        ConfigError: It cannot be read, or is empty.
    """
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise ConfigError(
            f"the file cannot be read: {exc.strerror}", field="--sample", value=path
        ) from exc
    values = [data]
    lines = [line for line in data.splitlines() if line.strip()]
    if is_lines and all(
        line.lstrip().startswith(b"{") and line.rstrip().endswith(b"}") for line in lines
    ):
        values = lines
    if not any(values):
        raise ConfigError("expected a record, the file is empty", field="--sample", value=path)
    return [Sample(value, offset, topic, headers=headers) for offset, value in enumerate(values)]


async def topic_samples(settings: Settings, topic: str, limit: int) -> list[Record]:
    """Return the last records of a topic that have a value, of each partition as many, in order of their time.

    Raises:
        CommandFailed: There is no such topic.
        LogError: The brokers cannot be reached.
    """
    async with open_log(named_kafka(settings), settings) as log:
        return await read_last(log, topic, limit)


async def read_last(log: Log, topic: str, limit: int) -> list[Record]:
    """Read the last records of a topic that have a value; see `topic_samples`."""
    count = await log.partitions(topic)
    if count is None:
        raise CommandFailed(f"topic {topic} does not exist")
    tps = [TP(topic, number) for number in range(count)]
    async with log.reader({tp: Span(LATEST) for tp in tps}) as ends:
        spans = {
            tp: Span(max(0, end - limit), end) for tp, end in ends.positions().items() if end > 0
        }
    found: list[Record] = []
    if spans:
        found = await _read(log, spans)
    kept = [record for record in found if record.value is not None]
    kept.sort(key=lambda record: (record.timestamp, record.partition, record.offset))
    return kept[-limit:]


async def _read(log: Log, spans: dict[TP, Span]) -> list[Record]:
    found: list[Record] = []
    deadline = asyncio.get_running_loop().time() + READ_S
    async with log.reader(spans) as reader:
        while not reader.done() and asyncio.get_running_loop().time() < deadline:
            blocks = await reader.poll(1000, QUIET_S)
            for block in blocks:
                found += block.records
            if not blocks:
                break
    return found


async def samples_of(
    settings: Settings, source: SourceMapping, sample: Path | None, *, limit: int
) -> Sequence[Record]:
    """Return records of a file where one is given, else of the topic; events in a file are in structured mode.

    Raises:
        CommandFailed: There is none, or no topic.
        ConfigError: The file cannot be read.
    """
    if sample is not None:
        records: Sequence[Record] = file_samples(
            sample,
            source.topic,
            is_lines=source.events or source.format.word == "json",
            headers=((CONTENT_TYPE, STRUCTURED_HEADER),) if source.events else (),
        )[:limit]
    else:
        records = await topic_samples(settings, source.topic, limit)
    if not records:
        raise CommandFailed(
            f"topic {source.topic} has no records yet, expected some, or --sample FILE; "
            f"{option_name('bootstrap_servers')} says which Kafka is asked"
        )
    return records
