"""Calls over HTTP that nobody should make, by family, as bytes for a socket."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from fuzz_json import documents, dump, junk, odd_texts
from fuzz_kit import GOOD_BODY, MAX_INPUT_BYTES
from hypothesis import strategies as st


class Case(NamedTuple):
    """What is sent.

    Attributes:
        data: The bytes.
        path: Of the request, ``""`` where it is none.
        ends: It may be incomplete.
        alone: At most one answer may come: what is inside the first request is no second one.
    """

    data: bytes
    path: str = ""
    ends: bool = False
    alone: bool = False


Lines = Sequence[tuple[bytes, bytes]]


def request(
    path: str, body: bytes = b"", lines: Lines = (), method: str = "POST", length: bytes = b""
) -> bytes:
    """Write a request; ``length`` is what it says of its body where it does not say the truth."""
    head = [f"{method} {path} HTTP/1.1".encode("utf-8", "surrogateescape"), b"Host: x"]
    head += [b"%s: %s" % line for line in lines]
    if length != b"none":
        head.append(b"Content-Length: " + (length or b"%d" % len(body)))
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def infer(model: str) -> str:
    """Return the path of a model's infer route."""
    return f"/v2/models/{model}/infer"


@st.composite
def mutated(draw: st.DrawFn) -> Case:
    """JSON with something wrong in it."""
    model, body = draw(documents())
    return Case(request(infer(model), body), infer(model))


numbers = st.one_of(
    st.integers(-3, 400).map(str),
    st.sampled_from(("", "-1", "+5", "1e3", "0x10", " 7", "9" * 30, "\u0665", str(2**63), "5, 5")),
).map(lambda text: text.encode("utf-8"))


@st.composite
def lengths(draw: st.DrawFn) -> Case:
    """A binary request whose lengths do not agree."""
    size = draw(st.one_of(st.integers(-1, 40), st.sampled_from((2**31, 2**62, 2**64, None, "8"))))
    tensor = {"name": "INPUT0", "shape": [1, draw(st.integers(0, 4))], "datatype": "FP32"}
    if draw(st.booleans()):
        tensor["data"] = [1.0]
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": size}}]}).encode()
    tail = draw(st.binary(max_size=40))
    lines = []
    if draw(st.booleans()):
        told = draw(st.one_of(numbers, st.just(b"%d" % len(head))))
        lines = [(b"Inference-Header-Content-Length", told)]
    return Case(request(infer("echo"), head + tail, lines), infer("echo"))


@st.composite
def strings(draw: st.DrawFn) -> Case:
    """BYTES in binary, with prefixes that lie (FAULTS B55), or raw bodies (BN-07)."""
    parts = draw(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.binary(max_size=9)), max_size=4))
    honest = draw(st.booleans())
    tail = b"".join(
        (len(text) if honest else size).to_bytes(4, "little") + text for size, text in parts
    )
    if draw(st.booleans()):
        raw = [(b"Inference-Header-Content-Length", b"0")]
        model = draw(st.sampled_from(("words", "echo", "pair")))
        return Case(request(infer(model), tail, raw), infer(model))
    count = draw(st.sampled_from((len(parts), 0, 5, 2**40)))
    tensor = {
        "name": "W",
        "shape": [1, count],
        "datatype": "BYTES",
        "parameters": {"binary_data_size": len(tail)},
    }
    outputs = [{"name": "OUT_W", "parameters": {"binary_data": draw(st.booleans())}}]
    head = json.dumps({"inputs": [tensor], "outputs": outputs}).encode()
    lines = [(b"Inference-Header-Content-Length", b"%d" % len(head))]
    return Case(request(infer("words"), head + tail, lines), infer("words"))


dims = st.one_of(
    st.lists(st.integers(-(2**65), 2**65), max_size=5),
    st.lists(st.sampled_from((0, 1, 2, 2**31, 2**62, 2**63 - 1)), max_size=6),
    st.integers(1, 3_000).map(lambda count: [1] * count),
)


