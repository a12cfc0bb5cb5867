"""The whole error taxonomy: what may go wrong on a record's journey, and who has to act.

`InferError` and its kinds are what a client may see: each carries one of Triton's codes and a stable
`reason` word. `ConfigError` happens at start or load. `LogError` is the transport's. A bug of ours is an
`AssertionError` and is never caught inside. HTTP and gRPC numbers are mapped by tables at the edges,
never stored here.
"""

from __future__ import annotations

from enum import StrEnum


class Code(StrEnum):
    """Triton's status codes, spelled as in the ``status`` header of a result (SEMANTICS PB-31)."""

    OK = "OK"
    UNKNOWN = "UNKNOWN"
    INTERNAL = "INTERNAL"
    NOT_FOUND = "NOT_FOUND"
    INVALID_ARG = "INVALID_ARG"
    UNAVAILABLE = "UNAVAILABLE"
    UNSUPPORTED = "UNSUPPORTED"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    CANCELLED = "CANCELLED"


class Reason(StrEnum):
    """Stable words for the ``reason`` header: programs may switch on them, texts may change."""

    INVALID_REQUEST = "invalid_request"
    MALFORMED = "malformed"
    UNDECODABLE = "undecodable"
    UNKNOWN_SCHEMA = "unknown_schema"
    SCHEMA_UNAVAILABLE = "schema_unavailable"
    INVALID_HEADER = "invalid_header"
    UNKNOWN_CONTENT_TYPE = "unknown_content_type"
    UNSUPPORTED_FRAMING = "unsupported_framing"
    UNSUPPORTED_CLAIM_CHECK = "unsupported_claim_check"
    UNSUPPORTED_ROUTE = "unsupported_route"
    REPLY_TOPIC_REFUSED = "reply_topic_refused"
    UNKNOWN_MODEL = "unknown_model"
    UNKNOWN_VERSION = "unknown_version"
    UNKNOWN_REQUEST = "unknown_request"
    ANSWER_GONE = "answer_gone"
    NOT_READY = "not_ready"
    UNAUTHENTICATED = "unauthenticated"
    RESTRICTED = "restricted"
    UNSUPPORTED = "unsupported"
    QUEUE_FULL = "queue_full"
    TIMEOUT_EXPIRED = "timeout_expired"
    DEADLINE_PASSED = "deadline_passed"
    CANCELLED = "cancelled"
    DRAINING = "draining"
    SLOW_READER = "slow_reader"
    IDEMPOTENCY_KEY_REUSED = "idempotency_key_reused"
    TOO_LARGE = "too_large"
    ANSWER_TOO_LARGE = "answer_too_large"
    CLAIM_REFUSED = "claim_refused"
    CLAIM_MISSING = "claim_missing"
    CLAIM_MISMATCH = "claim_mismatch"
    CLAIM_UNREACHABLE = "claim_unreachable"
    BACKEND_FAILED = "backend_failed"
    RETRIES_EXHAUSTED = "retries_exhausted"
    BACKEND_UNAVAILABLE = "backend_unavailable"
    INSTANCE_DIED = "instance_died"
    WORKER_CRASHED = "worker_crashed"
    EXECUTION_TIMEOUT = "execution_timeout"
    OUT_OF_MEMORY = "out_of_memory"
    WRONG_OUTPUT = "wrong_output"
    SEQUENCE_UNKNOWN = "sequence_unknown"
    SEQUENCE_EXPIRED = "sequence_expired"
    SEQUENCE_LOST = "sequence_lost"


class InferError(Exception):
    """Something a client may see. ``detail`` is one sentence: what, which value, what was expected.

    Attributes:
        code: Triton's status.
        reason: Stable word.
        retriable: The same bytes may succeed later.
        detail: The sentence.
    """

    code: Code = Code.UNKNOWN
    reason: Reason = Reason.INVALID_REQUEST
    retriable: bool = False

    def __init__(
        self, detail: str, *, reason: Reason | None = None, code: Code | None = None
    ) -> None:
        """Keep the sentence, and the reason and code where they differ from the kind's own."""
        super().__init__(detail)
        self.detail = detail
        if reason is not None:
            self.reason = reason
        if code is not None:
            self.code = code


class InvalidRequest(InferError):
    """The client sent what the model cannot take: bytes, shape, datatype, missing input. Mend and resend."""

    code = Code.INVALID_ARG
    reason = Reason.INVALID_REQUEST


class MalformedRequest(InvalidRequest):
    """The text of a V2 JSON request cannot be parsed. Triton answers INTERNAL here (SEMANTICS PB-32)."""

    code = Code.INTERNAL
    reason = Reason.MALFORMED


class UndecodableRecord(InvalidRequest):
    """A record's value is not what its ``content-type`` says; its bytes are also kept as a dead letter."""

    reason = Reason.UNDECODABLE


class KeyReused(InvalidRequest):
    """An idempotency key came before with another request (DELIVERY P-17). Ask again under a new key."""

    reason = Reason.IDEMPOTENCY_KEY_REUSED


