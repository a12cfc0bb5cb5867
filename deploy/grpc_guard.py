"""Makes the bounds of a gateway's gRPC server, and what its calls need, from its settings."""

from __future__ import annotations

from typing import NamedTuple

from headrace.deploy.access import access_of, forwarding_of
from headrace.deploy.grpc_options import GrpcOptions
from headrace.deploy.settings import Settings
from headrace.schemas.errors import ConfigError
from headrace.streams.access import GRPC, Access
from headrace.streams.grpc_settings import Compression, GrpcKeepAlive, GrpcSettings
from headrace.streams.tls import ServerTls


class GrpcGuard(NamedTuple):
    """What stands before a gateway's gRPC server.

    Attributes:
        access: What calls need; None needs nothing.
        settings: Where it listens, and its bounds.
    """

    access: Access | None
    settings: GrpcSettings


def grpc_guard_of(settings: Settings) -> GrpcGuard | None:
    """Return what these settings put before the gRPC server, None where there shall be none.

    Raises:
        ConfigError: Something of it is wrong, or neither HTTP nor gRPC is allowed.
    """
    if not settings.allow_grpc:
        if not settings.allow_http:
            raise ConfigError(
                "expected HTTP or gRPC to be allowed: a gateway without both answers nobody",
                field="--allow-grpc",
                value="false",
            )
        return None
    access = access_of(settings, GRPC)
    return GrpcGuard(access, _settings_of(settings, access))


def _settings_of(settings: Settings, access: Access | None) -> GrpcSettings:
    tls = _tls_of(settings)
    if tls is not None:
        tls.context()  # what is wrong with the files is said now
    return GrpcSettings(
        address=settings.grpc_address or settings.http_address,
        port=settings.grpc_port,
        reuse_port=settings.reuse_grpc_port,
        max_input_bytes=settings.grpc_max_input_size,
        max_stream_requests=settings.grpc_max_stream_requests,
        max_connections=settings.grpc_max_connections,
        handshake_timeout_s=settings.http_header_timeout_secs,
        write_timeout_s=settings.http_write_timeout_secs,
        drain_timeout_s=settings.exit_timeout_secs,
        compression=Compression[settings.grpc_infer_response_compression_level.upper()],
        keep_alive=GrpcKeepAlive(
            time_ms=settings.grpc_keepalive_time,
            timeout_ms=settings.grpc_keepalive_timeout,
            permit_without_calls=settings.grpc_keepalive_permit_without_calls,
            max_pings_without_data=settings.grpc_http2_max_pings_without_data,
            min_recv_ping_interval_without_data_ms=settings.grpc_http2_min_recv_ping_interval_without_data,
            max_ping_strikes=settings.grpc_http2_max_ping_strikes,
            max_connection_age_ms=settings.grpc_max_connection_age,
            max_connection_age_grace_ms=settings.grpc_max_connection_age_grace,
        ),
        tls=tls,
        forwarding=forwarding_of(
            settings.grpc_header_forward_pattern, "--grpc-header-forward-pattern", access
        ),
    )


def _tls_of(options: GrpcOptions) -> ServerTls | None:
    if not (options.grpc_use_ssl or options.grpc_use_ssl_mutual):
        return None
    cert, key, root = options.grpc_server_cert, options.grpc_server_key, options.grpc_root_cert
    needed = {"--grpc-server-cert": cert, "--grpc-server-key": key}
    if options.grpc_use_ssl_mutual:
        needed["--grpc-root-cert"] = root
    for option, path in needed.items():
        if path is None:
            raise ConfigError("expected a PEM file, for gRPC is served over TLS", field=option)
    assert cert is not None
    assert key is not None
    return ServerTls(cert, key, root if options.grpc_use_ssl_mutual else None)