@st.composite
def shapes(draw: st.DrawFn) -> Case:
    """A shape that claims what no machine has."""
    tensor = {"name": "INPUT0", "shape": draw(dims), "datatype": draw(st.sampled_from(DATATYPES))}
    tensor["data"] = draw(st.sampled_from(([], [1], ["x"], [[]] * 9)))
    return Case(request(infer("echo"), dump({"inputs": [tensor]})), infer("echo"))


DATATYPES = ("FP32", "INT32", "BYTES", "BOOL", "FP16", "UINT64", "fp32", "")
OPENINGS = ("[", '{"a":', '[{"data":', '{"inputs":[', "[[1],")


@st.composite
def deep(draw: st.DrawFn) -> Case:
    """Nested without end, at the top or inside, closed or not."""
    opening = draw(st.sampled_from(OPENINGS)) * draw(st.sampled_from((1, 99, 101, 2_000, 100_000)))
    around = draw(
        st.sampled_from(
            (
                "%s",
                '{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":%s}]}',
                '{"parameters":{"x":%s}}',
                '{"inputs":%s}',
                '{"ready":%s}',
            )
        )
    )
    closing = draw(st.sampled_from(("", "]" * 100_000)))
    path = draw(st.sampled_from(BODY_PATHS))
    return Case(request(path, (around % (opening + closing)).encode()[:MAX_INPUT_BYTES]), path)


@st.composite
def chunks(draw: st.DrawFn) -> Case:
    """A body in chunks: tiny, broken, with extensions and trailers, too many."""
    step = draw(st.sampled_from((1, 2, 7, 10_000)))
    form = draw(
        st.sampled_from((b"%x", b"%X", b"000%x", b"%x;a=b", b"%x ", b"+%x", b"-%x", b"0x%x"))
    )
    body = GOOD_BODY + b" " * draw(st.sampled_from((0, 10, 3_000)))
    parts = [body[at : at + step] for at in range(0, len(body), step)]
    wire = b"".join(form % len(part) + b"\r\n" + part + b"\r\n" for part in parts)
    end = draw(st.sampled_from((b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"", b"0\n\n", b"zz\r\n")))
    data = request(infer("echo"), wire + end, [(b"Transfer-Encoding", b"chunked")], length=b"none")
    return Case(_spoilt(draw, data), infer("echo"), ends=True)


@cache
def _bomb(size: int) -> bytes:
    fold = zlib.compressobj(1, wbits=31)
    parts = [fold.compress(b"[" * min(1_000, size - at)) for at in range(0, size, 1_000)]
    return b"".join(parts) + fold.flush()


