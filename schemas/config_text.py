"""Model configurations as text: Triton's ``config.pbtxt`` and JSON in, JSON out.

protobuf itself parses, with the message definitions that ``tritonclient`` ships, so every field of Triton's
schema is accepted (SEMANTICS §1.2-1.9). Its errors are translated here, once, into sentences that name file, line,
field, value and what was expected, with a suggestion where a name is nearly right. What the fields mean is the
business of `headrace.schemas.config_view`, `headrace.schemas.config_check` and `headrace.schemas.config_rules`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from google.protobuf import json_format, text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from headrace.schemas.config_view import config_from_message
from headrace.schemas.errors import ConfigError
from headrace.schemas.model_config import ModelConfig
from headrace.schemas.nearest import nearest_name
from tritonclient.grpc.model_config_pb2 import ModelConfig as ModelConfigMessage

__all__ = ["Json", "config_from_json", "config_from_message", "config_to_json", "parse_config"]

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

_TOKEN = re.compile(r"""\#[^\n]*|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|[A-Za-z0-9_.+-]+|\S""")
_NEXT = re.compile(r"\s*(.?)")
_ESCAPE = re.compile(r"\\(?:[0-7]{1,3}|.)")
_LEGAL_ESCAPE = re.compile(r"""\\(?:[0-3][0-7]{2}|[0-7]{1,2}|[abfnrtvxuU'"\\])""")
_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_WIDE = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)


def parse_config(text: str, file: str) -> ModelConfigMessage:
    """Parse a ``config.pbtxt``.

    Args:
        text: Protobuf text format.
        file: Path for the error's sentence.

    Returns:
        The message, exactly as written.

    Raises:
        ConfigError: Names ``file:line``, the dotted field, the value and what was expected.
    """
    _check_escapes(text, file)
    message = ModelConfigMessage()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as exc:
        raise _text_error(text, file, exc) from exc
    return message


