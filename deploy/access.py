"""Makes what guards a gateway from its settings."""

from __future__ import annotations

import resource
from typing import NamedTuple

from headrace.deploy.settings import Settings, option_name
from headrace.schemas.errors import ConfigError
from headrace.streams.access import HTTP, Access, Group, Protocol, Tokens, read_restrictions
from headrace.streams.forwarding import Forwarding
from headrace.streams.http_call import HttpSettings
from headrace.streams.reloaded import Reloaded
from headrace.streams.tls import ServerTls
from headrace.streams.token_file import read_tokens

ACCESS = (
    "http_restricted_api",
    "auth_token_file",
    "auth_free_health",
    "http_server_cert",
    "http_server_key",
    "http_client_ca",
    "http_header_forward_pattern",
    "http_max_connections",
    "http_header_timeout_secs",
    "http_body_timeout_secs",
    "http_write_timeout_secs",
    "http_keepalive_secs",
    "http_max_line_bytes",
    "http_max_header_bytes",
    "http_max_headers",
)
"""The settings of whoever runs a gateway."""


SPARE_FILES = 1024
"""Open files beside the HTTP server's connections: gRPC's, the brokers', models'."""


def allow_connections(most: int) -> None:
    """Let this process open as many connections as it may be asked for, as far as the system lets it.

    A shell's limit of 1,024 files would else end them long before ours does, and those to the brokers with them.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (file_limit(most, soft, hard), hard))


def file_limit(most: int, soft: int, hard: int) -> int:
    """Return the limit of open files for so many connections: never below what there is, never above ``hard``."""
    if soft == resource.RLIM_INFINITY:
        return soft
    wanted = max(soft, most + SPARE_FILES)
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


class Guard(NamedTuple):
    """What stands before a gateway's HTTP server.

    Attributes:
        access: What calls need; None needs nothing.
        tls: Certificate and key; None is HTTP in the clear.
        http: Where it listens, and its bounds.
    """

    access: Access | None
    tls: ServerTls | None
    http: HttpSettings


def guard_of(settings: Settings) -> Guard:
    """Return what these settings put before the HTTP server.

    Raises:
        ConfigError: Something of it is wrong.
    """
    access = access_of(settings, HTTP)
    return Guard(access, _tls_of(settings), _http_settings_of(settings, access))


def access_of(settings: Settings, protocol: Protocol) -> Access | None:
    """Return what calls over a protocol need, None where they need nothing.

    Raises:
        ConfigError: A restriction or the file of tokens is wrong.
    """
    is_http = protocol is HTTP
    texts = settings.http_restricted_api if is_http else settings.grpc_restricted_protocol
    restrictions = read_restrictions(texts, protocol)
    tokens: Reloaded[Tokens] | None = None
    path = settings.auth_token_file
    if path is not None:
        tokens = Reloaded((path,), lambda: read_tokens(path), what="bearer tokens")
    if not restrictions and tokens is None:
        return None
    free = (Group.HEALTH,) if settings.auth_free_health else ()
    return Access(restrictions, tokens, free=free)


def forwarding_of(pattern: str, option: str, access: Access | None) -> Forwarding | None:
    """Return which headers become parameters, None where none do; those with our secrets never do.

    Raises:
        ConfigError: The pattern is no regular expression.
    """
    if not pattern:
        return None
    return Forwarding(pattern, option=option, never=access.secret_headers if access else ())


def _tls_of(settings: Settings) -> ServerTls | None:
    cert, key, client_ca = (
        settings.http_server_cert,
        settings.http_server_key,
        settings.http_client_ca,
    )
    if cert is not None and key is not None:
        tls = ServerTls(cert, key, client_ca)
        tls.context()  # what is wrong with the files is said now
        return tls
    for field in ("http_server_cert", "http_server_key", "http_client_ca"):
        if getattr(settings, field) is not None:
            raise ConfigError(
                "expected --http-server-cert and --http-server-key beside it",
                field=option_name(field),
                value=getattr(settings, field),
            )
    return None


def _http_settings_of(settings: Settings, access: Access | None) -> HttpSettings:
    return HttpSettings(
        address=settings.http_address,
        port=settings.http_port,
        reuse_port=settings.reuse_http_port,
        max_input_bytes=settings.http_max_input_size,
        read_timeout_s=settings.http_body_timeout_secs,
        header_timeout_s=settings.http_header_timeout_secs,
        write_timeout_s=settings.http_write_timeout_secs,
        keepalive_s=settings.http_keepalive_secs,
        max_connections=settings.http_max_connections,
        max_line_bytes=settings.http_max_line_bytes,
        max_header_bytes=settings.http_max_header_bytes,
        max_headers=settings.http_max_headers,
        drain_timeout_s=settings.exit_timeout_secs,
        forwarding=forwarding_of(
            settings.http_header_forward_pattern, "--http-header-forward-pattern", access
        ),
    )
