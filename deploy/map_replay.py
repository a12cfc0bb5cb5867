"""Tries a mapping of a sequence model: a worker serves the records from a log in memory, in their order.

A sequence's result depends on the records before it, so nothing less than the worker's own rules says what it is.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from headrace.consumers.mapped import MappedModel
from headrace.consumers.service import Worker
from headrace.consumers.settings import WorkerSettings
from headrace.deploy.failure import CommandFailed
from headrace.repository.repository import Repository
from headrace.schemas.mapping_decoder import UNDERSTOOD
from headrace.schemas.record import FINAL, SOURCE, TP, Out, Record
from headrace.schemas.requests import MAX_RECORD_BYTES
from headrace.streams.log import EARLIEST, Span, TopicSpec
from headrace.streams.memory import MemoryLog
from headrace.streams.topology import MappedTopics, Topology

PREFIX = "dry-run"
"""Of the topics in memory."""

ANSWERS_S = 120.0
"""How long the worker may take to answer all records, seconds."""

POLL_S = 0.2


async def replay(
    mapped: MappedModel, model: str, repository: Repository, records: Sequence[Record]
) -> list[list[Record]]:
    """Serve records, and return the answers to each.

    Args:
        mapped: The mapping with its formats.
        model: Its model.
        repository: With that model alone, loaded.
        records: To be served; at least one. All of them get an answer: none has a null value.

    Raises:
        CommandFailed: The worker does not answer in time.
    """
    source = mapped.mapping.source
    mapping = replace(mapped.mapping, source=replace(source, offset_reset="earliest"))
    count = 1 + max(record.partition for record in records)
    topics = {model: MappedTopics(requests=source.topic)}
    topology = Topology(PREFIX, partitions=count, mapped=topics)
    now_ms = 0  # of the record that is being written
    # The newest record is written now, and the others as long before as they were: silence ends a sequence.
    shift_ms = time.time_ns() // 1_000_000 - max(record.timestamp for record in records)
    sources: dict[int, str] = {}
    async with MemoryLog(clock_ms=lambda: now_ms, max_record_bytes=MAX_RECORD_BYTES) as log:
        await log.ensure([TopicSpec(source.topic, count)])
        order = sorted(range(len(records)), key=lambda place: records[place].offset)
        for place in order:
            record = records[place]
            tp = TP(source.topic, record.partition)
            now_ms = record.timestamp + shift_ms
            sources[place] = f"{tp.topic}/{tp.partition}/{log.existing(tp).end}"
            log.append([_out(tp, record)])
        worker = Worker(
            log,
            repository,
            topology,
            WorkerSettings(worker_id=PREFIX, exit_timeout_s=1.0),
            mapped={model: replace(mapped, mapping=mapping)},
        )
        results = {TP(topology.results(model), number): Span(EARLIEST) for number in range(count)}
        async with worker:
            found = await _answers(log, worker, results, set(sources.values()))
    return [found[sources[place]] for place in range(len(records))]


def _out(tp: TP, record: Record) -> Out:
    """Return a record for the log in memory: its answer goes to the results, and its deadline is long over."""
    headers = [header for header in record.headers if header[0] not in UNDERSTOOD]
    return Out(tp.topic, tp.partition, record.key, record.value, headers)


async def _answers(
    log: MemoryLog, worker: Worker, results: Mapping[TP, Span], sources: Set[str]
) -> Mapping[str, list[Record]]:
    """Run a worker until these records have their last answers; return the answers by record."""
    found: dict[str, list[Record]] = defaultdict(list)
    stop, missing = asyncio.Event(), set(sources)
    try:
        async with asyncio.timeout(ANSWERS_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(worker.run(stop))
            try:
                async with log.reader(results) as reader:
                    while missing:
                        for block in await reader.poll(1000, POLL_S):
                            for record in block.records:
                                headers = dict(record.headers)
                                source = headers[SOURCE].decode()
                                found[source].append(record)
                                if headers.get(FINAL, b"true") == b"true":
                                    missing.discard(source)
            finally:
                stop.set()
    except TimeoutError as exc:
        raise CommandFailed(
            f"{len(missing)} records were not answered within {ANSWERS_S:g} s"
        ) from exc
    return found