def config_to_json(config: ModelConfig) -> dict[str, Json]:
    """Return the whole normalized configuration as the config endpoint shows it (SEMANTICS PB-62).

    Original snake_case names, primitive defaults printed, enums as names, 64-bit integers as numbers, map keys
    as strings.
    """
    shown: dict[str, Json] = json_format.MessageToDict(
        config.message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
    _unquote(shown, config.message.DESCRIPTOR)
    return shown


def config_from_json(source: Mapping[str, object] | str, *, file: str = "") -> ModelConfig:
    """Build a configuration from its JSON form, as `config_to_json` writes it or a user overrides it.

    Args:
        source: JSON text, or the parsed object.
        file: Where it came from, for the error's sentence.

    Raises:
        ConfigError: Not JSON, an unknown field, or a value that does not fit.
    """
    if isinstance(source, str):
        try:
            source = json.loads(source)
        except (ValueError, RecursionError) as exc:
            raise ConfigError(f"expected JSON: {exc}", file=file) from exc
    if not isinstance(source, Mapping):
        raise ConfigError(
            "expected a JSON object", file=file, field="ModelConfig", value=_short(source)
        )
    message = ModelConfigMessage()
    try:
        json_format.ParseDict(dict(source), message)
    except json_format.ParseError as exc:
        raise _json_error(file, exc) from exc
    return config_from_message(message, file=file)


def _check_escapes(text: str, file: str) -> None:
    """Refuse unknown escapes in strings, as Triton's parser does; Python's lets them pass with a warning."""
    for found in _TOKEN.finditer(text):
        token = found.group()
        if token[0] not in "\"'":
            continue
        for escape in _ESCAPE.findall(token):
            if not _LEGAL_ESCAPE.fullmatch(escape):
                line = text.count("\n", 0, found.start()) + 1
                column = found.start() - text.rfind("\n", 0, found.start())
                place = _place(text, line, column)
                raise ConfigError(
                    f"unknown escape {escape} in a string, expected \\\\ for a backslash",
                    file=f"{file}:{line}",
                    field=".".join([*place.parents, place.field]),
                    value=_short(token),
                )


class _Place(NamedTuple):
    """Where a parse error happened: enclosing fields, the field being read, the token there and before it."""

    parents: list[str]
    field: str
    token: str
    before: str


def _place(text: str, line: int, column: int) -> _Place:
    """Find the field path at a position by walking tokens; protobuf only tells line and column."""
    lines = text.split("\n")
    offset = sum(len(before) + 1 for before in lines[: line - 1]) + column - 1
    parents: list[str] = []
    current = before = ""
    for found in _TOKEN.finditer(text):
        token = found.group()
        if token.startswith("#"):
            continue
        if found.start() >= offset:
            return _Place(parents, current, token, before)
        if token in ("{", "<"):
            parents.append(current)
        elif token in ("}", ">"):
            current = parents.pop() if parents else ""
        elif token[0].isalpha() or token[0] == "_":
            after = _NEXT.match(text, found.end())
            if after is not None and after[1] in tuple(":{<["):
                current = token
        before = token
    return _Place(parents, current, "", before)


def _text_error(text: str, file: str, exc: text_format.ParseError) -> ConfigError:
    line, column = exc.GetLine() or 1, exc.GetColumn() or 1
    place = _place(text, line, column)
    where = f"{file}:{line}"
    field = ".".join([*place.parents, place.field])
    said = re.sub(r"^\d+:\d+ : ", "", str(exc))
    if 'Expected ":"' in said:
        field = ".".join([*place.parents, place.before])
    unknown = re.search(r'Message type "([\w.]+)" has no field named "(.*)"', said)
    if unknown:
        name = ".".join([*place.parents, unknown[2]])
        return ConfigError(
            f"unknown field{_among(unknown[2], _fields_of(unknown[1]))}", file=where, field=name
        )
    if "should not have multiple" in said:
        return ConfigError(
            "expected at most once", file=where, field=field, value=_short(place.token)
        )
    if together := re.search(r'along with field "(\w+)"', said):
        field = ".".join([*place.parents, re.findall(r'Field "(\w+)"', said)[0]])
        return ConfigError(f"expected only one of it and {together[1]}", file=where, field=field)
    descriptor = _descriptor([*place.parents, place.field])
    is_value = re.search(
        r"Couldn't parse|has no value named|out of range|Expected string|true", said
    )
    if descriptor is not None and is_value and place.token:
        return ConfigError(
            _expected(descriptor, place.token), file=where, field=field, value=_short(place.token)
        )
    # What remains is syntax. protobuf repeats the whole source line in front, which the place makes needless.
    syntax = re.sub(r"^'.*?': (?=[A-Z])", "", said, flags=re.DOTALL).rstrip(".")
    return ConfigError(
        f"{syntax[:1].lower()}{syntax[1:]}",
        file=where,
        field=field,
        value=_short(place.token or "end of file"),
    )


def _json_error(file: str, exc: json_format.ParseError) -> ConfigError:
    said = str(exc)
    path = re.findall(r"Failed to parse (\w+) field: ", said)
    cause = re.sub(r"Failed to parse \w+ field: ", "", said).rstrip(".")
    unknown = re.search(r'Message type "([\w.]+)" has no field named "(.*?)"', cause)
    if unknown:
        field = ".".join([*path, unknown[2]])
        return ConfigError(
            f"unknown field{_among(unknown[2], _fields_of(unknown[1]))}", file=file, field=field
        )
    descriptor = _descriptor(path)
    scalar = descriptor is not None and descriptor.message_type is None
    detail = f"{_expected(descriptor, '')} ({cause})" if scalar and descriptor else cause
    return ConfigError(detail, file=file, field=".".join(path))


def _fields_of(message_name: str) -> list[str]:
    found: Descriptor = ModelConfigMessage.DESCRIPTOR.file.pool.FindMessageTypeByName(message_name)
    return [field.name for field in found.fields]


def _descriptor(path: Iterable[str]) -> FieldDescriptor | None:
    """Return the field at a dotted path of the schema."""
    message: Descriptor | None = ModelConfigMessage.DESCRIPTOR
    field: FieldDescriptor | None = None
    for name in path:
        field = None if message is None else message.fields_by_name.get(name)
        if field is None:
            return None
        message = field.message_type
    return field


def _expected(field: FieldDescriptor, value: str) -> str:
    """Say which values a field takes."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        assert field.enum_type is not None
        return f"unknown value{_among(value, [v.name for v in field.enum_type.values])}"
    if field.cpp_type in _RANGES:
        low, high = _RANGES[field.cpp_type]
        return f"expected an integer from {low} to {high}"
    return {
        FieldDescriptor.CPPTYPE_BOOL: "expected true or false",
        FieldDescriptor.CPPTYPE_STRING: "expected a quoted UTF-8 string",
        FieldDescriptor.CPPTYPE_MESSAGE: "expected fields in braces",
    }.get(field.cpp_type, "expected a number")


def _among(name: str, known: list[str]) -> str:
    """Suggest the nearest of the known names, or list them."""
    if near := nearest_name(name, known):
        return f", did you mean {near}?"
    return f", expected one of {', '.join(known)}"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _unquote(shown: dict[str, Json], descriptor: Descriptor) -> None:
    """Turn the 64-bit integers that protobuf quotes into numbers, in place."""
    for name, value in shown.items():
        field = descriptor.fields_by_name[name]
        inner = field.message_type
        if field.cpp_type in _WIDE:
            shown[name] = (
                [int(str(item)) for item in value] if isinstance(value, list) else int(str(value))
            )
        elif inner is not None and isinstance(value, dict):
            if inner.GetOptions().map_entry:
                entry = inner.fields_by_name["value"].message_type
                for item in value.values():
                    if entry is not None and isinstance(item, dict):
                        _unquote(item, entry)
            else:
                _unquote(value, inner)
        elif inner is not None and isinstance(value, list):
            for item in value:
                if isinstance(item, dict):
                    _unquote(item, inner)
