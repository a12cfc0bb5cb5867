"""Mappings, and the decoders and encoders that they become, for the tests of mapped topics."""

import json
from dataclasses import replace

from headrace.schemas.answers import ResponseEncoder
from headrace.schemas.batch import Batch, Responses
from headrace.schemas.mapping_check import fit_mapping
from headrace.schemas.mapping_decoder import MappingDecoder
from headrace.schemas.mapping_encoder import MappingEncoder, MappingErrors
from headrace.schemas.mapping_file import read_mapping
from headrace.schemas.mapping_json import JsonFormat, RawFormat
from headrace.schemas.model_config import ControlInput, ControlKind, SequenceBatching
from headrace.schemas.record import AVRO, JSON
from headrace.schemas.signature import Signature
from wire_kit import TP0, Rec, config, signature, tensor_config

SOURCE = """
[source]
topic = "payments"
format = "json"
offset_reset = "earliest"
"""

FIELDS = SOURCE + '[inputs.x]\nfields = ["a", "b.c", "d", "e[1]"]\n'
"""Fits the default signature of `wire_kit`: one FP32 input ``x`` of 4."""

GOOD = {"a": 1, "b": {"c": 2.5}, "d": -3, "e": ["no", 4e3]}


def sequence_model(corrid=None):
    """Return a signature of sequences whose control CORRID has this datatype."""
    controls = () if corrid is None else (ControlInput("id", ControlKind.CORRID, corrid),)
    one = config([tensor_config("x")], [tensor_config("y", dims=(2,))])
    return Signature(replace(one, sequence_batching=SequenceBatching(controls=controls)), 1)


def mapped(text, files=None):
    """Read a mapping file."""
    return read_mapping(text, "fraud.toml", lambda name: (files or {})[name])


def plan(text, one=None, labels=None):
    """Fit a mapping to a signature, the default one of `wire_kit` unless given."""
    return fit_mapping(mapped(text), one or signature(), labels or {})


def decoder(text, *signatures, **rest):
    """Return the decoder of a mapping."""
    plans = {one.version: plan(text, one) for one in signatures or (signature(),)}
    words = next(iter(plans.values())).mapping
    read = RawFormat() if words.source.format.word == "raw" else JsonFormat()
    content_type = AVRO if words.results.format.word == "v2" else JSON
    return MappingDecoder(plans, read, content_type=content_type, **rest)


def record(fields=None, /, **rest):
    """Return a JSON record."""
    return Rec(json.dumps(GOOD if fields is None else fields).encode(), **rest)


def decode_one(text, rec, *signatures):
    """Decode one record that must succeed."""
    decoded = decoder(text, *signatures).decode(TP0, 1, [rec])
    assert not decoded.failures, decoded.failures[0].error
    ((entry,),) = decoded.by_version.values()
    return entry


def fail_one(text, rec, *signatures, good=None):
    """Decode one record that must fail, between two good neighbours that must not; returns the failure."""
    neighbour = good or record()
    decoded = decoder(text, *signatures).decode(TP0, 1, [neighbour, rec, neighbour])
    assert sum(map(len, decoded.by_version.values())) == 2
    (failure,) = decoded.failures
    assert failure.entry.record is rec
    assert failure.entry.rows == 0
    assert failure.entry.data == ()
    return failure


def encoder(text, one=None, labels=None):
    """Return the encoder of a mapping, with JSON results."""
    fitted = plan(text, one, labels)
    errors = MappingErrors(fitted.passed, JsonFormat())
    return MappingEncoder(fitted, JsonFormat(), errors, ResponseEncoder(fitted.signature))


def encode(text, records, outputs, one=None, labels=None, index=None, **rest):
    """Decode records and encode a response for them; returns values parsed, and headers as dicts."""
    one = one or signature()
    decoded = decoder(text, one).decode(TP0, 1, records)
    assert not decoded.failures, decoded.failures[0].error
    (entries,) = decoded.by_version.values()
    answers = encoder(text, one, labels).encode(
        Batch(one, entries), Responses(outputs, **rest), response_index=index
    )
    return [(json.loads(value), dict(headers)) for _, value, headers in answers]
