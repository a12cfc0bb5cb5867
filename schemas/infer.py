"""Infer requests and responses of the V2 protocol, as plain values.

These are the general form: codecs read and write them, the gateway and clients hold them. On the hot path of
the worker a record becomes an `headrace.schemas.batch.Entry` directly, and a request is only made of it when
somebody asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from headrace.schemas.tensor import Tensor

Parameter: TypeAlias = bool | int | float | str
Parameters: TypeAlias = Mapping[str, Parameter]
SequenceId: TypeAlias = int | str

_NONE: Parameters = MappingProxyType({})
# Named tuples: of each call there are several, and a frozen dataclass takes three times as long to make.


class RequestedOutput(NamedTuple):
    """An output that a request asks for, with its parameters (``binary_data``, ``classification``, …)."""

    name: str
    parameters: Parameters = _NONE


class InferRequest(NamedTuple):
    """One infer request (SEMANTICS PB-40, PB-47).

    Attributes:
        inputs: In the order of the wire.
        outputs: Requested outputs; empty is all.
        id: The caller's own, ``""`` is none; it need not be unique.
        model_name: ``""`` where the topic or the URL says it.
        model_version: ``""`` is the highest ready one (MR-07).
        parameters: Custom ones; the standard keys are the fields below.
        sequence_id: 0 and ``""`` are no sequence; 7 and ``"7"`` differ.
        sequence_start: First of its sequence.
        sequence_end: Last of its sequence.
        priority: 0 is the model's default level.
        timeout_us: Queue timeout asked for, µs; 0 is none (QT-03).
        binary_data_output: Outputs that are not listed come back in binary where the answer is JSON (BN-04).
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[RequestedOutput, ...] = ()
    id: str = ""
    model_name: str = ""
    model_version: str = ""
    parameters: Parameters = _NONE
    sequence_id: SequenceId = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    timeout_us: int = 0
    binary_data_output: bool = False


class InferResponse(NamedTuple):
    """One infer response (SEMANTICS PB-42): id, model, version and the outputs that were asked for."""

    outputs: tuple[Tensor, ...]
    id: str = ""
    model_name: str = ""
    model_version: str = ""
    parameters: Parameters = _NONE


def with_inputs(request: InferRequest, inputs: tuple[Tensor, ...]) -> InferRequest:
    """Return a request with other inputs; `_replace` takes several times as long."""
    return InferRequest(
        inputs,
        request.outputs,
        request.id,
        request.model_name,
        request.model_version,
        request.parameters,
        request.sequence_id,
        request.sequence_start,
        request.sequence_end,
        request.priority,
        request.timeout_us,
        request.binary_data_output,
    )
