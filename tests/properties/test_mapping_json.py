"""JSON records are read and written by a quick library as Python's own parser would: nothing is rounded on the way."""

import json

import pytest
from headrace.schemas.errors import UndecodableRecord
from headrace.schemas.mapping_json import JsonFormat
from hypothesis import example, given
from hypothesis import strategies as st

FORMAT = JsonFormat()
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**66), 2**66),
    st.floats(),
    st.text(),
)
RECORDS = st.dictionaries(
    st.text(),
    st.recursive(
        LEAVES,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)
        ),
        max_leaves=8,
    ),
    max_size=6,
)


def same(one, other):
    """Whether two values are alike in type and value, not-a-number too."""
    return repr(one) == repr(other)


@given(RECORDS, st.booleans(), st.sampled_from([None, 1]))
@example({"id": 2**64, "low": -(2**63) - 1}, False, None)
@example({"id": 2**64 - 1, "low": -(2**63)}, True, None)
def test_records_are_read_as_pythons_parser_reads_them(record, is_ascii, indent):
    text = json.dumps(record, ensure_ascii=is_ascii, indent=indent)
    assert same(FORMAT.read(text.encode()), json.loads(text))


@given(RECORDS)
def test_results_are_read_as_they_were_written_but_for_numbers_that_json_lacks(record):
    expected = json.loads(json.dumps(record), parse_constant=lambda _: None)
    assert same(json.loads(FORMAT.write(record)), expected)


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b"1", b'{"a":"\\ud800"}', b"\xff{}", b"\xef\xbb\xbf{}", b"{} {}", b"[" * 5000],
)
def test_what_is_no_record_is_said(value):
    with pytest.raises(UndecodableRecord, match="the value is "):
        FORMAT.read(value)
