"""Who may call what: restricted API groups and bearer tokens, as pure decisions (SEMANTICS PB-22)."""

import hashlib

import pytest
from headrace.schemas.errors import AccessDenied, Code, ConfigError, Reason
from headrace.streams.access import GRPC, HTTP, Access, Group, Tokens, read_restrictions


def tokens(*texts):
    return Tokens([hashlib.sha256(text.encode()).digest() for text in texts])


def refusal(access, group, **headers):
    """Return why a call is refused, None if it is not."""
    found = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        access.check(group, found.get)
    except AccessDenied as error:
        return error
    return None


def test_PB22_a_group_asks_for_its_header_and_the_others_do_not():
    access = Access(read_restrictions(["health,trace:admin-key=s3=cret"], HTTP))
    for group in Group:
        error = refusal(access, group)
        if group in (Group.HEALTH, Group.TRACE):
            assert error.detail == "This API is restricted, expecting header 'admin-key'"
            assert (error.code, error.reason) == (Code.UNAVAILABLE, Reason.RESTRICTED)
        else:
            assert error is None
    assert refusal(access, Group.TRACE, admin_key="s3=cret") is None
    for wrong in ("", "s3", "S3=CRET", "s3=cret ", "\udcff"):
        assert refusal(access, Group.TRACE, admin_key=wrong) is not None


def test_PB22_over_grpc_the_header_has_a_prefix_and_the_text_another_noun():
    access = Access(read_restrictions(["inference:Key=v", "logging:other=w"], GRPC))
    error = refusal(access, Group.INFERENCE, key="v")
    assert (
        error.detail == "This protocol is restricted, expecting header 'triton-grpc-protocol-Key'"
    )
    assert refusal(access, Group.INFERENCE, triton_grpc_protocol_key="v") is None
    assert refusal(access, Group.LOGGING, triton_grpc_protocol_key="v") is not None
    assert refusal(access, Group.LOGGING, triton_grpc_protocol_other="w") is None


def test_PB22_the_groups_are_tritons():
    assert ", ".join(Group) == (
        "health, metadata, inference, shared-memory, model-config, model-repository, statistics, "
        "trace, logging"
    )


@pytest.mark.parametrize(
    ("texts", "fragment"),
    [
        (["inference"], "<groups>:<header>=<value>"),
        (["inference:key"], "<groups>:<header>=<value>"),
        (["inference:key="], "<groups>:<header>=<value>"),
        (["inference:=topsecret"], "<groups>:<header>=<value>"),
        ([":key=topsecret"], "<groups>:<header>=<value>"),
        (["inference,:key=topsecret"], "there is no such group"),
        (["inference,infer:key=topsecret"], "there is no such group"),
        (["inference:a=topsecret", "trace,inference:b=topsecret"], "named twice"),
    ],
)
def test_PB22_a_wrong_restriction_is_refused_without_its_value(texts, fragment):
    with pytest.raises(ConfigError) as caught:
        read_restrictions(texts, HTTP)
    assert str(caught.value).startswith("--http-restricted-api")
    assert fragment in str(caught.value)
    assert "topsecret" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "passes"),
    [
        ("Bearer alpha", True),
        ("bearer  beta ", True),
        ("BEARER beta", True),
        ("alpha", False),
        ("Bearer", False),
        ("Bearer ", False),
        ("Bearer alph", False),
        ("Bearer alphaa", False),
        ("Basic alpha", False),
        ("Bearer \udcff", False),
        (None, False),
    ],
)
def test_a_call_needs_one_of_the_tokens(given, passes):
    access = Access({}, lambda: tokens("alpha", "beta"))
    error = refusal(access, Group.INFERENCE, **({} if given is None else {"authorization": given}))
    assert (error is None) == passes
    assert error is None or error.reason is Reason.UNAUTHENTICATED


def test_free_groups_need_no_token_but_still_their_header():
    restrictions = read_restrictions(["health:key=v"], HTTP)
    access = Access(restrictions, lambda: tokens("alpha"), free=[Group.HEALTH])
    assert refusal(access, Group.HEALTH).reason is Reason.RESTRICTED
    assert refusal(access, Group.HEALTH, key="v") is None
    assert refusal(access, Group.TRACE).reason is Reason.UNAUTHENTICATED
    assert refusal(access, Group.TRACE, authorization="Bearer alpha") is None


def test_tokens_that_hold_now_count():
    held = [tokens("old")]
    access = Access({}, lambda: held[0])
    assert refusal(access, Group.TRACE, authorization="Bearer old") is None
    held[0] = tokens("new")
    assert refusal(access, Group.TRACE, authorization="Bearer old") is not None
    assert refusal(access, Group.TRACE, authorization="Bearer new") is None


def test_secrets_stand_in_no_repr_and_their_headers_are_known():
    restrictions = read_restrictions(["health:Admin-Key=topsecret"], HTTP)
    access = Access(restrictions, lambda: tokens("topsecret"))
    assert "topsecret" not in repr([access, restrictions, tokens("topsecret")])
    assert access.secret_headers == {"admin-key", "authorization"}
    assert Access(restrictions).secret_headers == {"admin-key"}
