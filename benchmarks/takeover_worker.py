"""The worker as `headrace worker` composes it, which also says when its first partitions were assigned.

The file ``--stamp`` gets that monotonic time: the group's callback notes the partitions, and whoever looks each
millisecond until then sees it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import signal
import sys
import time
from pathlib import Path

import uvloop
from headrace.consumers.service import Worker
from headrace.consumers.settings import WorkerSettings
from headrace.consumers.worker import ModelWorker
from headrace.deploy.process import COLLECT_AFTER, SWITCH_INTERVAL_S
from headrace.repository.prepare import LoadSettings
from headrace.repository.repository import Repository
from headrace.streams.kafka import KafkaLog
from headrace.streams.topology import Topology

LOOK_S = 0.001


async def serve(args: argparse.Namespace) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    repository = Repository([args.model_repository], LoadSettings())
    repository.load()
    topology = Topology(prefix=args.topic_prefix, partitions=1)
    settings = WorkerSettings(worker_id="takeover")
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 20)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    async with (
        KafkaLog({"bootstrap.servers": args.bootstrap}) as log,
        Worker(log, repository, topology, settings) as worker,
    ):
        (model,) = worker.models.values()
        running = asyncio.create_task(worker.run(stop))
        args.stamp.write_text(repr(await assigned(model)))
        await running
    repository.close()


async def assigned(model: ModelWorker) -> float:
    """Wait until the model's partitions are assigned; returns the monotonic time, s."""
    while not model.partitions:  # noqa: ASYNC110  # the group's callback tells the worker alone
        await asyncio.sleep(LOOK_S)
    return time.monotonic()


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--model-repository", type=Path, required=True)
    parser.add_argument("--topic-prefix", required=True)
    parser.add_argument("--stamp", type=Path, required=True)
    logging.basicConfig(level=logging.WARNING)
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
