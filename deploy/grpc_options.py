"""The settings of the gateway's gRPC server, by Triton's names; a part of `headrace.deploy.settings`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from headrace.streams.grpc_settings import (
    DEFAULT_MAX_CONNECTIONS,
    DEFAULT_MAX_INPUT_BYTES,
    DEFAULT_MAX_STREAM_REQUESTS,
)
from pydantic import Field
from pydantic_settings import BaseSettings

GATEWAY: dict[str, Any] = {"panel": "Gateway: gRPC", "flag": False}
MAX_INT = 2**31 - 1

GRPC = (
    "grpc_restricted_protocol",
    "grpc_header_forward_pattern",
    "allow_grpc",
    "grpc_port",
    "grpc_address",
    "reuse_grpc_port",
    "grpc_max_input_size",
    "grpc_max_stream_requests",
    "grpc_max_connections",
    "grpc_infer_response_compression_level",
    "grpc_use_ssl",
    "grpc_use_ssl_mutual",
    "grpc_server_cert",
    "grpc_server_key",
    "grpc_root_cert",
    "grpc_keepalive_time",
    "grpc_keepalive_timeout",
    "grpc_keepalive_permit_without_calls",
    "grpc_http2_max_pings_without_data",
    "grpc_http2_min_recv_ping_interval_without_data",
    "grpc_http2_max_ping_strikes",
    "grpc_max_connection_age",
    "grpc_max_connection_age_grace",
)
"""The options of a command that runs a gateway."""


class GrpcOptions(BaseSettings):
    """See `headrace.streams.grpc_settings.GrpcSettings`, which `headrace.deploy.grpc_guard` makes of them."""

    allow_http: bool = Field(
        default=True, description="Offer V2 over HTTP.", json_schema_extra={"panel": "Gateway"}
    )
    allow_grpc: bool = Field(
        default=True, description="Offer V2 over gRPC.", json_schema_extra=GATEWAY
    )
    grpc_port: int = Field(
        8001, ge=0, le=65535, description="Port of V2 over gRPC.", json_schema_extra=GATEWAY
    )
    grpc_address: str = Field(
        "",
        description="Address that gRPC listens on; none is that of --http-address.",
        json_schema_extra=GATEWAY,
    )
    reuse_grpc_port: bool = Field(
        default=False,
        description="Let several gateways on one machine listen on the same gRPC port, all with this option.",
        json_schema_extra=GATEWAY,
    )
    grpc_max_input_size: int = Field(
        DEFAULT_MAX_INPUT_BYTES,
        ge=1,
        le=MAX_INT,
        description="Largest gRPC message that is taken, bytes.",
        json_schema_extra=GATEWAY,
    )
    grpc_max_stream_requests: int = Field(
        DEFAULT_MAX_STREAM_REQUESTS,
        ge=1,
        description="Requests of one ModelStreamInfer that may be open; above, no more are read until some have ended.",
        json_schema_extra=GATEWAY,
    )
    grpc_max_connections: int = Field(
        DEFAULT_MAX_CONNECTIONS,
        ge=1,
        le=MAX_INT,
        description="gRPC connections that may be open; a further one is closed at once.",
        json_schema_extra=GATEWAY,
    )
    grpc_infer_response_compression_level: Literal["none", "low", "medium", "high"] = Field(
        "none",
        description="Compression of answers, by an algorithm that the client takes.",
        json_schema_extra=GATEWAY,
    )
    grpc_use_ssl: bool = Field(
        default=False, description="Serve gRPC over TLS.", json_schema_extra=GATEWAY
    )
    grpc_use_ssl_mutual: bool = Field(
        default=False,
        description="Serve gRPC over TLS to clients that show a certificate.",
        json_schema_extra=GATEWAY,
    )
    grpc_server_cert: Path | None = Field(
        None, description="PEM file of the server's certificate.", json_schema_extra=GATEWAY
    )
    grpc_server_key: Path | None = Field(
        None, description="PEM file of the server's key.", json_schema_extra=GATEWAY
    )
    grpc_root_cert: Path | None = Field(
        None,
        description="PEM file of the authorities that may have signed a client's certificate.",
        json_schema_extra=GATEWAY,
    )
    grpc_keepalive_time: int = Field(
        7_200_000,
        ge=1,
        le=MAX_INT,
        description="Milliseconds without traffic after which a client is pinged.",
        json_schema_extra=GATEWAY,
    )
    grpc_keepalive_timeout: int = Field(
        20_000,
        ge=1,
        le=MAX_INT,
        description="Milliseconds that a ping's answer may take; then the connection is closed.",
        json_schema_extra=GATEWAY,
    )
    grpc_keepalive_permit_without_calls: bool = Field(
        default=False,
        description="Ping clients that have no call open, too.",
        json_schema_extra=GATEWAY,
    )
    grpc_http2_max_pings_without_data: int = Field(
        2,
        ge=0,
        le=MAX_INT,
        description="Pings that are sent while no data is; 0 is any number.",
        json_schema_extra=GATEWAY,
    )
    grpc_http2_min_recv_ping_interval_without_data: int = Field(
        300_000,
        ge=0,
        le=MAX_INT,
        description="Milliseconds that must be between a client's pings while no data is sent; sooner is a strike.",
        json_schema_extra=GATEWAY,
    )
    grpc_http2_max_ping_strikes: int = Field(
        2,
        ge=0,
        le=MAX_INT,
        description="Strikes after which a connection is closed; 0 is any number.",
        json_schema_extra=GATEWAY,
    )
    grpc_max_connection_age: int = Field(
        0,
        ge=0,
        le=MAX_INT,
        description="Milliseconds after which a connection is told to end, so that clients spread anew; 0 is never.",
        json_schema_extra=GATEWAY,
    )
    grpc_max_connection_age_grace: int = Field(
        0,
        ge=0,
        le=MAX_INT,
        description="Milliseconds that its calls may then still take; 0 is any time.",
        json_schema_extra=GATEWAY,
    )
