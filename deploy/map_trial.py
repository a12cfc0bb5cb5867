"""Tries a mapping on records: decodes them, runs the model with each, and shows what would be written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from headrace.consumers.admission import Decoder
from headrace.consumers.encoding import encode_part
from headrace.consumers.execution import Part
from headrace.consumers.mapped import MappedModel
from headrace.consumers.schema_requests import SchemaDecoder
from headrace.deploy.failure import CommandFailed
from headrace.deploy.map_replay import replay
from headrace.repository.models import LoadedModel, LoadedVersion, LoadFailure, load
from headrace.repository.prepare import LoadSettings, Prepared
from headrace.repository.repository import Repository
from headrace.schemas.answers import ResponseEncoder
from headrace.schemas.batch import Batch, Entry, Responses
from headrace.schemas.errors import BackendError, Code, InferError, Reason
from headrace.schemas.record import REASON, STATUS, TP, Record
from headrace.schemas.requests import MAX_RECORD_BYTES, Decoded
from headrace.schemas.signature import Signature
from headrace.schemas.tensor import to_numpy

SCHEMA_S = 30.0
"""A registry is waited for so long, seconds."""

MAX_SHOWN = 300
"""Characters of a tensor or a result that are shown."""

OK, UNKNOWN = Code.OK.encode(), Reason.SEQUENCE_UNKNOWN.encode()


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one record.

    Attributes:
        record: It.
        tensors: What comes out of it, as text.
        result: What would be written, as text.
        is_error: It would be answered with an error.
    """

    record: Record
    tensors: str
    result: str
    is_error: bool = False


async def try_records(
    mapped: MappedModel,
    prepared: Prepared,
    version: int,
    records: Sequence[Record],
    settings: LoadSettings,
) -> list[Tried]:
    """Decode records and run the model with each; in the order of the records.

    Args:
        mapped: The mapping with its formats; not of V2 requests.
        prepared: The model, which is loaded for the time of this.
        version: Which of its versions.
        records: To be tried. Of a sequence model they are steps, and the first ones begin where the mapping says so.
        settings: How models are loaded.

    Raises:
        ConfigError: The model does not load.
        CommandFailed: A schema cannot be fetched.
    """
    decoder = mapped.decoder(MAX_RECORD_BYTES)
    assert decoder is not None
    found: dict[int, Tried] = {}
    entries: list[Entry] = []
    for place, record in enumerate(records):
        decoded = await _decoded(decoder, record)
        for failure in decoded.failures:
            found[place] = Tried(record, "", f"{failure.error.code}: {failure.error.detail}", True)
        for skipped in decoded.skipped:
            found[place] = Tried(skipped.record, "", "skipped: the value is null")
        for some in decoded.by_version.values():
            entries += some
    signature = Signature(prepared.config, version)
    if prepared.config.sequence_batching is None or not entries:
        answers = await asyncio.to_thread(_answers, mapped, prepared, version, entries)
    else:
        answers = await _stepped(mapped, prepared, entries, settings)
    for entry, (result, is_error) in zip(entries, answers, strict=True):
        place = next(i for i, record in enumerate(records) if record is entry.record)
        found[place] = Tried(entry.record, _tensors(entry, signature), result, is_error)
    return [found[place] for place in sorted(found)]


async def _decoded(decoder: Decoder, record: Record) -> Decoded:
    """Decode one record, with the schema that it names.

    Raises:
        CommandFailed: The registry does not give it in time.
    """

    async def decode() -> Decoded:
        return decoder.decode(TP(record.topic, record.partition), 0, [record])

    decoded = await decode()
    if not isinstance(decoder, SchemaDecoder):
        return decoded
    try:
        async with asyncio.timeout(SCHEMA_S):
            return await decoder.whole(decoded, decode)
    except TimeoutError as exc:
        raise CommandFailed(
            f"the schema of a record could not be fetched within {SCHEMA_S:g} s"
        ) from exc


def _tensors(entry: Entry, signature: Signature) -> str:
    said = [f"sequence {entry.sequence_id}"] if entry.sequence_id else []
    for spec in signature.inputs:
        data, shape = entry.data[spec.index], entry.shapes[spec.index]
        if data is None or shape is None:
            continue
        array = to_numpy(spec.name, spec.datatype, shape, data)
        text = np.array2string(array, threshold=12, edgeitems=4, separator=", ")
        said.append(f"{spec.name} {spec.datatype} {list(shape)} {_short(text)}")
    return "\n".join(said)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


async def _stepped(
    mapped: MappedModel, prepared: Prepared, entries: Sequence[Entry], settings: LoadSettings
) -> list[tuple[str, bool]]:
    """Serve the records of a sequence model in their order, and return what would be written."""
    repository = Repository([prepared.source.path], settings)
    try:
        for failure in (await asyncio.to_thread(repository.load)).values():
            raise next(iter(failure.causes.values()))
        records = [entry.record for entry in entries]
        answers = await replay(mapped, prepared.config.name, repository, records)
    finally:
        repository.close()
    return [_step(found) for found in answers]


def _step(answers: Sequence[Record]) -> tuple[str, bool]:
    said = [dict(answer.headers) for answer in answers]
    if any(headers.get(REASON) == UNKNOWN for headers in said):
        return "(its sequence began before these records)", False
    texts = [_short((answer.value or b"").decode(errors="replace")) for answer in answers]
    return "\n".join(texts), any(headers[STATUS] != OK for headers in said)


def _answers(
    mapped: MappedModel, prepared: Prepared, version: int, entries: Sequence[Entry]
) -> list[tuple[str, bool]]:
    """Run the model, one record at a time, and return what would be written; in a thread."""
    model = load(prepared)
    if isinstance(model, LoadFailure):
        raise next(iter(model.causes.values()))
    assert isinstance(model, LoadedModel)
    try:
        return [_answer(mapped, model.versions[version], entry) for entry in entries]
    finally:
        model.close()


def _answer(mapped: MappedModel, loaded: LoadedVersion, entry: Entry) -> tuple[str, bool]:
    batch = Batch(loaded.signature, [entry])
    emitted: list[Responses] = []
    encoder = mapped.encoder(loaded.version, ResponseEncoder(loaded.signature, loaded.labels))
    try:
        loaded.instances[0].execute(batch, emitted.append)
    except InferError as exc:
        return f"{exc.code}: {exc.detail}", True
    except Exception as exc:  # noqa: BLE001  # whatever a model raises
        error = BackendError(f"the model raised {type(exc).__name__}: {exc}")
        return f"{error.code}: {error.detail}", True
    answers, failures = encode_part(
        encoder, Part(batch, emitted, None), decoupled=loaded.config.decoupled
    )
    if failures:
        return f"{failures[0].error.code}: {failures[0].error.detail}", True
    return "\n".join([_short(value.decode(errors="replace")) for _, value, _ in answers]), False
