"""Compression within limits, and the choice of an encoding (SEMANTICS BN-08, PB-24)."""

import zlib

import pytest
from headrace.schemas.errors import InvalidRequest
from headrace.streams.http_body import chosen_encoding, compress, decompress


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_BN08_what_is_compressed_comes_back(encoding):
    body = b"headrace " * 1_000
    folded = compress(body, encoding)
    assert len(folded) < len(body) / 10
    assert decompress(folded, encoding, len(body)) == body


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_PB24_the_limit_holds_for_what_unfolds(encoding):
    bomb = compress(b"\0" * 10_000_000, encoding)
    # The size in the sentence is what was unfolded: no more than one byte too many.
    with pytest.raises(InvalidRequest, match=r"has 1001 bytes or more.*http-max-input-size"):
        decompress(bomb, encoding, 1_000)


@pytest.mark.parametrize("body", [b"", b"plain", zlib.compress(b"x" * 100)[:-5]])
def test_broken_and_cut_bodies_are_refused(body):
    with pytest.raises(InvalidRequest, match="deflate"):
        decompress(body, "deflate", 1_000)


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", ""),
        ("gzip", "gzip"),
        ("GZIP, deflate", "gzip"),
        ("deflate, gzip;q=0.5", "deflate"),
        ("deflate;q=0.1, gzip;q=0.5", "gzip"),
        ("gzip;q=0", ""),
        ("br, zstd", ""),
        ("gzip;q=x, deflate;q=0.2", "deflate"),
        ("identity, deflate ; q=1", "deflate"),
    ],
)
def test_BN08_q_values_are_honoured(accept, chosen):
    assert chosen_encoding(accept) == chosen
