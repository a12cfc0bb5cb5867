"""Mapping of generated records equals a naive reference that interprets the mapping for each record."""

import base64
import json
import math

import numpy as np
from headrace.schemas.batch import Batch, Responses
from headrace.schemas.tensor import Datatype, join_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from mapping_kit import SOURCE, decoder, encoder
from wire_kit import TP0, Rec, signature, tensor_config

quick = settings(deadline=None, max_examples=150)

NUMBERS = (Datatype.FP32, Datatype.FP64, Datatype.INT8, Datatype.UINT16, Datatype.INT64)
ODD = st.one_of(
    st.none(),
    st.text(max_size=3),
    st.booleans(),
    st.integers(-300, 70_000),
    st.floats(width=32),
    st.just(1e300),
    st.lists(st.integers(0, 5), max_size=3),
    st.just({}),
)


class Bad(Exception):
    """The reference refuses the record."""


def numbers(datatype):
    if datatype.numpy.kind == "f":
        return st.one_of(
            st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(-9, 9)
        )
    limits = np.iinfo(datatype.numpy)
    return st.integers(int(limits.min), int(limits.max))


def elements(datatype):
    return st.text(max_size=5) if datatype is Datatype.BYTES else numbers(datatype)


def nested(values, dims):
    if not dims:
        return values
    size = {} if dims[0] < 0 else {"min_size": dims[0]}
    return st.lists(nested(values, dims[1:]), max_size=3 if dims[0] < 0 else dims[0], **size)


@st.composite
def inputs(draw, name):
    """Return an input: its tensor, its table in TOML, the fields with their paths and defaults, and good values."""
    datatype = draw(st.sampled_from([*NUMBERS, Datatype.BYTES, Datatype.BOOL]))
    encoding = draw(st.sampled_from(["each", "list", "nested", "base64"]))
    values = st.booleans() if datatype is Datatype.BOOL else elements(datatype)
    if encoding == "each":
        count = draw(st.integers(1, 4))
        dims = draw(st.sampled_from([(count,), (-1,), (1, count)]))
        good = [values] * count
    elif encoding == "nested":
        dims, count = draw(st.sampled_from([(2, 1), (-1, 2), (1, 2, 1)])), 1
        good = [nested(values, dims)]
    elif encoding == "list" or datatype in (Datatype.BYTES, Datatype.BOOL):
        encoding, dims, count = "list", draw(st.sampled_from([(3,), (-1,)])), 1
        good = [nested(values, dims)]
    else:
        dims, count = (2,), 1
        raw = st.lists(values, min_size=2, max_size=2).map(
            lambda two: base64.b64encode(np.array(two, datatype.numpy).tobytes()).decode()
        )
        good = [raw]
    fields = []
    for i in range(count):
        path = draw(st.sampled_from([(f"{name}{i}",), (name, f"f{i}"), (f"{name}l{i}", 1, "v")]))
        default = None
        if encoding == "each" and draw(st.booleans()):
            default = draw(
                st.sampled_from(["d", ""]) if datatype is Datatype.BYTES else st.just(1)
            )
            default = bool(default) if datatype is Datatype.BOOL else default
        fields.append((path, default, good[i]))
    word = {"each": "string" if datatype is Datatype.BYTES else "number"}.get(encoding, encoding)
    return tensor_config(name, datatype, dims), word, fields


def text_of(path):
    return path[0] + "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in path[1:])


def table(tensor, word, fields):
    items = []
    for path, default, _ in fields:
        rest = "" if default is None else f", default = {json.dumps(default)}"
        items.append(f'{{path = "{text_of(path)}"{rest}}}')
    one = f'field = "{text_of(fields[0][0])}"'
    said = f"fields = [{', '.join(items)}]" if word in ("number", "string") else one
    return f'[inputs.{tensor.name}]\nencoding = "{word}"\n{said}\n'


def put(record, path, value):
    for step, below in zip(path, (*path[1:], None), strict=True):
        if isinstance(record, list):
            record.extend([None] * (step + 1 - len(record)))
        if below is None:
            record[step] = value
        else:
            if isinstance(record, dict):
                record.setdefault(step, [] if isinstance(below, int) else {})
            elif record[step] is None:
                record[step] = {}
            record = record[step]


@st.composite
def worlds(draw):
    made = [draw(inputs(name)) for name in draw(st.sampled_from(["a", "ab"]))]
    record = {"other": 1}
    for _, _, fields in made:
        for path, _, good in fields:
            fate = draw(st.sampled_from(["good"] * 12 + ["odd", "missing"]))
            if fate != "missing":
                put(record, path, draw(good if fate == "good" else ODD))
    return made, record


