"""``grpc.health.v1.Health``: readiness as load balancers and Kubernetes ask for it.

As Triton's, it answers for the server, whatever service is asked about.
"""

from __future__ import annotations

import asyncio

from headrace.streams.access import Group
from headrace.streams.grpc_call import Context, GrpcPart, Method
from headrace.streams.grpc_protocols import HEALTH_PACKAGE, message_class

SERVICE = f"{HEALTH_PACKAGE}.Health"

WATCH_S = 0.5
"""How often a watched state is looked at: readiness is a state of many parts, some in other processes."""

_Request = message_class(f"{HEALTH_PACKAGE}.HealthCheckRequest")
_Response = message_class(f"{HEALTH_PACKAGE}.HealthCheckResponse")


def _state(part: GrpcPart) -> int:
    word = "SERVING" if part.gateway.is_ready() else "NOT_SERVING"
    number: int = _Response.ServingStatus.Value(word)
    return number


async def _check(part: GrpcPart, _request: object) -> object:
    return _Response(status=_state(part))


CHECK = Method(Group.HEALTH, _Request, _check)  # type: ignore[arg-type]  # the classes are made at run time


async def watch(part: GrpcPart, context: Context) -> None:
    """Say the state now and whenever it has changed, until the client or the server leaves."""
    await context.read()
    ending = asyncio.Event()
    part.endings.add(ending.set)
    told = None
    try:
        while not ending.is_set():
            state = _state(part)
            if state != told:
                await context.write(_Response(status=state).SerializeToString())
                told = state
            try:
                async with asyncio.timeout(WATCH_S):
                    await ending.wait()
            except TimeoutError:
                continue
        if told != _Response.NOT_SERVING:
            await context.write(_Response(status=_Response.NOT_SERVING).SerializeToString())
    finally:
        part.endings.discard(ending.set)
