"""A model on a topic that people already have: what its mapping puts in the place of the usual parts.

Everything behind is the same: batchers, sequences, settling, delivery.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.consumers.admission import Decoder
from headrace.consumers.answering import ErrorEncoder
from headrace.consumers.encoding import Encoder
from headrace.consumers.schema_requests import SchemaDecoder
from headrace.schemas.answers import ResponseEncoder, encode_error
from headrace.schemas.mapping import ModelMapping
from headrace.schemas.mapping_check import MappingPlan
from headrace.schemas.mapping_decoder import MappingDecoder
from headrace.schemas.mapping_encoder import MappingEncoder, MappingErrors
from headrace.schemas.mapping_format import RecordFormat, RegistryFormat, Schemas
from headrace.schemas.record import AVRO
from headrace.streams.topology import MappedTopics


@dataclass(frozen=True, slots=True)
class MappedModel:
    """A mapping that fits a model, with its formats.

    Attributes:
        mapping: What the file says.
        plans: By version; none where the topic's records are V2 requests.
        source: How records are read; None where they are V2 requests.
        results: How results are written, by version; none where they are V2 responses.
        schemas: The registry; None where no format needs one.
    """

    mapping: ModelMapping
    plans: Mapping[int, MappingPlan] = field(default_factory=dict)
    source: RecordFormat | None = None
    results: Mapping[int, RecordFormat] = field(default_factory=dict)
    schemas: Schemas | None = None

    @property
    def word(self) -> str:
        """The format of its records; ``""`` where they are V2 requests, which anybody may send who knows the model."""
        return "" if self.source is None else self.mapping.source.format.word

    @property
    def from_end(self) -> bool:
        """Whether a partition is read from its end the first time."""
        return self.mapping.source.offset_reset == "latest"

    @property
    def first_sight(self) -> bool:
        """Whether a sequence begins with the first record of its id."""
        sequence = self.mapping.sequence
        return sequence is not None and sequence.start is None

    def decoder(self, max_record_bytes: int) -> Decoder | None:
        """Return what reads its records; None: the usual decoder does."""
        if self.source is None:
            return None
        content_type = AVRO
        if self.results:
            content_type = self.results[max(self.results)].content_type
        decoder = MappingDecoder(
            self.plans, self.source, content_type=content_type, max_record_bytes=max_record_bytes
        )
        if self.schemas is None or not isinstance(self.source, RegistryFormat):
            return decoder
        return SchemaDecoder(decoder, self.source, self.schemas)

    def encoder(self, version: int, usual: ResponseEncoder) -> Encoder:
        """Return what writes the results of a version; ``usual`` writes those of V2 requests."""
        record_format = self.results.get(version)
        if record_format is None:
            return usual
        plan = self.plans[version]
        errors = MappingErrors(plan.passed, record_format, self.mapping.results.event)
        return MappingEncoder(plan, record_format, errors, usual)

    def encode_error(self) -> ErrorEncoder:
        """Return what writes error answers."""
        if not self.results:
            return encode_error
        newest = max(self.results)
        return MappingErrors(
            self.plans[newest].passed, self.results[newest], self.mapping.results.event
        )


def mapped_topics(mapping: ModelMapping) -> MappedTopics:
    """Return the topics of a mapped model."""
    source = mapping.source
    return MappedTopics(
        requests=source.topic,
        results=mapping.results.topic,
        skips_nulls=source.format.word != "v2" and source.tombstones == "skip",
    )
