"""What guards a gateway, made from settings: what is put together, and what is refused before anything starts."""

import resource

import pytest
from headrace.deploy.access import SPARE_FILES, access_of, file_limit, forwarding_of, guard_of
from headrace.deploy.settings import Settings, load_settings, variable_name
from headrace.schemas.errors import AccessDenied, ConfigError
from headrace.streams.access import GRPC, HTTP, Group


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch):
    """No variable of the machine that runs the tests counts."""
    for field in Settings.model_fields:
        monkeypatch.delenv(variable_name(field), raising=False)


def passes(access, group, headers):
    try:
        access.check(group, headers.get)
    except AccessDenied:
        return False
    return True


def test_nothing_set_guards_nothing():
    guard = guard_of(load_settings({}))
    assert (guard.access, guard.tls, guard.http.forwarding) == (None, None, None)
    assert access_of(load_settings({}), GRPC) is None


def test_each_protocol_has_restrictions_of_its_own_and_the_tokens_are_shared(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("alpha")
    settings = load_settings(
        {
            "http_restricted_api": ["trace,logging:a=1", "statistics:b=2"],
            "grpc_restricted_protocol": ["trace:a=3"],
            "auth_token_file": str(path),
        }
    )
    http, grpc = access_of(settings, HTTP), access_of(settings, GRPC)
    token = {"authorization": "Bearer alpha"}
    assert passes(http, Group.LOGGING, {"a": "1", **token})
    assert passes(http, Group.STATISTICS, {"b": "2", **token})
    assert not passes(http, Group.STATISTICS, {"a": "1", **token})
    assert passes(grpc, Group.TRACE, {"triton-grpc-protocol-a": "3", **token})
    assert not passes(grpc, Group.TRACE, {"a": "1", **token})
    for access in (http, grpc):
        assert passes(access, Group.METADATA, token)
        assert not passes(access, Group.METADATA, {})
        assert passes(access, Group.HEALTH, {})


def test_health_may_ask_for_a_token_too(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("alpha")
    settings = load_settings({"auth_token_file": str(path), "auth_free_health": "false"})
    assert not passes(access_of(settings, HTTP), Group.HEALTH, {})


def test_the_environment_carries_restrictions_with_semicolons(monkeypatch):
    monkeypatch.setenv("HEADRACE_HTTP_RESTRICTED_API", "trace,logging:a=1; health:b=2")
    access = access_of(load_settings({}), HTTP)
    assert not passes(access, Group.TRACE, {})
    assert passes(access, Group.HEALTH, {"b": "2"})


def test_headers_with_secrets_are_kept_from_forwarding():
    access = access_of(load_settings({"http_restricted_api": ["trace:X-Key=1"]}), HTTP)
    forwarding = forwarding_of("^x-", "--option", access)
    assert forwarding is not None
    assert forwarding._never == {"x-key"}


@pytest.mark.parametrize(
    "given",
    [
        {"http_restricted_api": ["nonsense"]},
        {"auth_token_file": "/does/not/exist"},
        {"http_server_cert": "/does/not/exist"},
        {"http_server_key": "/does/not/exist"},
        {"http_client_ca": "/does/not/exist"},
        {"http_server_cert": "/does/not/exist", "http_server_key": "/does/not/exist"},
        {"http_header_forward_pattern": "("},
    ],
)
def test_what_is_wrong_is_refused_at_the_start(given):
    with pytest.raises(ConfigError):
        guard_of(load_settings(given))


@pytest.mark.parametrize(
    ("soft", "hard", "limit"),
    [
        (1024, 2**20, 4096 + SPARE_FILES),
        (1024, 4096, 4096),
        (1024, resource.RLIM_INFINITY, 4096 + SPARE_FILES),
        (2**16, 2**20, 2**16),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, resource.RLIM_INFINITY),
    ],
)
def test_as_many_files_may_be_open_as_connections_and_some_more(soft, hard, limit):
    assert file_limit(4096, soft, hard) == limit
