"""What an answer over HTTP may be, whatever was asked (SEMANTICS PB-30…PB-32)."""

from __future__ import annotations

import json

from fuzz_kit import Reply

STATUSES = {200, 202, 400, 404, 405, 413, 422, 500, 501, 503, 504, 507}
JSON_ERRORS = (
    "failed to parse the request JSON buffer",
    "Unable to parse ",
    "Expected JSON object for keyword",
)
"""How Triton's 500s begin (SEMANTICS PB-32); no other may come."""
NO_CONTROL = "explicit model load / unload is not allowed"
HEADERS = {
    *("content-type", "content-length", "content-encoding", "date", "server", "connection"),
    *("allow", "accept-encoding", "retry-after", "inference-header-content-length"),
    *("transfer-encoding", "cache-control", "location", "preference-applied", "vary"),
    "idempotency-replayed",
}


def judge(path: str, reply: Reply, *, bodiless: bool = False, hurried: bool = False) -> None:
    """Refuse an answer that Triton would not give.

    Args:
        path: That was asked.
        reply: What came.
        bodiless: To HEAD.
        hurried: The call had a deadline of its own.
    """
    assert reply.status in STATUSES, reply
    assert reply.status != 504 or hurried, reply
    named = {name for name, _ in reply.headers if not name.startswith("x-headrace-")}
    assert named <= HEADERS, reply
    if reply.status < 400 or bodiless:
        return
    if not reply.body:
        assert "/health/" in path or path.endswith("/ready"), reply
        return
    document = json.loads(reply.body)
    assert list(document) == ["error"], reply
    text = document["error"]
    assert text, reply
    if reply.status == 500:
        assert text.startswith(JSON_ERRORS), reply
    if reply.status == 503:
        assert text.startswith(NO_CONTROL), reply
