"""A call as records: the request that is produced for it and the answer that comes back."""

from __future__ import annotations

from headrace.schemas.classification import PARAMETER as CLASSES
from headrace.schemas.codec import decode_response, encode_request
from headrace.schemas.errors import (
    BackendError,
    DeadlineExceeded,
    InferError,
    LogError,
    Reason,
    TooLarge,
    Unavailable,
    Unsupported,
)
from headrace.schemas.headers import RequestOptions, checked_id, find_header
from headrace.schemas.infer import InferRequest, InferResponse, RequestedOutput
from headrace.schemas.record import AVRO, CLAIM_CHECK, STATUS, Out, Record
from headrace.streams.model_view import Route
from headrace.streams.topology import partition_for_key


def request_record(
    route: Route, version: str, request: InferRequest, options: RequestOptions, *, spread: int
) -> Out:
    """Write a call's request record; the key is the sequence id's text, so that all of a sequence is in one partition.

    Else it is the idempotency key, so that repeats meet there (DELIVERY P-17).

    7 and ``"7"`` share a partition and stay two sequences, by the header ``sequence-id-type`` (SEMANTICS KX-12).

    Args:
        route: Where the model's requests go.
        version: The version that was asked for; ``""`` leaves it to the worker.
        request: What only the edge needs (model name, how outputs are encoded) stays out of the record, so that a
            model's records keep one layout. An output's classes are the worker's to find, so they go along (CL-01).
        options: Reply address, deadline and further headers.
        spread: A running number that spreads records without a key over the partitions.

    Raises:
        InvalidRequest: The request cannot be written.
    """
    outputs = tuple([_for_the_worker(output) for output in request.outputs])
    if len(outputs) == len(route.signature.outputs) and not any(o.parameters for o in outputs):
        outputs = ()  # all of them: where none is named the worker writes the answers of a batch at once
    plain = InferRequest(
        request.inputs,
        outputs,
        request.id,
        "",
        version,
        request.parameters,
        request.sequence_id,
        request.sequence_start,
        request.sequence_end,
        request.priority,
        request.timeout_us,
    )
    value, headers = encode_request(plain, AVRO, options)
    key = str(request.sequence_id).encode() if request.sequence_id else options.idempotency_key
    if not key:
        return Out(route.topic, spread % route.partitions, None, value, headers)
    return Out(route.topic, partition_for_key(key, route.partitions), key, value, headers)


RECORD_LIMIT = "max.request.size, before compression; larger ones need a store, --claim-check-url"
"""What says how much a request may have where no store is configured."""


def check_request(
    route: Route, request: InferRequest, max_bytes: int, option: str = RECORD_LIMIT
) -> None:
    """Refuse what the worker would refuse, so that it never enters the log (FAULTS B53).

    Args:
        route: Of its model.
        request: The call's.
        max_bytes: Bytes that its tensors may have.
        option: What sets this limit.

    Raises:
        InferError: Of whatever kind; the sizes are looked at before the elements of BYTES tensors are.
    """
    model = route.signature.model_name
    checked_id(request.id)
    check_size(model, sum([len(tensor.data) for tensor in request.inputs]), max_bytes, option)
    admitted = route.signature.admit(request.inputs, request.outputs)
    route.signature.check_sequence(request.sequence_id, admitted.rows)


def refuse_decoupled(route: Route) -> None:
    """Refuse a call for one answer to a model that gives 0..n (SEMANTICS DC-01, GR-04).

    Raises:
        Unsupported: Always.
    """
    raise Unsupported(
        f"model '{route.signature.model_name}': one request and one answer "
        "doesn't support models with decoupled transaction policy"
    )


def refuse_mapped(route: Route) -> None:
    """Refuse a call to a model on a topic of other people's: their other readers would meet a V2 request there.

    Raises:
        Unsupported: Always.
    """
    raise Unsupported(
        f"model '{route.signature.model_name}' serves the {route.mapped} records of topic '{route.topic}' by a "
        "mapping, expected records there and no calls; load it under another name to call it as well",
        reason=Reason.UNSUPPORTED_ROUTE,
    )


def time_left(model: str, deadline_ms: int, now_ms: int) -> int:
    """Return the milliseconds until a call's own deadline.

    Raises:
        DeadlineExceeded: It has passed.
    """
    left_ms = deadline_ms - now_ms
    if left_ms <= 0:
        raise DeadlineExceeded(
            f"the deadline passed {-left_ms} ms before the request for model '{model}' could "
            "be produced",
            reason=Reason.DEADLINE_PASSED,
        )
    return left_ms


def check_size(model: str, size: int, max_bytes: int, option: str = RECORD_LIMIT) -> None:
    """Refuse a record that the broker would refuse (FAULTS B57).

    Args:
        model: Whose request it is.
        size: Bytes of its value, or of the tensors that go into it.
        max_bytes: Bytes that it may have.
        option: What sets this limit.

    Raises:
        TooLarge: Names the size, the limit and its option.
    """
    if size > max_bytes:
        raise TooLarge(
            f"the request for model '{model}' takes a record of {size} bytes, expected at most "
            f"{max_bytes} ({option})"
        )


def read_answer(record: Record) -> InferResponse:
    """Read a reply.

    Raises:
        InferError: The worker's own error; a result that nobody can read is our side's fault, not the client's.
    """
    try:
        return decode_response(record.value, record.headers)
    except InferError as error:
        if (find_header(record.headers, STATUS) or b"OK") != b"OK":
            raise
        where = f"{record.topic}/{record.partition}/{record.offset}"
        if find_header(record.headers, CLAIM_CHECK) is not None:
            raise BackendError(
                f"the answer at {where} is in a store, and this gateway has none (--claim-check-url)"
            ) from error
        raise BackendError(f"the answer at {where} cannot be read: {error.detail}") from error


def not_produced(model: str, error: LogError) -> Unavailable:
    """Return the error of a call whose request the log did not take."""
    return Unavailable(f"the request for model '{model}' could not be produced: {error.detail}")


def expired() -> DeadlineExceeded:
    """Return the error of a call that nobody answered in time (FAULTS B63)."""
    return DeadlineExceeded(
        "the call's deadline passed before an answer came", reason=Reason.DEADLINE_PASSED
    )


def _for_the_worker(output: RequestedOutput) -> RequestedOutput:
    if not output.parameters:
        return output
    classes = output.parameters.get(CLASSES)
    return RequestedOutput(output.name, {CLASSES: classes} if classes else {})
