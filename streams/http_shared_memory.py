"""The shared memory extensions over HTTP (SEMANTICS PB-13, PB-72)."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web
from headrace.schemas.errors import InvalidRequest, MalformedRequest, Unsupported
from headrace.streams.http_call import Handler, HttpCall, json_object
from headrace.streams.http_errors import empty_response, json_response
from headrace.streams.http_routes import Kind
from headrace.streams.shared_memory import DISABLED, NO_GPU

MAX_UINT64 = 2**64 - 1


async def system_shared_memory(call: HttpCall) -> web.Response:
    """Answer what is registered, register a region, or unregister one or all.

    Raises:
        InferError: As `SharedMemory.status`, `register` and `unregister`; or the body is none.
    """
    memory, region = call.extensions.memory, call.target.region
    match call.target.feature:
        case "status":
            return json_response(memory.status(region))
        case "register":
            if not memory.is_allowed:
                raise Unsupported(DISABLED)  # before the body is looked at
            key, offset, byte_size = _place(await json_object(call))
            memory.register(region, key, offset, byte_size)
        case _:
            memory.unregister(region)
    return empty_response(200)


async def cuda_shared_memory(call: HttpCall) -> web.Response:
    """Refuse: a gateway has no GPU.

    Raises:
        Unsupported: Always.
    """
    if not call.extensions.memory.is_allowed and call.target.feature != "status":
        raise Unsupported(DISABLED)
    raise Unsupported(NO_GPU)


def _place(body: Mapping[str, object]) -> tuple[str, int, int]:
    for name in ("key", "byte_size"):
        if name not in body:
            raise InvalidRequest(f"Shared memory register request has no '{name}' field")
    key = body["key"]
    if not isinstance(key, str):
        raise MalformedRequest("Unable to parse 'key': expected a string")
    return key, _whole(body, "offset"), _whole(body, "byte_size")


def _whole(body: Mapping[str, object], name: str) -> int:
    value = body.get(name, 0)
    if type(value) is not int or not 0 <= value <= MAX_UINT64:
        raise MalformedRequest(f"Unable to parse '{name}': expected an unsigned integer")
    return value


HANDLERS: Mapping[Kind, Handler] = {
    Kind.SYSTEM_SHARED_MEMORY: system_shared_memory,
    Kind.CUDA_SHARED_MEMORY: cuda_shared_memory,
}
