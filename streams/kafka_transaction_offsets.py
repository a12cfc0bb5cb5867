"""OffsetFetch with ``require_stable``: a committed position is told only when no transaction is about to change it.

A transaction's position becomes visible a moment after its end was answered, and a takeover that read it before would
answer records a second time (DELIVERY D9, P-9). aiokafka knows the request up to version 3; this is version 7.
"""

from __future__ import annotations

from typing import TypeAlias

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.commit import (
    OffsetFetchRequest_v1,
    OffsetFetchRequest_v2,
    OffsetFetchRequest_v3,
)
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

UNSTABLE_OFFSET_COMMIT = 88  # ask again: aiokafka does not know it


class OffsetFetchResponse_v7(Response):  # type: ignore[misc]  # aiokafka is untyped  # noqa: N801  # named as aiokafka's
    """What the coordinator answers."""

    API_KEY = 9
    API_VERSION = 7
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", CompactString("utf-8")),
                        ("error_code", Int16),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("error_code", Int16),
        ("tags", TaggedFields),
    )


class OffsetFetchRequest_v7(RequestStruct):  # type: ignore[misc]  # aiokafka is untyped  # noqa: N801  # named as aiokafka's
    """Asks for stable offsets."""

    API_KEY = 9
    API_VERSION = 7
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = OffsetFetchResponse_v7
    SCHEMA = Schema(
        ("group", CompactString("utf-8")),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                ("partitions", CompactArray(Int32)),
                ("tags", TaggedFields),
            ),
        ),
        ("require_stable", Boolean),
        ("tags", TaggedFields),
    )


OffsetFetchStruct: TypeAlias = (
    OffsetFetchRequest_v1 | OffsetFetchRequest_v2 | OffsetFetchRequest_v3 | OffsetFetchRequest_v7
)


class StableOffsetFetchRequest(Request[OffsetFetchStruct]):  # type: ignore[misc]  # aiokafka is untyped
    """Asks for committed offsets, for stable ones where the broker can tell (Apache Kafka 2.5)."""

    API_KEY = 9

    def __init__(self, group: str, topics: list[tuple[str, list[int]]]) -> None:
        """Keep what is asked for: partitions by topic."""
        self._group = group
        self._topics = topics

    def build(self, request_struct_class: type[OffsetFetchStruct]) -> OffsetFetchStruct:
        """Fill in the version that the broker takes."""
        if request_struct_class is not OffsetFetchRequest_v7:
            return request_struct_class(self._group, self._topics)
        no_tags: dict[int, bytes] = {}
        topics = [(topic, partitions, no_tags) for topic, partitions in self._topics]
        return OffsetFetchRequest_v7(self._group, topics, True, no_tags)
