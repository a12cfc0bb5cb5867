"""`ModelInfer`: message bytes into an infer request, the response into message bytes (SEMANTICS §2.10).

The path of each call: nothing is logged here, nothing is looked up twice, and a tensor's bytes are copied once in
(by the parser) and once out.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from headrace.schemas.errors import InvalidRequest, Unsupported
from headrace.schemas.infer import InferRequest, InferResponse
from headrace.schemas.v2proto import from_message, write_response
from headrace.streams.grpc_call import (
    Context,
    GrpcPart,
    checked_version,
    deadline_ms,
    parsed,
    read_metadata,
    texts,
)
from headrace.streams.idempotency import REPLAYED_HEADER, KeyedCall
from headrace.streams.model_view import Route
from headrace.streams.shared_memory import SharedTargets
from tritonclient.grpc import service_pb2

EMPTY_FINAL = "triton_enable_empty_final_response"
"""The one reserved parameter that a request may carry (SEMANTICS GR-03)."""

OFF_LOOP_BYTES = 1024 * 1024
"""Messages from this size on are read in a thread: typed contents become Python numbers one by one, and would hold up
every other call (FAULTS B2)."""

OFF_LOOP_COPIED_BYTES = 8 * 1024 * 1024
"""The same for answers, whose tensors are only copied."""


class Asked(NamedTuple):
    """A request as it was read.

    Attributes:
        model: Its model.
        version: Digits, or ``""``.
        is_decoupled: The model answers with any number of responses.
        wants_empty_final: The last message comes even if it holds nothing (SEMANTICS GR-03).
        request: What is asked.
    """

    model: str
    version: str
    is_decoupled: bool
    wants_empty_final: bool
    request: InferRequest


async def model_infer(part: GrpcPart, value: bytes, context: Context) -> bytes:
    """Answer one call.

    Raises:
        InferError: Of whatever kind; the server makes a status of it.
    """
    gateway, forwarding = part.gateway, part.settings.forwarding
    metadata = context.invocation_metadata()
    said = read_metadata(metadata)
    like = part.layouts.read(value) if len(value) < OFF_LOOP_BYTES else None
    if like is None:
        message = parsed(service_pb2.ModelInferRequest, value)
        asked = await read_request(part, message, len(value), one_answer=True)
        part.layouts.learn(value, asked.request)
    else:
        asked = _asked(part, like)
    if forwarding is not None:
        asked = asked._replace(request=forwarding.apply(asked.request, texts(metadata)))
    traced = part.extensions.traces.request(asked.model, asked.request.id)
    with part.extensions.memory.targets(asked.request.outputs) as shared, traced as trace:
        try:
            response = await gateway.infer(
                asked.model,
                asked.version,
                asked.request,
                deadline_ms=deadline_ms(gateway, context),
                extra=said.trace,
                keyed=said.keyed,
            )
        finally:
            _tell_replayed(said.keyed, context)
        trace.version = response.model_version
        return await response_bytes(response, shared)


async def read_request(
    part: GrpcPart, message: Any, size: int, *, one_answer: bool = False
) -> Asked:
    """Make an infer request of a ``ModelInferRequest``; its model is looked up first (SEMANTICS PB-33).

    Args:
        part: Knows the models, and shared memory.
        message: As it came.
        size: Of its bytes.
        one_answer: Refuse a model that answers with any number (GR-04).

    Raises:
        InferError: No such model, or the request is wrong.
    """
    model, version = message.model_name, checked_version(message.model_version)
    route = part.gateway.route(model, version)
    is_decoupled = _is_decoupled(route, one_answer=one_answer)
    wants_empty_final = False
    if message.parameters:
        wants_empty_final = _wants_empty_final(message.parameters)
    memory = part.extensions.memory
    shared = memory.reader(part.settings.max_input_bytes)
    is_long = size >= OFF_LOOP_BYTES
    if memory.largest_bytes >= OFF_LOOP_COPIED_BYTES:
        is_long = is_long or any(item.parameters for item in message.inputs)
    if is_long:
        request = await asyncio.to_thread(from_message, message, shared, route.signature)
    else:
        request = from_message(message, shared, route.signature)
    return Asked(model, version, is_decoupled, wants_empty_final, request)


def _asked(part: GrpcPart, like: InferRequest) -> Asked:
    """Look up the model of a request that was recognised."""
    version = checked_version(like.model_version)
    _is_decoupled(part.gateway.route(like.model_name, version), one_answer=True)
    return Asked(
        like.model_name, version, is_decoupled=False, wants_empty_final=False, request=like
    )


def _is_decoupled(route: Route, *, one_answer: bool) -> bool:
    found = route.config.decoupled
    if found and one_answer:
        raise Unsupported(
            "ModelInfer RPC doesn't support models with decoupled transaction policy"
        )
    return found


async def response_bytes(response: InferResponse, shared: SharedTargets) -> bytes:
    """Return a response as bytes of a ``ModelInferResponse``; what shall go to shared memory is written there.

    Raises:
        InferError: An output does not fit into its place.
    """
    if sum([len(tensor.data) for tensor in response.outputs]) < OFF_LOOP_COPIED_BYTES:
        return _written(response, shared)
    return await asyncio.to_thread(_written, response, shared)


def _written(response: InferResponse, shared: SharedTargets) -> bytes:
    shared.write(response)
    return write_response(response, shared.names)


def _wants_empty_final(parameters: Any) -> bool:
    """Take the parameter away, for it is no model's, and return what it says."""
    if EMPTY_FINAL not in parameters:
        return False
    parameter = parameters[EMPTY_FINAL]
    if parameter.WhichOneof("parameter_choice") != "bool_param":
        raise InvalidRequest(
            f"invalid value type for '{EMPTY_FINAL}' parameter, expected bool_param."
        )
    wants: bool = parameter.bool_param
    del parameters[EMPTY_FINAL]
    return wants


def _tell_replayed(keyed: KeyedCall | None, context: Context) -> None:
    """Say that the answer is that of an earlier call with the same key (DELIVERY P-17)."""
    if keyed is not None and keyed.is_replayed:
        context.set_trailing_metadata(((REPLAYED_HEADER.lower(), "true"),))
