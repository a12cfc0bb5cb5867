"""What a process says of itself when it has started."""

import pytest
from headrace.deploy.welcome import AT_LEAST_ONCE, EMBEDDED, EXACTLY_ONCE, guarantees, url_of
from headrace.streams.log import Mode


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("localhost", "http://localhost:8000"),
        ("::1", "http://[::1]:8000"),
        ("::", "http://[::]:8000"),
    ],
)
def test_an_ipv6_address_stands_in_brackets(address, url):
    assert url_of(address, 8000) == url


def test_the_guarantee_is_that_of_each_model():
    """One sentence where all have the same, else one for each mode with its models."""
    once, least = Mode.EXACTLY_ONCE, Mode.AT_LEAST_ONCE
    assert guarantees({"a": least, "b": least}, embedded=False) == [AT_LEAST_ONCE]
    assert guarantees({"a": once}, embedded=False) == [EXACTLY_ONCE]
    assert guarantees({"a": once, "b": least, "c": once}, embedded=False) == [
        f"b: {AT_LEAST_ONCE}",
        f"a, c: {EXACTLY_ONCE}",
    ]
    assert guarantees({"a": least}, embedded=True) == [EMBEDDED]
    assert guarantees({}, embedded=False) == [AT_LEAST_ONCE]
