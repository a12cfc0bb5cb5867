"""The gRPC server's options: Triton's names and defaults, and what is refused, in which words."""

import pytest
from certificates import authority, signed
from headrace.deploy.grpc_guard import grpc_guard_of
from headrace.deploy.grpc_options import GRPC, GrpcOptions
from headrace.deploy.settings import Settings, load_settings
from headrace.schemas.errors import ConfigError
from headrace.streams.grpc_settings import Compression, GrpcSettings, channel_options
from headrace.streams.tls import ServerTls


def made(**given):
    guard = grpc_guard_of(load_settings(given))
    return None if guard is None else guard.settings


def test_the_defaults_are_the_servers_own():
    assert made() == GrpcSettings()


def test_every_option_is_offered():
    assert set(GrpcOptions.model_fields) <= set(GRPC) | {"allow_http"}
    assert {name for name in Settings.model_fields if "grpc" in name} == set(GRPC)


def test_tritons_keep_alive_options_reach_grpcs_core():
    settings = made(
        grpc_keepalive_time="1",
        grpc_keepalive_timeout="2",
        grpc_keepalive_permit_without_calls="1",
        grpc_http2_max_pings_without_data="3",
        grpc_http2_min_recv_ping_interval_without_data="4",
        grpc_http2_max_ping_strikes="5",
        grpc_max_connection_age="6",
        grpc_max_connection_age_grace="7",
        grpc_max_input_size="8",
        grpc_max_connections="9",
        http_header_timeout_secs="10",
        http_write_timeout_secs="11",
        grpc_infer_response_compression_level="medium",
    )
    assert settings.compression is Compression.MEDIUM
    assert settings.write_timeout_s == 11.0
    assert dict(channel_options(settings)) == {
        "grpc.so_reuseport": 0,
        "grpc.max_receive_message_length": 8,
        "grpc.max_send_message_length": -1,
        "grpc.max_allowed_incoming_connections": 9,
        "grpc.server_handshake_timeout_ms": 10_000,
        "grpc.keepalive_time_ms": 1,
        "grpc.keepalive_timeout_ms": 2,
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.max_pings_without_data": 3,
        "grpc.http2.min_ping_interval_without_data_ms": 4,
        "grpc.http2.max_ping_strikes": 5,
        "grpc.max_connection_age_ms": 6,
        "grpc.max_connection_age_grace_ms": 7,
        "grpc.default_compression_level": 2,
    }


def test_grpc_listens_where_http_does_unless_told():
    assert made(http_address="10.0.0.7").address == "10.0.0.7"
    assert made(http_address="10.0.0.7", grpc_address="::1").address == "::1"


def test_neither_server_is_refused_and_grpc_alone_may_be_left_out():
    assert made(allow_grpc="false") is None
    with pytest.raises(ConfigError, match="--allow-grpc = false: expected HTTP or gRPC"):
        made(allow_grpc="false", allow_http="false")


def test_tls_needs_its_files(tmp_path):
    pair = signed(tmp_path, "server", authority(tmp_path))
    files = {"grpc_server_cert": str(pair.cert), "grpc_server_key": str(pair.key)}
    assert made(**files).tls is None
    assert made(grpc_use_ssl="true", **files).tls == ServerTls(pair.cert, pair.key)
    with pytest.raises(ConfigError, match="--grpc-server-cert: expected a PEM file"):
        made(grpc_use_ssl="true")
    with pytest.raises(ConfigError, match="--grpc-root-cert: expected a PEM file"):
        made(grpc_use_ssl_mutual="true", **files)
    mutual = made(grpc_use_ssl_mutual="1", grpc_root_cert=str(tmp_path / "ca.pem"), **files).tls
    assert mutual == ServerTls(pair.cert, pair.key, tmp_path / "ca.pem")
    with pytest.raises(ConfigError, match=r"nope.*expected a certificate and its key in PEM"):
        made(grpc_use_ssl="true", **files | {"grpc_server_key": str(tmp_path / "nope")})


def test_PB22_PB48_restrictions_and_forwarding_are_read():
    guard = grpc_guard_of(
        load_settings(
            {
                "grpc_restricted_protocol": ["trace:k=v"],
                "grpc_header_forward_pattern": "^x-",
            }
        )
    )
    assert guard.access.secret_headers == {"triton-grpc-protocol-k"}
    assert guard.settings.forwarding is not None
    assert made().forwarding is None
    with pytest.raises(ConfigError, match="--grpc-restricted-protocol"):
        made(grpc_restricted_protocol=["nope:k=v"])
