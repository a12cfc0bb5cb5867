"""A reply topic that vanishes stops nobody: its answers go to the results topic instead."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from headrace.consumers.service import Worker
from headrace.consumers.settings import WorkerSettings
from headrace.repository.repository import Repository
from headrace.schemas.codec import encode_request
from headrace.schemas.infer import InferRequest
from headrace.schemas.record import Out
from headrace.schemas.tensor import Tensor
from headrace.streams.log import Mode, TopicSpec
from headrace.streams.memory import MemoryLog
from headrace.streams.topology import Topology
from service_parts import ECHO

TOPOLOGY = Topology(prefix="h", partitions=1)


class Refilling(MemoryLog):
    """Deletes the reply topic at the moment in which the answer is published."""

    doomed = ""

    def write(self, outs, transaction=None) -> None:
        """Delete first."""
        if self.doomed and any(out.topic == self.doomed for out in outs):
            doomed, self.doomed = self.doomed, ""
            self.delete(doomed)
        super().write(outs, transaction)


@pytest.mark.parametrize("mode", list(Mode))
async def test_a_vanished_reply_topic_does_not_stop_the_partition(
    tmp_path: Path, mode: Mode
) -> None:
    """A typed error in the results topic, once, and the next one is served; the membership is the same."""
    (tmp_path / "echo" / "1").mkdir(parents=True)
    (tmp_path / "echo" / "config.pbtxt").write_text(ECHO)
    repository = Repository([tmp_path])
    assert not repository.load()
    log = Refilling()
    log.doomed = "h.mine"
    stop = asyncio.Event()
    value, headers = encode_request(
        InferRequest((Tensor.from_numpy("INPUT0", np.ones((1, 2), np.float32)),))
    )
    async with log:
        await log.ensure([TopicSpec("h.mine", 1)])
        async with Worker(log, repository, TOPOLOGY, WorkerSettings("w", delivery=mode)) as worker:
            running = asyncio.create_task(worker.run(stop))
            requests = TOPOLOGY.requests("echo")
            log.append([Out(requests, 0, None, value, [*headers, ("reply-topic", b"h.mine")])])
            log.append([Out(requests, 0, None, value, headers)])
            async with asyncio.timeout(20):
                while len(found := log.records(TOPOLOGY.results("echo"), 0)) < 2:
                    await log.changed.wait()
            assert worker.models["echo"].assignment.rebalances == 1
            stop.set()
            await running
            assert len(log.records(TOPOLOGY.results("echo"), 0)) == 2
    repository.close()
    by_source = {dict(r.headers)["source"]: dict(r.headers) for r in found}
    assert by_source[b"h.echo.requests/0/0"]["reason"] == b"reply_topic_refused"
    assert by_source[b"h.echo.requests/0/1"]["status"] == b"OK"
