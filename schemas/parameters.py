"""Standard request parameters: from a value's ``parameters`` into a request's fields, and back (SEMANTICS PB-47).

Every codec hands over what it read and gets the same request, so the rules stand here once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.schemas.errors import InvalidRequest, Unsupported
from headrace.schemas.infer import InferRequest, Parameter, RequestedOutput, SequenceId
from headrace.schemas.shared_span import REGION
from headrace.schemas.tensor import Tensor

MAX_UINT64 = 2**64 - 1
RESERVED_PREFIX = "triton_"


def infer_request(
    inputs: Iterable[Tensor],
    outputs: Sequence[RequestedOutput] = (),
    *,
    id: str = "",  # noqa: A002  # the protocol's word
    model: tuple[str, str] = ("", ""),
    parameters: Mapping[str, object] | None = None,
    has_shared: bool = False,
) -> InferRequest:
    """Make a request of what a codec read, with the standard parameters lifted into fields.

    Args:
        inputs: In the order of the wire.
        outputs: Requested ones.
        id: The caller's, or ``""``.
        model: Name and version, each may be ``""``.
        parameters: As read; values of any type, checked here.
        has_shared: Outputs may go to shared memory: whoever asked will find them there.

    Raises:
        InvalidRequest: A parameter has the wrong type, or its name is reserved.
        Unsupported: An output asks for shared memory.
    """
    if not has_shared:
        for output in outputs:
            refuse_shared_memory(output.name, output.parameters)
    name, version = model
    if not parameters:
        return InferRequest(tuple(inputs), tuple(outputs), id, name, version)
    found = dict(parameters)
    return InferRequest(
        tuple(inputs),
        tuple(outputs),
        id,
        name,
        version,
        sequence_id=_sequence_id(found),
        sequence_start=_flag(found, "sequence_start"),
        sequence_end=_flag(found, "sequence_end"),
        priority=_whole(found, "priority"),
        timeout_us=_whole(found, "timeout"),
        binary_data_output=_flag(found, "binary_data_output"),
        parameters=custom_parameters(found),
    )


def custom_parameters(found: Mapping[str, object]) -> dict[str, Parameter]:
    """Return what is left when the standard keys are gone.

    Raises:
        InvalidRequest: A name begins with ``triton_``, or a value is no string, number or boolean.
    """
    custom: dict[str, Parameter] = {}
    for name, value in found.items():
        if name.startswith(RESERVED_PREFIX):
            raise InvalidRequest(
                f"parameter '{name}' is reserved, expected a name that does not begin with "
                f"'{RESERVED_PREFIX}'"
            )
        if not isinstance(value, bool | int | float | str):
            raise InvalidRequest(
                f"parameter '{name}' is of type {type(value).__name__}, expected a string, an "
                "integer, a number or a boolean"
            )
        custom[name] = value
    return custom


def standard_parameters(request: InferRequest) -> dict[str, Parameter]:
    """Return all parameters of a request as a V2 value carries them: those set, then the custom ones."""
    found: dict[str, Parameter] = {}
    if request.sequence_id:
        # Triton's own clients send all three together (SEMANTICS TC-02).
        found["sequence_id"] = request.sequence_id
        found["sequence_start"] = request.sequence_start
        found["sequence_end"] = request.sequence_end
    if request.priority:
        found["priority"] = request.priority
    if request.timeout_us:
        found["timeout"] = request.timeout_us
    if request.binary_data_output:
        found["binary_data_output"] = True
    found.update(request.parameters)
    return found


def refuse_shared_memory(output: str, parameters: Mapping[str, object]) -> None:
    """Refuse outputs that shall go to shared memory: a record's writer is another machine (SEMANTICS PB-72).

    Raises:
        Unsupported: The parameters name a region.
    """
    if REGION in parameters:
        raise Unsupported(
            f"output '{output}' shall go to shared memory, which is not offered here, expected no "
            f"'{REGION}'"
        )


def _sequence_id(found: dict[str, object]) -> SequenceId:
    value = found.pop("sequence_id", 0)
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_UINT64:
        return value
    raise _wrong("sequence_id", value, f"an unsigned integer up to {MAX_UINT64}, or a string")


def _flag(found: dict[str, object], name: str) -> bool:
    value = found.pop(name, False)
    if isinstance(value, bool):
        return value
    raise _wrong(name, value, "true or false")


def _whole(found: dict[str, object], name: str) -> int:
    value = found.pop(name, 0)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_UINT64:
        return value
    raise _wrong(name, value, f"a whole number from 0 to {MAX_UINT64}")


def _wrong(name: str, value: object, expected: str) -> InvalidRequest:
    try:
        shown = repr(value)
    except ValueError:  # an integer with more digits than Python prints
        shown = "a huge number"
    return InvalidRequest(f"parameter '{name}' is {shown[:60]}, expected {expected}")
