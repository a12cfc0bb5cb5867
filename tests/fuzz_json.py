"""V2 requests as trees that go wrong: JSON with what JSON can carry and a writer would not write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from hypothesis import strategies as st


class Raw(NamedTuple):
    """Text that stands in the document as it is."""

    text: str


class Pairs(NamedTuple):
    """An object whose keys may repeat."""

    items: tuple[tuple[str, Any], ...]


BASES: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "echo",
        {
            "id": "a",
            "parameters": {"priority": 1, "timeout": 1_000_000, "own": "x"},
            "inputs": [
                {"name": "INPUT0", "shape": [2, 2], "datatype": "FP32", "data": [[1, 2], [3, 4.5]]}
            ],
            "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": False}}],
        },
    ),
    (
        "pair",
        {
            "inputs": [
                {"name": "A", "shape": [1, 2], "datatype": "FP32", "data": [0.5, -1]},
                {"name": "B", "shape": [1, 2], "datatype": "INT32", "data": [7, -7]},
            ],
            "parameters": {"sequence_id": 3, "sequence_start": True, "sequence_end": False},
        },
    ),
    (
        "words",
        {
            "inputs": [
                {"name": "W", "shape": [1, 3], "datatype": "BYTES", "data": ["", "a", "\u00e9"]}
            ],
            "parameters": {"binary_data_output": True},
        },
    ),
)

odd_texts = st.one_of(
    st.text(max_size=12),
    st.text(st.characters(max_codepoint=0x1F), min_size=1, max_size=6),
    st.sampled_from(
        (
            "a\r\nX-Injected: yes",
            "\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
            "\x00",
            "\u2028",
            "\U0010ffff",
            "../..",
            "%00",
            "x" * 70_000,
            "INPUT0",
            "triton_x",
        )
    ),
)
raw_texts = st.sampled_from(
    (
        *('"\\ud800"', '"\\udfff\\ud800"', '"\\u0000"', "NaN", "Infinity", "-Infinity", "1e999"),
        *("-0", "1E+2", "0x1", "01", "+1", ".5", "1.", "'a'", '"', '"\\x"', "\t", "nul", "True"),
        *("9" * 5_000, "-" + "9" * 400, "[" * 150 + "]" * 150, "{}{}", "//", "", ",", "\x00"),
        *('"\ufeff"', "18446744073709551616", "9223372036854775808", "1e400"),
    )
).map(Raw)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-2, 9),
    st.floats(width=32),
    odd_texts,
    raw_texts,
)
junk = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=5), inner, max_size=3),
    ),
    max_leaves=6,
)


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, bytes]:
    """A model's name and the body of a request to it with one to three things wrong, or nothing."""
    model, base = draw(st.sampled_from(BASES))
    tree: Any = json.loads(json.dumps(base))
    for _ in range(draw(st.integers(0, 3))):
        places = list(_places(tree))
        way = draw(st.sampled_from(places))
        tree = _changed(tree, way, draw)
    return model, dump(tree)


def dump(tree: Any) -> bytes:
    """Write a tree; half pairs of surrogates and what else is no UTF-8 go as they are."""
    return _text(tree).encode("utf-8", "surrogatepass")


def _text(tree: Any) -> str:
    if isinstance(tree, Raw):
        return tree.text
    if isinstance(tree, Pairs):
        return "{" + ",".join(f"{json.dumps(key)}:{_text(item)}" for key, item in tree.items) + "}"
    if isinstance(tree, dict):
        return _text(Pairs(tuple(tree.items())))
    if isinstance(tree, list):
        return "[" + ",".join(map(_text, tree)) + "]"
    return json.dumps(tree)


def _places(tree: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to each node."""
    yield way
    if isinstance(tree, dict):
        for key, item in tree.items():
            yield from _places(item, (*way, key))
    elif isinstance(tree, list):
        for number, item in enumerate(tree):
            yield from _places(item, (*way, number))


def _changed(tree: Any, way: tuple[Any, ...], draw: st.DrawFn) -> Any:
    """Return the tree with the node at the end of the way gone wrong."""
    if way:
        key, *rest = way
        branch = dict(tree) if isinstance(tree, dict) else list(tree)
        branch[key] = _changed(branch[key], tuple(rest), draw)
        return branch
    how = draw(st.sampled_from(("junk", "twice", "drop", "rename", "wrap")))
    if how == "wrap":
        return [tree]
    if how == "twice" and isinstance(tree, list):
        return tree * draw(st.sampled_from((0, 2, 50)))
    if how == "junk" or not (isinstance(tree, dict) and tree):
        return draw(junk)
    key = draw(st.sampled_from(sorted(tree)))
    if how == "twice":
        return Pairs((*tree.items(), (key, draw(junk))))
    renamed = {draw(odd_texts): tree[key]} if how == "rename" else {}
    return {**{other: item for other, item in tree.items() if other != key}, **renamed}
