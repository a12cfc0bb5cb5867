"""Calls that the served description allows, and calls that it does not: each is answered as described."""

from __future__ import annotations

import os

import pytest
import requests
import schemathesis
from fuzz_judge import judge
from fuzz_kit import LIMIT_S, MODELS, Reply, Target, target
from headrace.streams.openapi import document
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import response_schema_conformance

GIVEN = int(os.environ.get("HEADRACE_FUZZ_CASES", "0"))


def operations():
    """Return every operation of the description, its models those that run and one that does not."""
    described = document()
    for path in described["paths"].values():
        for parameter in path["parameters"]:
            if parameter["name"] == "model":
                parameter["schema"] = {"type": "string", "enum": [*MODELS, "nothing"]}
            if parameter["name"] == "version":
                parameter["schema"] = {"type": "string", "enum": ["1", "0", "9" * 18]}
    schema = schemathesis.openapi.from_dict(described)
    return [found.ok() for found in schema.get_all_operations()]


CALLS = [
    (operation, mode)
    for operation in operations()
    for mode in GenerationMode
    # Of a GET there is nothing to get wrong that would still be this path.
    if mode is GenerationMode.POSITIVE or operation.method.upper() == "POST"
]
PER_OPERATION = max(1, GIVEN // 10 // len(CALLS))

pytestmark = pytest.mark.timeout(120 + PER_OPERATION)


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """A gateway with a worker; it must be as good as new at the end."""
    with target(tmp_path_factory.mktemp("models")) as found:
        yield found
        found.check()


@pytest.fixture(scope="module")
def session():
    """One client for all calls."""
    with requests.Session() as found:
        yield found


@pytest.mark.parametrize(("operation", "mode"), CALLS, ids=lambda one: getattr(one, "label", one))
def test_calls_by_the_description_are_answered_by_it(live: Target, session, operation, mode):
    """Of the right form and of the wrong one; a 200 has the described form."""

    @settings(
        max_examples=PER_OPERATION,
        deadline=None,
        database=None,
        derandomize=not GIVEN,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def one(case) -> None:
        answer = case.call(base_url=live.url, session=session, timeout=LIMIT_S)
        headers = tuple((name.lower(), values[0]) for name, values in answer.headers.items())
        reply = Reply(answer.status_code, headers, answer.content)
        judge(operation.path, reply, hurried="X-Headrace-Timeout-Ms" in (case.headers or {}))
        if answer.status_code == 200 and answer.content:
            case.validate_response(answer, checks=[response_schema_conformance])

    one()