class NotFound(InferError):
    """No such model or version. Ask for one that the index lists."""

    code = Code.NOT_FOUND
    reason = Reason.UNKNOWN_MODEL


class Unsupported(InferError):
    """Understood, and not offered here, such as a decoupled model on a one-reply route."""

    code = Code.UNSUPPORTED
    reason = Reason.UNSUPPORTED


class Unavailable(InferError):
    """Not now: not ready, overloaded, draining. Try again later."""

    code = Code.UNAVAILABLE
    reason = Reason.NOT_READY
    retriable = True


class SchemaNeeded(Unavailable):
    """A record cannot be read before its schema is fetched; whoever has a registry fetches it and reads it again.

    Attributes:
        schema_id: In the registry.
    """

    reason = Reason.SCHEMA_UNAVAILABLE

    def __init__(self, detail: str, schema_id: int) -> None:
        """Keep sentence and id."""
        super().__init__(detail)
        self.schema_id = schema_id


class AccessDenied(InferError):
    """The caller has not shown what this needs: a token (UNAUTHENTICATED) or a header (RESTRICTED). Ask with it."""

    code = Code.UNAVAILABLE  # what Triton's gRPC server answers (SEMANTICS PB-22)
    reason = Reason.RESTRICTED


class QueueFull(Unavailable):
    """A queue's configured bound is reached (SEMANTICS QT-01). Try again later."""

    reason = Reason.QUEUE_FULL


class DeadlineExceeded(InferError):
    """Waited too long: a queue policy's timeout (503), or with `Reason.DEADLINE_PASSED` the caller's own (504)."""

    code = Code.UNAVAILABLE
    reason = Reason.TIMEOUT_EXPIRED


class Cancelled(InferError):
    """The caller went away while the request was queued (SEMANTICS QT-07)."""

    code = Code.CANCELLED
    reason = Reason.CANCELLED


class TooLarge(InferError):
    """A value is above a configured size; the sentence names the size, the limit and its option."""

    code = Code.INVALID_ARG
    reason = Reason.TOO_LARGE


class BackendError(InferError):
    """The model's execution raised; the cause is chained. The operator should look at the model."""

    code = Code.INTERNAL
    reason = Reason.BACKEND_FAILED


class Retriable(BackendError):
    """The execution failed in a way that may pass; the request is tried again, within its bounds.

    A backend raises it of a batch in which any request may be the cause: the batch is taken apart, and each request
    that fails alone is tried again.
    """

    reason = Reason.RETRIES_EXHAUSTED
    retriable = True


class BackendUnavailable(Retriable):
    """What the backend needs does not answer now, whatever the requests are: the batch is tried again as it is."""

    code = Code.UNAVAILABLE
    reason = Reason.BACKEND_UNAVAILABLE


class ExecutionTimeout(Retriable):
    """An execution did not return within ``execution_timeout_ms``. Look at the model, or give it more time."""

    code = Code.UNAVAILABLE
    reason = Reason.EXECUTION_TIMEOUT


class InstanceDied(Retriable):
    """The instance ended with the request; the cause is chained. It is replaced by a new one."""

    reason = Reason.INSTANCE_DIED


class WorkerCrashed(BackendError):
    """Worker processes ended while nothing but this request ran, as often as ``max_crashes`` allows (DELIVERY P-14).

    It is not run any more; its record is kept as a dead letter. The operator should look at the model.
    """

    reason = Reason.WORKER_CRASHED


class OutOfMemory(Retriable):
    """The runtime had no memory for this batch; a smaller one may fit."""

    reason = Reason.OUT_OF_MEMORY


class WrongOutput(BackendError):
    """A backend's output does not fit its batch (rows, name, datatype): our plug-in's fault, never the client's."""

    reason = Reason.WRONG_OUTPUT


class ConfigError(Exception):
    """At start or load. Names file, field, value and what was expected; the operator mends the file.

    Attributes:
        file: Path as the user knows it, or an option's name, or ``""``.
        field: Dotted field path, or ``""``.
        value: The offending value as text, or ``""``.
        expected: What was expected, a clause without a full stop.
    """

    def __init__(
        self, detail: str, *, file: str = "", field: str = "", value: object = ""
    ) -> None:
        """Build the sentence ``file: field = value: detail`` from the parts that are given."""
        self.file = file
        self.field = field
        self.value = str(value)
        self.expected = detail
        where = ": ".join(
            part for part in (file, f"{field} = {self.value}" if self.value else field) if part
        )
        super().__init__(f"{where}: {detail}" if where else detail)


class LogError(Exception):
    """The transport failed. ``retriable``: try again (timeout, leader moved); else fatal (auth, fenced).

    ``topics`` are those that refuse for good what was to be published to them, where that is the reason.
    """

    def __init__(
        self, detail: str, *, retriable: bool, topics: frozenset[str] = frozenset()
    ) -> None:
        """Keep the sentence, whether to try again, and who refuses."""
        super().__init__(detail)
        self.detail = detail
        self.retriable = retriable
        self.topics = topics
