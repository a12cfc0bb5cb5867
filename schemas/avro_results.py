"""The Avro schema of a mapping's results: one nullable field for each, typed by the model's outputs.

Fields that are new have a default and none is ever required, so a schema that only gains fields is compatible with the
former ones in both directions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.schemas.errors import ConfigError
from headrace.schemas.mapping_format import ResultField
from headrace.schemas.tensor import Datatype

NAMESPACE = "headrace.results"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TYPES: Mapping[Datatype, str] = {
    Datatype.BOOL: "boolean",
    **dict.fromkeys(
        (Datatype.INT8, Datatype.INT16, Datatype.INT32, Datatype.UINT8, Datatype.UINT16), "int"
    ),
    # Avro has no unsigned numbers: one that is too large for a long is refused when it is written.
    **dict.fromkeys((Datatype.INT64, Datatype.UINT32, Datatype.UINT64), "long"),
    **dict.fromkeys((Datatype.FP16, Datatype.BF16, Datatype.FP32), "float"),
    Datatype.FP64: "double",
    Datatype.BYTES: "bytes",
}
_SINGLE = ["boolean", "long", "double", "string", "bytes"]


def result_schema(
    name: str, fields: Sequence[ResultField], passed: Mapping[str, object] | None = None
) -> str:
    """Return the schema of a result.

    Args:
        name: Of the model; the record's name is made of it.
        fields: In their order.
        passed: Avro types of fields that are passed through, by name, where they are known (see `field_type`); of
            others any single value, and a list or a map of such, can be written.

    Raises:
        ConfigError: A field's name is none that Avro takes.
    """
    made = []
    for item in fields:
        if not _NAME.fullmatch(item.name):
            raise ConfigError(
                "is no name that Avro takes, expected letters, digits and _; name the field otherwise in the mapping",
                field="field",
                value=item.name,
            )
        known = None if passed is None else passed.get(item.name)
        kind: Any = _type(item) if known is None else known
        if item.is_optional:
            branches = kind if isinstance(kind, list) else [kind]
            kind = ["null", *(branch for branch in branches if branch != "null")]
        default = {"default": None} if item.is_optional else {}
        made.append({"name": item.name, "type": kind, **default})
    words = re.findall(r"[A-Za-z0-9]+", name)
    record = "".join(word[0].upper() + word[1:] for word in words) + "Result"
    if record[0].isdigit():
        record = f"Model{record}"
    return json.dumps(
        {"type": "record", "name": record, "namespace": NAMESPACE, "fields": made}, indent=2
    )


def _type(item: ResultField) -> Any:
    if item.is_classes:
        parts = [
            {"name": "label", "type": ["null", "string"], "default": None},
            {"name": "index", "type": "long"},
            {"name": "score", "type": "double"},
        ]
        # Named by its field: two of them in one schema are two types.
        record = {"type": "record", "name": f"{item.name}_class", "fields": parts}
        return {"type": "array", "items": record}
    if item.datatype is None:
        return [
            *_SINGLE,
            {"type": "array", "items": ["null", *_SINGLE]},
            {"type": "map", "values": ["null", *_SINGLE]},
        ]
    kind: Any = "string" if item.is_text else _TYPES[item.datatype]
    for _ in item.dims:
        kind = {"type": "array", "items": kind}
    return kind