@st.composite
def compressed(draw: st.DrawFn) -> Case:
    """Compressed bodies: cut, broken, twice, huge, or said to be what they are not."""
    plain = draw(st.sampled_from((GOOD_BODY, b"", b"{", None)))
    if plain is None:
        body = _bomb(draw(st.sampled_from((MAX_INPUT_BYTES, MAX_INPUT_BYTES + 1, 50_000_000))))
    else:
        fold = draw(st.sampled_from((gzip.compress, zlib.compress, bytes)))
        body = fold(plain) + draw(st.sampled_from((b"", b"tail", gzip.compress(b"{}"))))
    said = draw(
        st.sampled_from(
            (b"gzip", b"deflate", b"GZIP", b"br", b"gzip, gzip", b"identity", b"", b"x" * 4_000)
        )
    )
    accept = draw(st.sampled_from((b"gzip", b"deflate;q=2", b"*", b"gzip;q=nan", b";;,=")))
    lines = [(b"Content-Encoding", said), (b"Accept-Encoding", accept)]
    cut = draw(st.sampled_from((len(body), len(body) // 2)))
    return Case(request(infer("echo"), body[:cut], lines), infer("echo"))


NAMES = (
    *(b"X-Headrace-Timeout-Ms", b"Idempotency-Key", b"traceparent", b"tracestate", b"Expect"),
    *(
        b"Content-Type",
        b"Accept-Encoding",
        b"Prefer",
        b"Connection",
        b"Upgrade",
        b"Range",
        b"Host",
    ),
    *(b"Inference-Header-Content-Length", b"Content-Encoding", b"X Y", b"", b"X\x00", b"\xff"),
    *(
        b"Authorization",
        b"Cookie",
        b"triton_x",
        b"Transfer-Encoding",
        b"Content-Length",
        b"Trailer",
    ),
)
values = st.one_of(
    st.binary(max_size=20),
    numbers,
    st.sampled_from(
        (
            *(b"100-continue", b"respond-async", b"close, keep-alive", b"websocket", b"h2c"),
            *(b"a\r\nX-Injected: yes", b"a\nX-Injected: yes", b"a\rb", b"x" * 9_000, b"\xff\xfe"),
            *(b'"k"', b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01", b"chunked", b"text/plain"),
        )
    ),
)


@st.composite
def heads(draw: st.DrawFn) -> Case:
    """Headers with odd names, odd values, injected lines."""
    some = st.tuples(st.sampled_from(NAMES), values)
    lines = draw(st.lists(some, min_size=1, max_size=4))
    path = draw(st.sampled_from((infer("echo"), "/v2", "/v2/models/echo")))
    return Case(request(path, GOOD_BODY, lines), path, ends=True)


@st.composite
def identities(draw: st.DrawFn) -> Case:
    """Ids, parameters and names that would be headers, log lines or keys elsewhere."""
    body = json.loads(GOOD_BODY)
    body["id"] = draw(odd_texts)
    body["parameters"] = {draw(odd_texts): draw(junk), "sequence_id": draw(odd_texts)}
    body["outputs"] = [{"name": draw(odd_texts), "parameters": {draw(odd_texts): draw(junk)}}]
    for key in ("parameters", "outputs"):
        if draw(st.booleans()):
            del body[key]
    return Case(request(infer("echo"), dump(body)), infer("echo"))


@st.composite
def garbage(draw: st.DrawFn) -> Case:
    """No HTTP at all, or a request with some bytes changed."""
    if draw(st.booleans()):
        return Case(draw(st.binary(max_size=200)) + b"\r\n\r\n", ends=True)
    return Case(_spoilt(draw, request(infer("echo"), GOOD_BODY)), ends=True)


INSIDE = b"GET /v2/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
SMUGGLED: tuple[Lines, ...] = (
    ((b"Content-Length", b"4"), (b"Transfer-Encoding", b"chunked")),
    ((b"Transfer-Encoding", b"chunked"), (b"Content-Length", b"4")),
    ((b"Transfer-Encoding", b"xchunked"), (b"Content-Length", b"4")),
    ((b"Transfer-Encoding", b"chunked, identity"),),
    ((b"Transfer-Encoding", b"identity, chunked"), (b"Content-Length", b"4")),
    ((b"Transfer-Encoding", b"chunked"), (b"Transfer-Encoding", b"identity")),
    ((b"Transfer-Encoding", b"\x0bchunked"), (b"Content-Length", b"4")),
    ((b"Transfer-Encoding ", b"chunked"), (b"Content-Length", b"4")),
    ((b" Transfer-Encoding", b"chunked"), (b"Content-Length", b"4")),
    ((b"Content-Length", b"4"), (b"Content-Length", b"5")),
    ((b"Content-Length", b"4, 4"),),
    ((b"Content-Length", b"+4"),),
    ((b"Content-Length", b"0x4"),),
    ((b"Content-Length", b"4\r\n\tfolded: 1"),),
    ((b"Content-Length ", b"4"),),
    ((b"X", b"1\nContent-Length: 4"),),
    ((b"X", b"1\rContent-Length: 4"),),
)


@st.composite
def smuggled(draw: st.DrawFn) -> Case:
    """Two ways to read where a body ends, with a request behind one of them."""
    lines = [(b"Connection", b"close"), *draw(st.sampled_from(SMUGGLED))]
    ending = draw(st.sampled_from((b"0\r\n\r\n", b"")))
    data = request(infer("echo"), ending + INSIDE, lines, length=b"none")
    return Case(data, ends=False, alone=True)


BODY_PATHS = (
    infer("echo"),
    "/v2/repository/index",
    "/v2/repository/models/echo/load",
    "/v2/repository/models/echo/unload",
    "/v2/models/echo/generate",
    "/v2/models/echo/generate_stream",
    "/v2/trace/setting",
    "/v2/models/echo/trace/setting",
    "/v2/logging",
    "/v2/systemsharedmemory/region/r/register",
    "/v2/systemsharedmemory/region/r/unregister",
    "/v2/cudasharedmemory/region/r/register",
)
METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT")
PARTS = (
    *("v2", "models", "echo", "versions", "1", "infer", "ready", "health", "live", "stats"),
    *("repository", "index", "config", "%00", "%2e%2e", "..", "", "%ff", "%", "*", "a?b", "#"),
    *("9" * 5_000, "0", "00001", "\u0661", "\udcff", "x" * 7_000, "load", "models%2Fecho", "'"),
    *("openapi.json", "systemsharedmemory", "region", "status", "trace", "setting", "logging"),
)


@st.composite
def routes(draw: st.DrawFn) -> Case:
    """Paths made of parts of paths, with any verb."""
    method = draw(st.sampled_from(METHODS))
    begin = draw(
        st.sampled_from(("/v2/models/echo/", "/v2/models/echo/versions/", "/v2/", "/", ""))
    )
    path = begin + "/".join(draw(st.lists(st.sampled_from(PARTS), max_size=4)))
    return Case(request(path, b"", method=method), path, ends=method == "CONNECT")


@st.composite
def bodies(draw: st.DrawFn) -> Case:
    """Anything as the body of every route that takes one."""
    path = draw(st.sampled_from(BODY_PATHS))
    keys = st.sampled_from(BODY_KEYS)
    body = draw(
        st.one_of(
            junk.map(dump),
            st.dictionaries(keys, junk, max_size=4).map(dump),
            st.binary(max_size=30),
        )
    )
    return Case(request(path, body), path)


BODY_KEYS = (
    *(
        "parameters",
        "ready",
        "INPUT0",
        "id",
        "trace_level",
        "trace_rate",
        "log_level",
        "log_format",
    ),
    *("log_file", "log_verbose_level", "key", "offset", "byte_size", "raw_handle", "device_id"),
)


@st.composite
def truncated(draw: st.DrawFn) -> Case:
    """A good request that ends early, and the caller with it."""
    data = request(infer("echo"), GOOD_BODY)
    return Case(data[: draw(st.integers(0, len(data) - 1))], ends=True)


@st.composite
def promised(draw: st.DrawFn) -> Case:
    """A body of another length than was promised, then the end."""
    return Case(request(infer("echo"), GOOD_BODY, length=draw(numbers)), ends=True)


def _spoilt(draw: st.DrawFn, data: bytes) -> bytes:
    """Change, drop or insert a few bytes."""
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        gone = draw(st.integers(0, 2))
        data = data[:at] + draw(st.binary(max_size=2)) + data[at + gone :]
    return data


VARIANTS = 4
"""Calls beside each that is drawn: drawing one takes longer than answering it."""
ODD_BYTES = b'\x00\xff\x80"{}[]:,\\019-+.eEtnu\r\n\t /%;=<'


def variants(case: Case, seed: int) -> Iterator[Case]:
    """Yield the case with one to four of its bytes changed, mostly in the body, its length as it was."""
    rng = random.Random(seed)
    begin = case.data.find(b"\r\n\r\n") + 4
    for _ in range(VARIANTS if case.data else 0):
        data = bytearray(case.data)
        lowest = begin if begin < len(data) and rng.random() < 0.7 else 0
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(lowest, len(data))] = rng.choice(ODD_BYTES)
        yield case._replace(data=bytes(data), ends=True, alone=False)


FAMILIES: dict[str, Callable[[], st.SearchStrategy[Case]]] = {
    family.__name__: family
    for family in (
        *(mutated, lengths, strings, shapes, deep, chunks, compressed, heads, identities),
        *(garbage, smuggled, routes, bodies, truncated, promised),
    )
}
"""By name; a case of each is drawn as often as of any other."""
