"""Headers that become request parameters (SEMANTICS PB-48)."""

import pytest
from headrace.schemas.errors import ConfigError, InvalidRequest
from headrace.schemas.infer import InferRequest
from headrace.streams.forwarding import Forwarding

OPTION = "--http-header-forward-pattern"
ASKED = InferRequest((), parameters={"tenant": "body", "mine": 3})


def apply(pattern, *headers, never=()):
    return Forwarding(pattern, option=OPTION, never=never).apply(ASKED, headers).parameters


def test_PB48_headers_that_match_become_parameters_and_go_before_the_bodys():
    found = apply("^x-|tenant", ("X-Trace", "a"), ("Accept", "*/*"), ("tenant", "proxy"))
    assert found == {"tenant": "proxy", "mine": 3, "X-Trace": "a"}


def test_PB48_a_match_anywhere_counts_in_any_case():
    assert "MY-Tenant-ID" in apply("tenant", ("MY-Tenant-ID", "7"))


def test_PB48_the_last_of_a_name_counts_and_broken_bytes_become_text():
    assert apply("^x$", ("x", "1"), ("x", "a\udcff"))["x"] == "a\ufffd"


@pytest.mark.parametrize("name", ["sequence_id", "Timeout", "headers", "triton_x", "TRITON_y"])
def test_PB48_a_reserved_name_is_refused(name):
    with pytest.raises(InvalidRequest, match=f"Header '{name}' is reserved for Triton usage"):
        apply(".", (name, "1"))
    assert apply("^x-", (name, "1")) == ASKED.parameters


def test_PB48_headers_with_our_secrets_are_never_forwarded():
    found = apply(".*", ("Authorization", "Bearer s"), ("X", "1"), never={"authorization"})
    assert found == {**ASKED.parameters, "X": "1"}


def test_nothing_to_forward_leaves_the_request_as_it_is():
    assert Forwarding("^x-", option=OPTION).apply(ASKED, [("Accept", "a")]) is ASKED


def test_a_pattern_that_is_no_regular_expression_is_refused_by_its_option():
    with pytest.raises(ConfigError, match=r"--http-header-forward-pattern = \(: expected a regul"):
        Forwarding("(", option=OPTION)
