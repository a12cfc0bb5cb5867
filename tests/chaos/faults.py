"""The faults: each breaks something, waits until it is seen to be broken, mends it, and waits for the service.

A fault is over when everything that was sent until then is answered; where the service must go on meanwhile, it is
waited for before the mending, too.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from chaos.disk import Disk
from chaos.load import Outcome
from chaos.scene import NAMES, RECOVER_S, ROWS, SEQUENCES, Scene
from headrace.streams.log import Mode
from tcp_proxy import TcpProxy

LET_RUN_S = 2.0
"""Load without any fault, seconds."""
OUTAGE_S = 60.0
"""How long no broker is there (FAULTS B7)."""
PENDING_CALLS = 50
"""Calls that begin together, so that a gateway that is killed has some in its hands."""

Inject = Callable[[Scene, int], Awaitable[None]]
"""Breaks a scene and mends it; told which time it is, from 0."""


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        name: Its name.
        inject: Does it once.
        times: How often in the long form.
        quick_times: How often in the short form.
        calls: A gateway is there and called.
        proxied: Workers that reach the brokers through proxies.
        modes: Delivery modes that it says something about.
        needs_disk: One broker's log folder is a small file system.
    """

    name: str
    inject: Inject
    times: int = 3
    quick_times: int = 1
    calls: bool = False
    proxied: tuple[str, ...] = ("w1",)
    modes: tuple[Mode, ...] = tuple(Mode)
    needs_disk: bool = False


async def nothing(scene: Scene, time: int) -> None:
    """Break nothing: what is compared with an undisturbed run is compared with this."""
    del time
    await asyncio.sleep(LET_RUN_S)
    await scene.until_answered("nothing")


async def kill_worker(scene: Scene, time: int) -> None:
    """SIGKILL one worker, start it again."""
    name = NAMES[time % len(NAMES)]
    await scene.kill(name)
    await scene.start(name)
    await scene.workers[name].until_metric("headrace_batch_rows_count")
    await scene.until_answered(f"the death of {name}")


async def freeze_worker(scene: Scene, time: int) -> None:
    """SIGSTOP one worker beyond its session, SIGCONT it when others have its partitions: a zombie."""
    name = NAMES[time % len(NAMES)]
    frozen = scene.workers[name]
    frozen.signal(signal.SIGSTOP)
    try:
        await scene.until_members(len(NAMES) - 1)
        await scene.until_answered(f"the freeze of {name}")
    finally:
        frozen.signal(signal.SIGCONT)
    await scene.until_members(len(NAMES))
    await scene.until_answered(f"the return of {name}")


async def kill_leader(scene: Scene, time: int) -> None:
    """SIGKILL the broker that leads a partition of requests, start it again."""
    topic = scene.topology.requests((SEQUENCES, ROWS)[time % 2])
    await _kill_node(scene, await scene.cluster.leader(topic, 0))


async def kill_coordinator(scene: Scene, time: int) -> None:
    """SIGKILL the broker that coordinates a model's group: the group's coordinator moves, and moves again."""
    group = scene.topology.group((SEQUENCES, ROWS)[time % 2])
    await _kill_node(scene, await scene.cluster.coordinator(group))


async def kill_transaction_coordinator(scene: Scene, time: int) -> None:
    """SIGKILL the broker that coordinates a partition's transactions."""
    model = (SEQUENCES, ROWS)[time % 2]
    name = f"{scene.topology.group(model)}:{scene.topology.requests(model)}:0"
    await _kill_node(scene, await scene.cluster.coordinator(name, transactional=True))


async def _kill_node(scene: Scene, node: int) -> None:
    await asyncio.to_thread(scene.cluster.kill, node)
    await scene.until_answered(f"the death of broker {node}")
    await asyncio.to_thread(scene.cluster.start, node)
    await scene.cluster.until_in_sync()
    await scene.until_answered(f"the return of broker {node}")


async def roll_brokers(scene: Scene, time: int) -> None:
    """Stop and start every broker, one after the other."""
    del time
    for node in scene.cluster.running():
        await asyncio.to_thread(scene.cluster.restart, node)
        await scene.cluster.until_in_sync()
        await scene.until_answered(f"the restart of broker {node}")


async def stop_brokers(scene: Scene, time: int) -> None:
    """Kill every broker, and start all of them a minute later."""
    del time
    nodes = scene.cluster.running()
    for node in nodes:
        await asyncio.to_thread(scene.cluster.kill, node)
    await asyncio.sleep(OUTAGE_S)
    await asyncio.to_thread(scene.cluster.start, *nodes)
    await scene.cluster.until_in_sync()
    await scene.until_answered("the outage of all brokers")


async def cut_network(scene: Scene, time: int) -> None:
    """Reset the connections of some workers and refuse new ones, beyond the session."""
    await _hurt_network(scene, TcpProxy.cut)


async def silence_network(scene: Scene, time: int) -> None:
    """Forward nothing and close nothing beyond the session: half-open connections."""
    await _hurt_network(scene, TcpProxy.silence)


async def _hurt_network(scene: Scene, hurt: Callable[[TcpProxy], None]) -> None:
    left = len(NAMES) - len(scene.proxied)
    for proxy in scene.between.values():
        hurt(proxy)
    try:
        await scene.until_members(left)
        if left:
            await scene.until_answered("the cut")
    finally:
        for proxy in scene.between.values():
            await proxy.heal()
    await scene.until_members(len(NAMES))
    await scene.until_answered("the cut was mended")


async def kill_gateway(scene: Scene, time: int) -> None:
    """SIGKILL the gateway while it has calls that wait, start another one."""
    del time
    load, before = scene.load, scene.load.calls.copy()
    async with asyncio.timeout(RECOVER_S):
        while (
            load.calls[Outcome.CUT] == before[Outcome.CUT]
        ):  # until it dies with a call in its hands
            load.begin_calls(PENDING_CALLS)
            await scene.until_calls_answered()
            await scene.end_gateway()
            await load.until_no_call()
            await scene.start_gateway()
    await scene.until_calls_answered()
    await scene.until_answered("the death of the gateway")


async def fill_disk(scene: Scene, time: int) -> None:
    """Fill the file system of one broker's log folder until the broker gives up, make room and start it again."""
    del time
    disk: Disk | None = scene.disk
    assert disk is not None
    with disk.filled():
        await asyncio.to_thread(scene.cluster.await_end, disk.node)
        await scene.until_answered("a disk was full")
    await asyncio.to_thread(scene.cluster.start, disk.node)
    await scene.cluster.until_in_sync()
    await scene.until_answered("there was room again")


ALL = (
    Fault("none", nothing),
    Fault("kill-worker", kill_worker, times=10),
    Fault("freeze-worker", freeze_worker),
    Fault("kill-leader", kill_leader),
    Fault("kill-coordinator", kill_coordinator),
    Fault(
        "kill-transaction-coordinator", kill_transaction_coordinator, modes=(Mode.EXACTLY_ONCE,)
    ),
    Fault("roll-brokers", roll_brokers, times=2),
    Fault("stop-brokers", stop_brokers, times=1),
    Fault("cut-network", cut_network),
    Fault("silence-network", silence_network),
    Fault("cut-network-of-all", cut_network, proxied=NAMES),
    Fault("silence-network-of-all", silence_network, proxied=NAMES),
    Fault("kill-gateway", kill_gateway, calls=True),
    Fault("fill-disk", fill_disk, times=2, needs_disk=True),
)
FAULTS = {fault.name: fault for fault in ALL}
"""Name → fault."""
