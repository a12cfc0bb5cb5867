"""The headers of records with their meaning, for people: what `headrace topics schema` prints."""

from __future__ import annotations

from headrace.schemas import record

REQUEST_HEADERS: dict[str, str] = {
    record.CONTENT_TYPE: f"format of the value: {', '.join(record.CONTENT_TYPES)}; without it the first",
    record.ACCEPT: "format of the answer; without it that of the request",
    record.HEADER_LENGTH: "bytes of the JSON part, where binary tensors follow it",
    record.ID: "the caller's own, comes back; need not be unique",
    record.MODEL_VERSION: "without it the highest that is ready",
    record.SEQUENCE_ID: "which sequence the record is a step of; equal to the record's key",
    record.SEQUENCE_ID_TYPE: "uint64 or string; without it digits are a number",
    record.SEQUENCE_START: "true on the first record of a sequence",
    record.SEQUENCE_END: "true on the last one",
    record.PRIORITY: "level in the model's queue, from 1",
    record.TIMEOUT_US: "how long it may wait in the queue, microseconds",
    record.DEADLINE_MS: "after which nobody waits any more, epoch milliseconds",
    record.REPLY_TOPIC: "where the answer goes; without it to the results topic",
    record.REPLY_PARTITION: "partition there; without it the request's own",
    record.CORRELATION_ID: "any bytes, come back",
    record.IDEMPOTENCY_KEY: "sent again under it, the request is not run again",
    record.ATTEMPT: "which try this is, from 1; comes back",
    record.CLAIM_CHECK: "where the value is stored, if no record can hold it: JSON with url, size, sha256",
    record.TRACEPARENT: "trace context, comes back",
    record.TRACESTATE: "trace context, comes back",
    f"{record.OPAQUE_PREFIX}…": "any bytes, come back",
    record.SPRING_REPLY_TOPIC: "Spring Kafka's spelling of reply-topic",
    record.SPRING_REPLY_PARTITION: "of reply-partition: 4 bytes, big-endian",
    record.SPRING_CORRELATION_ID: "of correlation-id",
}
"""Header → meaning, all optional; values are UTF-8 text unless said (DESIGN §4)."""

RESULT_HEADERS: dict[str, str] = {
    record.CONTENT_TYPE: "format of the value",
    record.SOURCE: "topic/partition/offset of the request: the identity of an answer",
    record.STATUS: "OK, or Triton's code",
    record.REASON: "of an error: a stable word, such as invalid_request or queue_full",
    record.MODEL_NAME: "which model answered",
    record.MODEL_VERSION: "and which version of it",
    record.ID: "the request's",
    record.RESPONSE_INDEX: "where a model gives 0..n responses: number of this one, from 0",
    record.FINAL: "and whether it is the last: true or false",
    record.REPLAYED: "true where an earlier request with the same idempotency-key was answered so",
    record.ATTEMPT: "the request's",
}
"""Header → meaning; what comes back untouched stands among the request's."""
