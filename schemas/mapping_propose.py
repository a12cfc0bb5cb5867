"""A first mapping, made of one sample record and a model: what fits, and by its name. Pure.

It is meant to be read and mended: what was chosen among several, and what was not found, stands in comments.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from headrace.schemas.errors import ConfigError, UndecodableRecord
from headrace.schemas.mapping import Field, InputMapping, ModelMapping
from headrace.schemas.mapping_check import fit_input
from headrace.schemas.mapping_inputs import compile_input
from headrace.schemas.mapping_path import FieldPath, Fields, parse_path, shown
from headrace.schemas.signature import Signature, TensorSpec
from headrace.schemas.tensor import Datatype

MAX_FIELDS = 1000
"""Fields of a sample that are looked at."""

MAX_SHOWN = 8
"""Sample values that a comment repeats."""

NOT_FOUND = "?"
"""Path of a field that is to be filled in."""

_PLAIN = re.compile(r"""[^.\[\]"\s]+""")
_ID = re.compile(r"(^|_)(id|uuid|guid|key)$|[a-z]I[dD]$|^ID$")


class Leaf(NamedTuple):
    """A field of the sample that is no object."""

    path: FieldPath
    value: object


def leaves(record: Fields, before: str = "") -> Iterator[Leaf]:
    """Yield the fields of a record that are no objects, in order; lists are leaves."""
    for name, value in record.items():
        if not name:
            continue
        step = name if _PLAIN.fullmatch(name) else f"[{json.dumps(name, ensure_ascii=False)}]"
        text = f"{before}.{step}" if before and not step.startswith("[") else before + step
        if isinstance(value, Mapping) and value:
            yield from leaves(value, text)
        else:
            yield Leaf(parse_path(text), value)


def propose(
    record: Fields, signature: Signature, base: ModelMapping, *, key: bytes | None, head: str = ""
) -> str:
    """Return the text of a mapping file.

    Args:
        record: The sample.
        signature: Of the model.
        base: Topic and format.
        key: The sample's key, None where it has none.
        head: The table ``[source]``, as somebody has written it; without it, it is made of the base.
    """
    found = list(leaves(record))[:MAX_FIELDS]
    source = base.source
    lines = [head.rstrip()]
    if not head:
        lines = [
            "[source]",
            f"topic = {_quoted(source.topic)}",
            f"format = {_quoted(source.format.word)}",
            'offset_reset = "latest"  # or earliest: every record that the topic still has',
        ]
    free = list(found)
    for spec in signature.inputs:
        lines += ["", *_input(spec, record, free, signature, base)]
    if signature.is_sequence:
        lines += ["", *_sequence(found, key)]
    ids = [leaf for leaf in found if _is_id(leaf)]
    lines += ["", "[results]", f"topic = {_quoted(source.topic + '.results')}", 'format = "json"']
    if ids:
        lines.append(f"pass = [{', '.join(_quoted(leaf.path.text) for leaf in ids)}]")
    taken = {leaf.path.name for leaf in ids}
    lines += ["", "[results.fields]"]
    for output in signature.outputs:
        name = f"{output.name}_output" if output.name in taken | {"error"} else output.name
        shape = f"  # {output.datatype} {list(output.dims)}"
        lines.append(f"{_key(name)} = {_quoted(output.name)}{shape}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _is_id(leaf: Leaf) -> bool:
    return isinstance(leaf.value, (str, int)) and _ID.search(leaf.path.name) is not None


def _likeness(leaf: Leaf, name: str) -> float:
    return difflib.SequenceMatcher(None, leaf.path.name.lower(), name.lower()).ratio()


def _input(
    spec: TensorSpec, record: Fields, free: list[Leaf], signature: Signature, base: ModelMapping
) -> list[str]:
    """Return the table of one input; what it takes is not free for the next one."""
    head = [f"[inputs.{_key(spec.name)}]", f"# {spec.datatype} {list(spec.dims)}"]

    def fits(*chosen: Leaf) -> bool:
        fields = tuple([Field(leaf.path) for leaf in chosen])
        try:
            plan = fit_input(base, signature, InputMapping(spec.name, fields))
            compile_input(plan, base.file)(record)
        except (ConfigError, UndecodableRecord):
            return False
        return True

    alone = sorted(
        [leaf for leaf in free if fits(leaf)],
        key=lambda leaf: (_is_id(leaf), -_likeness(leaf, spec.name)),
    )
    if alone:
        best, *others = alone
        free.remove(best)
        if others:
            head.append(f"# also fit: {', '.join(leaf.path.text for leaf in others[:MAX_SHOWN])}")
        return [*head, f"field = {_quoted(best.path.text)}  # sample: {shown(best.value)}"]
    several = _several(spec, free)
    if several and fits(*several):
        for leaf in several:
            free.remove(leaf)
        return [*head, "fields = [", *[_line(leaf) for leaf in several], "]"]
    optional = ["# The model does not need it."] if spec.optional else []
    count = math.prod([size for size in spec.dims if size > 0])
    kind = "texts" if spec.datatype is Datatype.BYTES else "numbers"
    said = f"# Nothing in the sample fits: {len(_scalars(spec, free))} {kind} are left, expected {count}."
    return [*head, *optional, said, f"field = {_quoted(NOT_FOUND)}"]


def _line(leaf: Leaf) -> str:
    return f"    {_quoted(leaf.path.text)},  # sample: {shown(leaf.value)}"


def _scalars(spec: TensorSpec, free: Sequence[Leaf]) -> list[Leaf]:
    kinds = (str,) if spec.datatype is Datatype.BYTES else (int, float)
    return [leaf for leaf in free if isinstance(leaf.value, kinds)]


def _several(spec: TensorSpec, free: Sequence[Leaf]) -> list[Leaf]:
    """Return the single values that may be an input's elements together: all, or the first that are no ids."""
    chosen = _scalars(spec, free)
    count = math.prod(spec.dims) if spec.fixed else 0
    if not count or len(chosen) == count:
        return chosen
    return [leaf for leaf in chosen if not _is_id(leaf)][:count]


def _sequence(found: Sequence[Leaf], key: bytes | None) -> list[str]:
    ids = [leaf for leaf in found if _is_id(leaf)]
    if key is not None or not ids:
        said = 'id = "key"'
        if key is not None:
            said += f"  # sample: {shown(key.decode(errors='replace'))}"
    else:
        said = f"id = {{ field = {_quoted(ids[0].path.text)} }}  # sample: {shown(ids[0].value)}"
    return [
        "[sequence]",
        said,
        'start = "first-sight"  # or { field = "…", equals = … }',
        'end = "idle"  # or { field = "…", equals = … }',
    ]
