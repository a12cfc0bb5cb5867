"""What tests of the audit plant by hand: requests and answers as they lie in the log, and the audit of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from headrace.consumers.ledger import decode_metadata
from headrace.schemas.codec import encode_response
from headrace.schemas.infer import InferResponse
from headrace.schemas.record import (
    ATTEMPT,
    AVRO,
    CONTENT_TYPE,
    FINAL,
    REPLY_PARTITION,
    REPLY_TOPIC,
    RESPONSE_INDEX,
    SOURCE,
    STATUS,
    Header,
    Out,
)
from headrace.schemas.tensor import Tensor
from headrace.streams.audit import Auditor, AuditSettings
from headrace.streams.audit_offsets import Progress
from headrace.streams.audit_range import EVERYTHING, AuditRange
from headrace.streams.audit_report import AuditReport
from headrace.streams.memory import MemoryLog
from headrace.streams.topology import Topology

TOPOLOGY = Topology(prefix="t", partitions=2, reply_partitions=2)
REQUESTS = TOPOLOGY.requests("echo")
RESULTS = TOPOLOGY.results("echo")


def value_of(values: Sequence[float] = (1.0, 2.0), dtype: str = "<f4") -> bytes:
    """Return the value of an answer with one output."""
    tensor = Tensor.from_numpy("OUTPUT0", np.array([values], dtype))
    return encode_response(InferResponse((tensor,), "", "echo", "1"), AVRO).value


def request(partition: int = 0, *, reply: tuple[str, int] | None = None, id: str = "") -> Out:  # noqa: A002  # the header's name
    """Return a request; ``reply`` is the topic and partition that it names."""
    headers: list[Header] = [("id", id.encode())] if id else []
    if reply is not None:
        topic, number = reply
        headers.append((REPLY_TOPIC, topic.encode()))
        if number >= 0:
            headers.append((REPLY_PARTITION, b"%d" % number))
    return Out(REQUESTS, partition, None, b"request", headers)


def answer(
    source: str,
    *,
    to: tuple[str, int] | None = None,
    value: bytes | None = None,
    index: int | None = None,
    final: bool = True,
    status: str = "OK",
    attempt: int = 1,
) -> Out:
    """Return an answer to the request at ``topic/partition/offset``; ``to`` is where it lies, else the results."""
    headers: list[Header] = [
        (CONTENT_TYPE, AVRO.encode()),
        (STATUS, status.encode()),
        (ATTEMPT, b"%d" % attempt),
        (SOURCE, source.encode()),
    ]
    if index is not None:
        headers += [(RESPONSE_INDEX, b"%d" % index), (FINAL, b"true" if final else b"false")]
    pieces = source.split("/")
    own = int(pieces[1]) if len(pieces) == 3 and pieces[1].isdigit() and len(source) < 300 else 0
    topic, partition = to or (RESULTS, own % TOPOLOGY.partitions)
    return Out(topic, partition, None, value_of() if value is None else value, headers)


def at(partition: int, offset: int) -> str:
    """Return the source of a request of the model."""
    return f"{REQUESTS}/{partition}/{offset}"


async def make_topics(log: MemoryLog, *models: str) -> None:
    """Make the topics of these models, of ``echo`` without any."""
    specs = [*TOPOLOGY.shared_specs()]
    for model in models or ("echo",):
        specs += TOPOLOGY.model_specs(model)
    await log.ensure(specs)


def memory_progress(log: MemoryLog):
    """Return what asks a memory log for what groups have committed."""

    async def ask(group, tps):
        positions = log.committed(group)
        return {tp: Progress.of(positions.get(tp), decode_metadata) for tp in tps}

    return ask


async def audit(
    log: MemoryLog,
    *models: str,
    span: AuditRange = EVERYTHING,
    committed: bool = False,
    topology: Topology = TOPOLOGY,
    **bounds: object,
) -> AuditReport:
    """Audit a memory log; ``committed`` asks the group, else every request counts as finished."""
    settings = AuditSettings(**{"stall_s": 5.0} | bounds)
    progress = memory_progress(log) if committed else None
    return await Auditor(log, topology, settings, progress=progress).audit(models, span)


def found(report: AuditReport) -> dict[str, int]:
    """Return the counts of everything that is no plain answer, without zeros."""
    total = report.to_json()["total"]
    return {
        name: count
        for name, count in total.items()
        if count and name not in ("requests", "answered")
    }
