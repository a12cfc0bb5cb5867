"""The requests of Kafka's second transaction protocol, which aiokafka does not know (KIP-890, Apache Kafka 4.0).

A broker then adds a partition to the transaction when its first batch or position comes, so that no request has to say
so before, and every end raises the producer's epoch: whatever comes late of one transaction cannot enter the next.

Source: Apache Kafka 4.1, ``clients/src/main/resources/common/message``; the version of the protocol is chosen by the
finalised feature ``transaction.version``, not by what a broker takes.
"""

from __future__ import annotations

from io import BytesIO

from aiokafka.protocol.api import Request, RequestStruct, Response, ResponseHeader_v0
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactBytes,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

FEATURE = "transaction.version"
SECOND = 2
"""Level of the feature from which on the second protocol may be spoken."""

NO_TAGS: dict[int, bytes] = {}
_TEXT = CompactString("utf-8")
_TAGS = ("tags", TaggedFields)
_FINALIZED = 2  # tag of the field that tells which features are finalised


class ProduceResponse_v12(Response):  # type: ignore[misc]  # aiokafka is untyped  # noqa: N801  # named as aiokafka's
    """An answer per partition."""

    API_KEY = 0
    API_VERSION = 12
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("topic", _TEXT),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("offset", Int64),
                        ("timestamp", Int64),
                        ("log_start_offset", Int64),
                        (
                            "record_errors",
                            CompactArray(("index", Int32), ("message", _TEXT), _TAGS),
                        ),
                        ("error_message", _TEXT),
                        _TAGS,
                    ),
                ),
                _TAGS,
            ),
        ),
        ("throttle_time_ms", Int32),
        _TAGS,
    )


class ProduceRequest_v12(RequestStruct):  # type: ignore[misc]  # aiokafka is untyped  # noqa: N801  # named as aiokafka's
    """Batches of one transaction, one per partition."""

    API_KEY = 0
    API_VERSION = 12
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = ProduceResponse_v12
    SCHEMA = Schema(
        ("transactional_id", _TEXT),
        ("required_acks", Int16),
        ("timeout", Int32),
        (
            "topics",
            CompactArray(
                ("topic", _TEXT),
                (
                    "partitions",
                    CompactArray(("partition", Int32), ("records", CompactBytes), _TAGS),
                ),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class TxnOffsetCommitResponse_v5(Response):  # type: ignore[misc]  # aiokafka is untyped  # noqa: N801  # named as aiokafka's
    """An answer per partition."""

    API_KEY = 28
    API_VERSION = 5
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", _TEXT),
                (
                    "partitions",
                    CompactArray(("partition", Int32), ("error_code", Int16), _TAGS),
                ),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class TxnOffsetCommitRequest_v5(RequestStruct):  # type: ignore[misc]  # aiokafka is untyped  # noqa: N801  # named as aiokafka's
    """Positions of one group that are committed with the transaction."""

    API_KEY = 28
    API_VERSION = 5
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = TxnOffsetCommitResponse_v5
    SCHEMA = Schema(
        ("transactional_id", _TEXT),
        ("group", _TEXT),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("generation", Int32),
        ("member_id", _TEXT),
        ("group_instance_id", _TEXT),
        (
            "topics",
            CompactArray(
                ("topic", _TEXT),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", _TEXT),
                        _TAGS,
                    ),
                ),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class EndTxnResponse_v5(Response):  # type: ignore[misc]  # aiokafka is untyped  # noqa: N801  # named as aiokafka's
    """The producer's id and epoch from now on; an id of -1 leaves both."""

    API_KEY = 26
    API_VERSION = 5
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        _TAGS,
    )


class EndTxnRequest_v5(RequestStruct):  # type: ignore[misc]  # aiokafka is untyped  # noqa: N801  # named as aiokafka's
    """Ends the transaction."""

    API_KEY = 26
    API_VERSION = 5
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = EndTxnResponse_v5
    SCHEMA = Schema(
        ("transactional_id", _TEXT),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("is_commit", Boolean),
        _TAGS,
    )


class ApiVersionsResponse_v3(Response):  # type: ignore[misc]  # aiokafka is untyped  # noqa: N801  # named as aiokafka's
    """What a broker takes, and in its tags which features the cluster has finalised."""

    API_KEY = 18
    API_VERSION = 3
    SCHEMA = Schema(
        ("error_code", Int16),
        (
            "api_versions",
            CompactArray(
                ("api_key", Int16), ("min_version", Int16), ("max_version", Int16), _TAGS
            ),
        ),
        ("throttle_time_ms", Int32),
        _TAGS,
    )

    def feature(self, name: str) -> int:
        """Return the finalised level of a feature, 0 where there is none."""
        found = self.tags.get(_FINALIZED)
        if found is None:
            return 0
        levels = _FEATURES.decode(BytesIO(found)) or []
        return next((highest for named, highest, *_ in levels if named == name), 0)


class ApiVersionsRequest_v3(RequestStruct):  # type: ignore[misc]  # aiokafka is untyped  # noqa: N801  # named as aiokafka's
    """Asks a broker what it takes."""

    API_KEY = 18
    API_VERSION = 3
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = ApiVersionsResponse_v3
    SCHEMA = Schema(("software", _TEXT), ("software_version", _TEXT), _TAGS)

    def parse_response_header(self, read_buffer: BytesIO | bytes) -> ResponseHeader_v0:
        """Read the plain header that this answer alone has: whoever asks may know no other."""
        return ResponseHeader_v0.decode(read_buffer)


_FEATURES = CompactArray(("name", _TEXT), ("highest", Int16), ("lowest", Int16), _TAGS)


class Exactly(Request[RequestStruct]):  # type: ignore[misc]  # aiokafka is untyped
    """A request that is sent in the one version that it was made in."""

    API_KEY = -1
    ALLOW_UNKNOWN_API_VERSION = True

    def __init__(self, request: RequestStruct) -> None:
        """Keep the request."""
        self._request = request

    def prepare(self, versions: dict[int, tuple[int, int]]) -> RequestStruct:
        """Return it, whatever else the broker takes."""
        del versions
        return self._request

    def build(self, request_struct_class: type[RequestStruct]) -> RequestStruct:
        """Return it."""
        del request_struct_class
        return self._request
