"""Where the gRPC server listens, and its bounds; as channel arguments of gRPC's core."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

from headrace.streams.forwarding import Forwarding
from headrace.streams.tls import ServerTls

DEFAULT_MAX_INPUT_BYTES = 64 * 1024 * 1024
"""As over HTTP (SEMANTICS PB-24); Triton itself takes up to 2 GiB over gRPC, and allocates them."""

DEFAULT_MAX_STREAM_REQUESTS = 256
"""Requests of one stream that may be open; above, no more are read, and the client is held up by HTTP/2 itself."""

DEFAULT_MAX_CONNECTIONS = 4096
"""As over HTTP; further connections are closed at once."""

Options: TypeAlias = list[tuple[str, int]]


class Compression(IntEnum):
    """Levels of ``--grpc-infer-response-compression-level``, numbered as gRPC's core numbers them."""

    NONE = 0
    LOW = 1
    MEDIUM = 2
    HIGH = 3


@dataclass(frozen=True, slots=True)
class GrpcKeepAlive:
    """Keep-alive of connections, by Triton's names and with its defaults; milliseconds where a time is meant."""

    time_ms: int = 7_200_000
    timeout_ms: int = 20_000
    permit_without_calls: bool = False
    max_pings_without_data: int = 2
    min_recv_ping_interval_without_data_ms: int = 300_000
    max_ping_strikes: int = 2
    max_connection_age_ms: int = 0
    max_connection_age_grace_ms: int = 0


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """Where the server listens, and its bounds.

    Attributes:
        address: Address to bind; loopback unless told.
        port: Port; 0 is any free one.
        reuse_port: Other processes may listen on it too, with the same setting.
        name: Server name in the server's metadata.
        max_input_bytes: Largest message that is taken.
        max_stream_requests: Requests of one stream that may be open.
        max_connections: Connections that may be open.
        handshake_timeout_s: How long a new connection may take until it speaks HTTP/2, over TLS or not.
        write_timeout_s: How long the client of a stream may take nothing in.
        drain_timeout_s: How long open calls may take on shutdown.
        compression: Of answers.
        keep_alive: Of connections.
        tls: None serves in the clear.
        forwarding: Which metadata become request parameters; None is none.
    """

    address: str = "127.0.0.1"
    port: int = 8001
    reuse_port: bool = False
    name: str = "headrace"
    max_input_bytes: int = DEFAULT_MAX_INPUT_BYTES
    max_stream_requests: int = DEFAULT_MAX_STREAM_REQUESTS
    max_connections: int = DEFAULT_MAX_CONNECTIONS
    handshake_timeout_s: float = 20.0
    write_timeout_s: float = 60.0
    drain_timeout_s: float = 30.0
    compression: Compression = Compression.NONE
    keep_alive: GrpcKeepAlive = field(default_factory=GrpcKeepAlive)
    tls: ServerTls | None = None
    forwarding: Forwarding | None = None


def channel_options(settings: GrpcSettings) -> Options:
    """Return the settings as channel arguments of gRPC's core."""
    alive = settings.keep_alive
    options: Options = [
        ("grpc.so_reuseport", int(settings.reuse_port)),
        ("grpc.max_receive_message_length", settings.max_input_bytes),
        (
            "grpc.max_send_message_length",
            -1,
        ),  # an answer is bounded by what a record or a store may hold
        ("grpc.max_allowed_incoming_connections", settings.max_connections),
        ("grpc.server_handshake_timeout_ms", int(settings.handshake_timeout_s * 1_000)),
        ("grpc.keepalive_time_ms", alive.time_ms),
        ("grpc.keepalive_timeout_ms", alive.timeout_ms),
        ("grpc.keepalive_permit_without_calls", int(alive.permit_without_calls)),
        ("grpc.http2.max_pings_without_data", alive.max_pings_without_data),
        (
            "grpc.http2.min_ping_interval_without_data_ms",
            alive.min_recv_ping_interval_without_data_ms,
        ),
        ("grpc.http2.max_ping_strikes", alive.max_ping_strikes),
    ]
    if alive.max_connection_age_ms:
        options.append(("grpc.max_connection_age_ms", alive.max_connection_age_ms))
    if alive.max_connection_age_grace_ms:
        options.append(("grpc.max_connection_age_grace_ms", alive.max_connection_age_grace_ms))
    if settings.compression:
        options.append(("grpc.default_compression_level", settings.compression.value))
    return options
