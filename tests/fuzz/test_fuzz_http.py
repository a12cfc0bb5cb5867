"""Whatever comes over HTTP is answered as Triton answers it, in time, and costs nobody else anything.

``HEADRACE_FUZZ_CASES`` is the number of cases (``make fuzz CASES=100000``); without it a few of each family run, always
the same.
"""

from __future__ import annotations

import json
import os

import pytest
from fuzz_cases import FAMILIES, Case
from fuzz_kit import Reply, Target, target
from hypothesis import HealthCheck, Phase, given, settings

GIVEN = int(os.environ.get("HEADRACE_FUZZ_CASES", "0"))
CASES = GIVEN or 1_000
PER_FAMILY = max(1, CASES // len(FAMILIES))
CHECK_EVERY = 100

pytestmark = pytest.mark.timeout(120 + PER_FAMILY)

STATUSES = {200, 400, 404, 405, 413, 500, 501, 503, 507}
JSON_ERRORS = ("failed to parse the request JSON buffer", "Unable to parse ")
"""How Triton's 500s begin (SEMANTICS PB-32); no other may come."""
NO_CONTROL = "explicit model load / unload is not allowed"
HEADERS = {
    *("content-type", "content-length", "content-encoding", "date", "server", "connection"),
    *("allow", "accept-encoding", "retry-after", "inference-header-content-length"),
    *(
        "transfer-encoding",
        "cache-control",
        "location",
        "preference-applied",
        "idempotent-replayed",
    ),
}


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """A gateway with a worker, for all cases; it must be as good as new at the end."""
    with target(tmp_path_factory.mktemp("models")) as found:
        yield found
        found.check()
        print(f"\nanswers: {dict(found.seen)}")  # noqa: T201  # the report of a long run


@pytest.mark.parametrize("family", FAMILIES)
def test_B53_B55_B57_PB24_PB30_PB32_PB38_any_bytes_are_answered(live: Target, family):
    """See the module's docstring."""
    count = 0

    @settings(
        max_examples=PER_FAMILY,
        deadline=None,
        database=None,
        derandomize=not GIVEN,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(FAMILIES[family]())
    def one(case: Case) -> None:
        nonlocal count
        count += 1
        replies = live.exchange(case.data, ends=case.ends, to_end=case.alone)
        for reply in replies:
            judge(case, reply)
        assert not case.alone or len(replies) <= 1
        if count % CHECK_EVERY == 0:
            live.check()

    one()
    live.check()


def judge(case: Case, reply: Reply) -> None:
    """Refuse an answer that Triton would not give."""
    assert reply.status in STATUSES, reply
    assert {name for name, _ in reply.headers} <= HEADERS, reply
    if reply.status < 400:
        return
    text = ""
    if reply.body:
        document = json.loads(reply.body)
        assert list(document) == ["error"], reply
        text = document["error"]
        assert text, reply
    else:
        assert "/health/" in case.path or case.path.endswith("/ready") or is_head(case), reply
    if reply.status == 500:
        assert text.startswith(JSON_ERRORS), reply
    if reply.status == 503:
        assert text.startswith(NO_CONTROL), reply


def is_head(case: Case) -> bool:
    return case.data.startswith(b"HEAD ")
