"""Plays a fault on a scene: load, fault by fault, drain, judgement."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from chaos.disk import Disk, Unmountable
from chaos.faults import Fault
from chaos.scene import Scene, under_load
from chaos.verdict import Figures, Judge
from cluster import Cluster
from headrace.streams.log import Mode

DISK_NODE = 3
QUICK = """broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
log.segment.delete.delay.ms=1000
"""
"""Another broker leads sooner than with the cluster's own settings, which keeps the short form short; a scene's topics
leave the small disk soon."""


class Played:
    """A scene and its judge.

    Attributes:
        scene: The one.
    """

    def __init__(self, scene: Scene) -> None:
        """Begin."""
        self.scene = scene
        self._judge = Judge(scene)

    async def play(
        self, fault: Fault, times: int, on_injected: Callable[[int], object] = lambda _: None
    ) -> Figures:
        """Inject a fault so often under load, and judge.

        Args:
            fault: Which.
            times: How often.
            on_injected: Told how often it has been injected and mended.

        Raises:
            AssertionError: The service did not come back.
        """
        scene = self.scene
        clock = asyncio.get_running_loop().time
        if fault.calls:
            await scene.start_gateway()
        begin_s = end_s = clock()
        async with under_load(scene, calls=fault.calls):
            await scene.until_flowing()
            begin_s = clock()
            for time in range(times):
                await fault.inject(scene, time)
                on_injected(time + 1)
            end_s = clock()
        if fault.calls:
            await scene.end_gateway()
        figures = await self._judge.judge(fault.name, begin_s=begin_s, end_s=end_s)
        figures.times = times
        return figures


@contextmanager
def three_brokers(folder: Path) -> Iterator[tuple[Cluster, Disk | Unmountable]]:
    """Run three brokers; one has its log folder on a small file system, where one may be mounted."""
    with ExitStack() as stack:
        disk: Disk | Unmountable
        try:
            disk = stack.enter_context(Disk(DISK_NODE, folder / "small"))
        except Unmountable as why:
            disk = why
        data = {disk.node: disk.data} if isinstance(disk, Disk) else {}
        yield stack.enter_context(Cluster(folder / "cluster", data=data, more=QUICK)), disk


@asynccontextmanager
async def played(
    cluster: Cluster, mode: Mode, folder: Path, **options: object
) -> AsyncIterator[Played]:
    """Set a scene under a prefix of its own; options are those of `Scene`."""
    prefix = f"chaos-{uuid.uuid4().hex[:8]}"
    async with Scene(cluster, mode, folder, prefix, **options) as scene:  # type: ignore[arg-type]  # by name
        yield Played(scene)