def reference(made, record):
    """Interpret the mapping: each input's data and shape."""
    found = []
    for tensor, word, fields in made:
        values = [look(record, path, default) for path, default, _ in fields]
        if word == "base64":
            found.append(from_base64(tensor, values[0]))
            continue
        nesting = values if word in ("number", "string") else values[0]
        if word == "nested":
            seen = sizes(nesting, len(tensor.dims))
            # Of lists in an empty one nobody can see how long they are.
            shape = tuple(
                max(dim, 0) if size is None else size
                for dim, size in zip(tensor.dims, seen, strict=True)
            )
            flat = list(leaves(nesting, len(tensor.dims)))
        else:
            if not isinstance(nesting, list):
                raise Bad
            flat = nesting
            known = math.prod(size for size in tensor.dims if size > 0)
            shape = tuple(len(flat) // known if size < 0 else size for size in tensor.dims)
        if len(shape) != len(tensor.dims) or any(
            dim not in (-1, size) for dim, size in zip(tensor.dims, shape, strict=True)
        ):
            raise Bad
        if math.prod(shape) != len(flat):
            raise Bad
        found.append((packed(tensor.datatype, flat), shape))
    return found


def look(record, path, default):
    value = record
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and step < len(value) else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    if value is None:
        value = default
    if value is None:
        raise Bad
    return value


def from_base64(tensor, value):
    if not isinstance(value, str):
        raise Bad
    try:
        raw = base64.b64decode(value, validate=True)
    except ValueError:
        raise Bad from None
    if len(raw) != math.prod(tensor.dims) * tensor.datatype.size:
        raise Bad
    return raw, tensor.dims


def sizes(value, depth):
    if not depth:
        return ()
    if not isinstance(value, list):
        raise Bad
    below = {sizes(item, depth - 1) for item in value}
    if len(below) > 1:
        raise Bad
    return (len(value), *(below.pop() if below else (None,) * (depth - 1)))


def leaves(value, depth):
    if not depth:
        yield value
        return
    for item in value:
        yield from leaves(item, depth - 1)


def packed(datatype, flat):
    if datatype is Datatype.BYTES:
        if not all(isinstance(item, str) for item in flat):
            raise Bad
        return join_bytes([item.encode() for item in flat])
    for item in flat:
        if datatype is Datatype.BOOL:
            fits = isinstance(item, bool)
        elif datatype.numpy.kind == "f":
            fits = isinstance(item, (int, float)) and math.isfinite(item)
            fits = fits and abs(item) <= float(np.finfo(datatype.numpy).max)
        else:
            limits = np.iinfo(datatype.numpy)
            fits = isinstance(item, int) and limits.min <= item <= limits.max
        if not fits:
            raise Bad
    return np.array(flat, datatype.numpy).tobytes()


@quick
@given(worlds())
def test_inputs_are_those_of_the_reference(world):
    made, record = world
    model = signature([tensor for tensor, _, _ in made])
    text = SOURCE + "".join(table(*one) for one in made)
    decoded = decoder(text, model).decode(TP0, 1, [Rec(json.dumps(record).encode())])
    try:
        expected = reference(made, record)
    except Bad:
        (failure,) = decoded.failures
        assert "for input '" in failure.error.detail
        return
    assert not decoded.failures, decoded.failures[0].error
    (entry,) = decoded.by_version[1]
    for data, found, (wanted, shape) in zip(entry.data, entry.shapes, expected, strict=True):
        assert bytes(data) == wanted
        assert found == shape


SCORES = st.one_of(st.integers(-3, 3), st.floats(width=32))


@quick
@given(
    st.lists(st.lists(SCORES, min_size=4, max_size=4), min_size=1, max_size=5),
    st.integers(1, 5),
    st.lists(st.sampled_from(["", "cat", "dog"]), max_size=5),
)
def test_results_are_those_of_the_reference(rows, top_k, labels):
    model = signature(outputs=[tensor_config("y", dims=(4,))])
    text = SOURCE + (
        '[inputs.x]\nfield = "v"\n[results]\npass = ["i"]\n[results.fields]\nraw = "y"\n'
        f'top = {{output = "y", top_k = {top_k}, labels = {json.dumps(labels)}}}\n'
        f'best = {{output = "y", label = true, labels = {json.dumps(labels)}}}\n'
    )
    records = [Rec(json.dumps({"v": [1, 2, 3, 4], "i": i}).encode()) for i in range(len(rows))]
    entries = decoder(text, model).decode(TP0, 1, records).by_version[1]
    array = np.array(rows, np.float32)
    answers = encoder(text, model).encode(Batch(model, entries), Responses({"y": array}))
    for i, ((_, value, _), row) in enumerate(zip(answers, array.tolist(), strict=True)):
        raw = [score if math.isfinite(score) else None for score in row]
        key = [-math.inf if math.isnan(score) else score for score in row]
        places = sorted(range(4), key=lambda place, key=key: (-key[place], place))
        named = [(labels[p] or None) if p < len(labels) else None for p in places]
        assert json.loads(value) == {
            "i": i,
            "raw": raw,
            "top": [
                {"label": name, "index": place, "score": raw[place]}
                for name, place in list(zip(named, places, strict=True))[:top_k]
            ],
            "best": named[0] or str(places[0]),
        }
