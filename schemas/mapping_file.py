"""Reads a mapping file, TOML, and checks everything that needs no model: keys, types, paths.

Pure: files that the mapping names are read by a function that the caller brings.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable

from headrace.schemas.cloudevents import CloudEvent
from headrace.schemas.errors import ConfigError, InvalidRequest
from headrace.schemas.mapping import (
    ENCODINGS,
    ERROR_FIELD,
    EVENT_MODES,
    ID_TYPES,
    NO_DEFAULT,
    OFFSET_RESETS,
    TOMBSTONES,
    Condition,
    EventMapping,
    Field,
    InputMapping,
    ModelMapping,
    PassedField,
    RequestMapping,
    ResultMapping,
    ResultsMapping,
    SequenceMapping,
    SourceMapping,
)
from headrace.schemas.mapping_format import FORMATS, RESULT_FORMATS, FormatSettings
from headrace.schemas.mapping_path import FieldPath, parse_path
from headrace.schemas.mapping_tables import Table
from headrace.schemas.tensor import Datatype

_FORMAT_KEYS = ("format", "schema", "framing", "registry", "subject", "descriptors", "message")


def read_mapping(text: str, file: str, read_file: Callable[[str], bytes]) -> ModelMapping:
    """Read a mapping file.

    Args:
        text: TOML.
        file: Its path, for errors.
        read_file: Returns the bytes of a file that the mapping names, such as a schema; raises `OSError`.

    Raises:
        ConfigError: It is no TOML, or a key or value is wrong; names the key, its value, and what was expected.
    """
    keys = ("source", "inputs", "request", "sequence", "results")
    root = Table(_toml(text, file), keys, file=file, field="")
    source = _source(root, read_file)
    inputs = root.table("inputs", None)
    mapping = ModelMapping(
        file=file,
        source=source,
        inputs=tuple([_input(inputs, name) for name in inputs.keys()]),  # noqa: SIM118  # a table, no dict
        request=_request(root),
        sequence=_sequence(root) if "sequence" in root else None,
        results=_results(root, source, read_file),
    )
    if source.format.word == "v2":
        _check_v2(mapping, root)
    elif not mapping.inputs:
        root.refuse("inputs", "expected a table [inputs.NAME] for each input of the model")
    return mapping


def read_source(text: str, file: str, read_file: Callable[[str], bytes]) -> SourceMapping:
    """Read a file that has nothing but the table ``[source]``: a mapping that is only begun.

    Raises:
        ConfigError: As `read_mapping`, or there is more in it.
    """
    return _source(Table(_toml(text, file), ("source",), file=file, field=""), read_file)


def _toml(text: str, file: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"expected TOML: {exc}", file=file) from exc


def _source(root: Table, read_file: Callable[[str], bytes]) -> SourceMapping:
    table = root.table(
        "source", ("topic", "offset_reset", "tombstones", "cloudevents", *_FORMAT_KEYS)
    )
    return SourceMapping(
        topic=table.needed("topic", "the name of the topic that has the records"),
        format=_format(table, FORMATS, "", read_file),
        offset_reset=_offset_reset(table),
        tombstones=table.word("tombstones", TOMBSTONES, "skip"),
        events=table.flag("cloudevents"),
    )


def _offset_reset(table: Table) -> str:
    if "offset_reset" not in table:
        table.refuse(
            "offset_reset",
            "expected earliest or latest: where to begin the first time, for the topic may have years of records",
        )
    return table.word("offset_reset", OFFSET_RESETS, "")


def _format(
    table: Table, words: tuple[str, ...], default: str, read_file: Callable[[str], bytes]
) -> FormatSettings:
    word = table.word("format", words, default)
    own = {
        "avro": ("schema", "framing", "registry", "subject"),
        "protobuf": ("framing", "descriptors", "message"),
    }.get(word, ())
    for key in _FORMAT_KEYS[1:]:
        if key in table and key not in own:
            table.refuse(key, f"format '{word}' has no such key")
    schema = _named_file(table, "schema", read_file)
    try:
        text = schema.decode()
    except UnicodeDecodeError:
        table.refuse("schema", "expected a file of UTF-8 text")
    return FormatSettings(
        word,
        schema=text,
        framing=table.word("framing", ("", "confluent"), ""),
        registry=table.text("registry"),
        subject=table.text("subject"),
        descriptors=_named_file(table, "descriptors", read_file),
        message=table.text("message"),
    )


def _named_file(table: Table, key: str, read_file: Callable[[str], bytes]) -> bytes:
    name = table.text(key)
    if not name:
        return b""
    try:
        return read_file(name)
    except OSError as exc:
        table.refuse(key, f"the file cannot be read: {exc.strerror or exc}")


def _path(table: Table, key: str) -> FieldPath | None:
    if key not in table:
        return None
    return parsed(table, key, table.text(key))


def parsed(table: Table, key: str, text: str) -> FieldPath:
    """Return a path that a file has at ``key``."""
    try:
        return parse_path(text)
    except ValueError as exc:
        raise ConfigError(str(exc), file=table.file, field=table.path(key), value=text) from None


def _input(inputs: Table, name: str) -> InputMapping:
    table = inputs.table(
        name, ("field", "fields", "encoding", "datatype", "shape", "default", "allow_nan")
    )
    if ("field" in table) is ("fields" in table):
        table.refuse("field", "expected either field, or fields for several elements")
    default = table.value("default") if "default" in table else NO_DEFAULT
    if "field" in table:
        path = parsed(table, "field", table.needed("field", "a path"))
        fields: tuple[Field, ...] = (Field(path, default),)
    else:
        fields = tuple([_field(table, i, default) for i in range(len(table.items("fields")))])
        if not fields:
            table.refuse("fields", "expected at least one path")
    encoding = table.word("encoding", ("", *ENCODINGS), "")
    if len(fields) > 1 and encoding not in ("", "number", "string"):
        table.refuse("encoding", "expected number or string, for there are several fields")
    datatype = None
    if "datatype" in table:
        datatype = Datatype(table.word("datatype", tuple(Datatype), ""))
    shape = None
    if "shape" in table:
        sizes = table.items("shape")
        if not all(type(size) is int and size >= -1 for size in sizes):
            table.refuse("shape", "expected whole numbers, -1 for any size, without the batch's")
        shape = tuple([size for size in sizes if isinstance(size, int)])
    return InputMapping(name, fields, encoding, datatype, shape, table.flag("allow_nan"))


def _field(table: Table, index: int, default: object) -> Field:
    item = table.items("fields")[index]
    where = f"fields[{index}]"
    if isinstance(item, str):
        return Field(parsed(table, where, item), default)
    if not isinstance(item, dict):
        raise ConfigError(
            "expected a path, or a table of path and default",
            file=table.file,
            field=table.path(where),
            value=repr(item),
        )
    own = Table(item, ("path", "default"), file=table.file, field=table.path(where))
    path = parsed(own, "path", own.needed("path", "a path"))
    return Field(path, own.value("default") if "default" in own else default)


def _request(root: Table) -> RequestMapping:
    table = root.table("request", ("id", "version", "priority"))
    return RequestMapping(*(_path(table, key) for key in ("id", "version", "priority")))


def _sequence(root: Table) -> SequenceMapping:
    table = root.table("sequence", ("id", "type", "start", "end"))
    given = table.value("id")
    if given == "key":
        path = None
    elif isinstance(given, dict):
        own = table.table("id", ("field",))
        path = parsed(own, "field", own.needed("field", "a path"))
    else:
        table.refuse("id", 'expected "key", or { field = "…" }')
    id_type = table.word("type", ("", *ID_TYPES), "")
    start, end = _condition(table, "start", "first-sight"), _condition(table, "end", "idle")
    return SequenceMapping(path, id_type, start, end)


def _condition(table: Table, key: str, word: str) -> Condition | None:
    given = table.value(key)
    if given in (None, word):
        return None
    if not isinstance(given, dict):
        table.refuse(key, f'expected "{word}", or {{ field = "…", equals = … }}')
    own = table.table(key, ("field", "equals"))
    path = parsed(own, "field", own.needed("field", "a path"))
    values = own.value("equals")
    listed = values if isinstance(values, list) else [values]
    found = tuple([value for value in listed if isinstance(value, (str, int, float, bool))])
    if not found or len(found) < len(listed):
        own.refuse("equals", "expected a text, a number, true or false, or an array of these")
    return Condition(path, found)


def _results(
    root: Table, source: SourceMapping, read_file: Callable[[str], bytes]
) -> ResultsMapping:
    table = root.table("results", ("topic", "pass", "fields", "cloudevent", *_FORMAT_KEYS))
    default = source.format.word if source.format.word in RESULT_FORMATS else "json"
    topic = table.text("topic")
    if topic == source.topic:
        table.refuse("topic", "expected another topic than the source: results would be requests")
    passed = tuple([_passed(table, i) for i in range(len(table.items("pass")))])
    fields = table.table("fields", None)
    results = ResultsMapping(
        topic,
        _format(table, RESULT_FORMATS, default, read_file),
        passed,
        tuple([_result(fields, name) for name in fields.keys()]),  # noqa: SIM118  # a table, no dict
        _event(table),
    )
    if results.event is not None and results.format.word == "v2":
        table.refuse("cloudevent", "expected none with format 'v2', whose answers are no events")
    _check_names(table, results)
    return results


def _event(results: Table) -> EventMapping | None:
    if "cloudevent" not in results:
        return None
    table = results.table("cloudevent", ("mode", "type", "source"))
    event = EventMapping(
        mode=table.word("mode", EVENT_MODES, "binary"),
        type=table.needed("type", "what happened, such as com.example.payment.scored"),
        source=table.needed("source", "where events come from, such as /fraud"),
    )
    for key in ("type", "source"):
        try:
            CloudEvent(**{"id": "i", "source": "s", "type": "t", key: getattr(event, key)})
        except InvalidRequest as exc:
            table.refuse(key, exc.detail)
    return event


def _check_names(table: Table, results: ResultsMapping) -> None:
    """Refuse two fields of one name, and one of the name that errors have."""
    seen = {ERROR_FIELD: "what went wrong"}
    for name, key, kind in (
        *((field.name, "pass", "passed through") for field in results.passed),
        *((field.name, "fields", "made of an output") for field in results.fields),
    ):
        if name in seen:
            raise ConfigError(
                f"the result has a field of this name already, which is {seen[name]}",
                file=table.file,
                field=table.path(key),
                value=name,
            )
        seen[name] = kind


def _passed(table: Table, index: int) -> PassedField:
    item, where = table.items("pass")[index], f"pass[{index}]"
    if isinstance(item, str):
        path = parsed(table, where, item)
        return PassedField(path.name, path)
    if not isinstance(item, dict):
        raise ConfigError(
            "expected a path, or a table of path and name",
            file=table.file,
            field=table.path(where),
            value=repr(item),
        )
    own = Table(item, ("path", "name"), file=table.file, field=table.path(where))
    path = parsed(own, "path", own.needed("path", "a path"))
    return PassedField(own.text("name", path.name), path)


def _result(fields: Table, name: str) -> ResultMapping:
    if isinstance(fields.value(name), str):
        return ResultMapping(name, fields.needed(name, "the name of an output"))
    table = fields.table(name, ("output", "top_k", "label", "labels"))
    labels = table.items("labels")
    if not all(isinstance(label, str) for label in labels):
        table.refuse("labels", "expected texts, by place")
    is_label, top_k = table.flag("label"), table.count("top_k", 0, least=0)
    if is_label and top_k:
        table.refuse("label", "expected either label or top_k")
    if labels and not (is_label or top_k):
        table.refuse("labels", "expected label = true or top_k beside it")
    return ResultMapping(
        name,
        table.needed("output", "the name of an output"),
        top_k,
        is_label,
        tuple(map(str, labels)),
    )


def _check_v2(mapping: ModelMapping, root: Table) -> None:
    """Refuse what says how to read records that say everything themselves."""
    if mapping.source.events:
        raise ConfigError(
            "expected none with format 'v2'", file=mapping.file, field="source.cloudevents"
        )
    for key in ("inputs", "request", "sequence"):
        if key in root:
            root.refuse(key, "expected none with format 'v2': such records say it themselves")
    if mapping.results.format.word != "v2":
        raise ConfigError(
            "expected v2, for the source's records are V2 requests",
            file=mapping.file,
            field="results.format",
            value=mapping.results.format.word,
        )
