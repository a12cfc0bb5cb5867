"""Whatever comes over HTTP is answered as Triton answers it, in time, and costs nobody else anything.

``HEADRACE_FUZZ_CASES`` is the number of cases (``make fuzz CASES=100000``); without it a few of each family run, always
the same.
"""

from __future__ import annotations

import os

import pytest
from fuzz_cases import FAMILIES, VARIANTS, Case, variants
from fuzz_judge import judge
from fuzz_kit import Target, target
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

GIVEN = int(os.environ.get("HEADRACE_FUZZ_CASES", "0"))
CASES = GIVEN or 400
PER_FAMILY = max(1, CASES // len(FAMILIES) // (1 + VARIANTS))
CHECK_EVERY = 20

pytestmark = pytest.mark.timeout(120 + 5 * PER_FAMILY)


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
    @given(FAMILIES[family](), st.integers(0, 2**32))
    def one(case: Case, seed: int) -> None:
        nonlocal count
        count += 1
        for call in (case, *variants(case, seed)):
            replies = live.exchange(call.data, ends=call.ends, to_end=call.alone)
            for reply in replies:
                is_head, is_hurried = call.data.startswith(b"HEAD "), b"Timeout-Ms" in call.data
                judge(call.path, reply, bodiless=is_head, hurried=is_hurried)
            assert not call.alone or len(replies) <= 1
        if count % CHECK_EVERY == 0:
            live.check()

    one()
    live.check()
