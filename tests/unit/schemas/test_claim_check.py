"""The claim-check header: what it says, what is refused, and that no URL leads out of the store (FAULTS B95)."""

import hashlib
import json

import pytest
from headrace.schemas.claim_check import (
    MAX_HEADER_BYTES,
    MAX_NAME_CHARS,
    MAX_SIZE,
    Claim,
    ResolvedRecord,
    check_value,
    claim_for,
    claim_of,
    claimed,
    name_in,
    original,
    read_claim,
    write_claim,
)
from headrace.schemas.errors import Code, InvalidRequest, Reason
from hypothesis import given
from hypothesis import strategies as st
from service_parts import PlainRecord

BASE = "s3://bucket/claims"
DIGEST = hashlib.sha256(b"abc").hexdigest()
GOOD = {"url": f"{BASE}/a", "size": 3, "sha256": DIGEST}


def written(**more: object) -> bytes:
    return json.dumps(GOOD | more).encode()


def test_the_header_is_compact_json_and_comes_back():
    claim = claim_for(f"{BASE}/é", b"abc")
    raw = write_claim(claim)
    assert raw == f'{{"url":"{BASE}/é","size":3,"sha256":"{DIGEST}"}}'.encode()
    assert read_claim(raw) == claim


@given(st.text(min_size=1, max_size=500), st.integers(1, MAX_SIZE), st.binary(max_size=40))
def test_every_claim_comes_back(url, size, value):
    claim = Claim(url, size, hashlib.sha256(value).hexdigest())
    try:
        raw = write_claim(claim)
    except UnicodeEncodeError:
        return  # half a pair of surrogates is no text
    assert read_claim(raw) == claim


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (None, "null"),
        (b"", "JSON"),
        (b"s3://bucket/claims/a", "JSON"),
        (b"\xff", "JSON"),
        (b"[" * 4000, "JSON"),
        (b"1" * 4000, "members"),
        (b"[]", "members"),
        (b'"url"', "members"),
        (written(more=1), "members"),
        (json.dumps({"url": "s3://a", "size": 3}).encode(), "members"),
        (written()[:-1] + b',"size":3}', "each member once"),
        (written(url=1), "text as url"),
        (written(url=""), "text as url"),
        (written(size=0), "whole number"),
        (written(size=-1), "whole number"),
        (written(size=3.0), "whole number"),
        (written(size=True), "whole number"),
        (written(size="3"), "whole number"),
        (written(size=MAX_SIZE + 1), "whole number"),
        (b'{"url":"s3://a","size":NaN,"sha256":"%b"}' % DIGEST.encode(), "whole number"),
        (written(sha256=DIGEST.upper()), "hexadecimal"),
        (written(sha256=DIGEST[:-1]), "hexadecimal"),
        (written(sha256=DIGEST + "\n"), "hexadecimal"),
        (written(sha256=None), "hexadecimal"),
        (written(url="x" * MAX_HEADER_BYTES), f"at most {MAX_HEADER_BYTES} bytes"),
    ],
)
def test_B32_a_malformed_header_says_what_was_expected(raw, expected):
    with pytest.raises(InvalidRequest, match=expected) as refused:
        read_claim(raw)
    assert refused.value.reason is Reason.INVALID_HEADER
    assert "header 'claim-check'" in refused.value.detail
    assert len(refused.value.detail) < 300


@pytest.mark.parametrize("name", ["a", "2025-06-01T13/1748782800123-6f", "a.b/c_d/e-f"])
def test_a_name_below_the_store_is_taken(name):
    assert name_in(BASE, f"{BASE}/{name}") == name


@pytest.mark.parametrize(
    "url",
    [
        BASE,
        f"{BASE}/",
        f"{BASE}2/a",
        "s3://bucket/other/a",
        "S3://bucket/claims/a",
        "file:///etc/passwd",
        "http://127.0.0.1/latest/meta-data",
        "/etc/passwd",
        f"{BASE}/../a",
        f"{BASE}/a/../../b",
        f"{BASE}/./a",
        f"{BASE}/.hidden",
        f"{BASE}//a",
        f"{BASE}//etc/passwd",
        f"{BASE}/a/",
        f"{BASE}/a\\b",
        f"{BASE}/%2e%2e/a",
        f"{BASE}/*",
        f"{BASE}/a?versionId=1",
        f"{BASE}/a#b",
        f"{BASE}/a::file:///etc/passwd",
        f"simplecache::{BASE}/a",
        f"{BASE}/a\x00",
        f"{BASE}/a\n",
        f"{BASE}/é",
        f"{BASE}/" + "a" * (MAX_NAME_CHARS + 1),
    ],
)
def test_no_url_leads_out_of_the_store(url):
    """A client must not make a worker read another file or ask another host."""
    with pytest.raises(InvalidRequest, match="--claim-check-url") as refused:
        name_in(BASE, url)
    assert refused.value.reason is Reason.CLAIM_REFUSED


@given(st.text(max_size=60))
def test_what_is_taken_stays_below_the_store_whatever_it_is(tail):
    try:
        name = name_in(BASE, f"{BASE}/{tail}")
    except InvalidRequest:
        return
    assert name == tail
    assert all(part and not part.startswith(".") for part in name.split("/"))
    assert name.isascii()
    assert not set(name) & set("%?*:\\#[]~ ")


def test_B95_size_and_digest_are_verified_and_what_is_there_is_not_told():
    claim = claim_for("s3://a/b", b"abc")
    check_value(claim, b"abc")
    for value in (b"ab", b"abcd", b"abd", b""):
        with pytest.raises(InvalidRequest) as refused:
            check_value(claim, value)
        assert refused.value.reason is Reason.CLAIM_MISMATCH
        assert hashlib.sha256(value).hexdigest() not in refused.value.detail


def test_a_records_claim_is_its_last_and_stands_for_an_empty_value():
    one, two = claim_for("s3://a/1", b"1"), claim_for("s3://a/2", b"22")
    headers = (("claim-check", write_claim(one)), ("id", b"a"), ("claim-check", write_claim(two)))
    for value in (None, b""):
        assert claim_of(PlainRecord(value=value, headers=headers)) == two
    assert claim_of(PlainRecord(value=b"v", headers=(("id", b"a"),))) is None
    with pytest.raises(InvalidRequest, match="1 bytes beside the header"):
        claim_of(PlainRecord(value=b"v", headers=headers))


def test_a_resolved_record_is_the_record_with_its_value_and_without_the_header():
    raw = write_claim(claim_for("s3://a/1", b"1"))
    plain = PlainRecord("t", 3, 5, 7, b"k", b"", (("claim-check", raw), ("id", b"a")))
    made = ResolvedRecord(plain, b"1")
    assert (made.topic, made.partition, made.offset) == ("t", 3, 5)
    assert (made.timestamp, made.key, made.value) == (7, b"k", b"1")
    assert made.headers == [("id", b"a")]
    assert original(made) is plain
    assert original(plain) is plain


def test_without_a_store_the_error_names_the_option():
    error = claimed()
    assert (error.code, error.reason) == (Code.UNSUPPORTED, Reason.UNSUPPORTED_CLAIM_CHECK)
    assert "--claim-check-url" in error.detail
