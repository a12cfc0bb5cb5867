"""The settings of who may call a gateway, and of how much and how slowly; a part of `headrace.deploy.settings`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode

ACCESS: dict[str, Any] = {"panel": "Access to the gateway", "flag": False}
LIMITS: dict[str, Any] = {"panel": "Limits of callers", "flag": False}

Restrictions = Annotated[tuple[str, ...], NoDecode]
"""A repeatable option; one text with semicolons in the environment, since a value has commas."""


class AccessSettings(BaseSettings):
    """See `headrace.streams.access.Access`, `headrace.streams.tls.ServerTls` and `headrace.streams.http_call`."""

    http_restricted_api: Restrictions = Field(
        (),
        description="API groups that ask for a header, as <group>,<group>:<header>=<value>: health, metadata, "
        "inference, shared-memory, model-config, model-repository, statistics, trace, logging. May be given several "
        "times; in the environment with semicolons between.",
        json_schema_extra=ACCESS,
    )
    grpc_restricted_protocol: Restrictions = Field(
        (),
        description="The same over gRPC, where the header is called triton-grpc-protocol-<header>.",
        json_schema_extra=ACCESS,
    )
    auth_token_file: Path | None = Field(
        None,
        description="File of bearer tokens, one of which every call needs: a line is a token, name:token, or "
        "name:sha256:<hex digest of it>. A changed file holds from a second later on.",
        json_schema_extra=ACCESS,
    )
    auth_free_health: bool = Field(
        default=True,
        description="Answer health routes, readiness of models too, without a token; false asks for one there as well.",
        json_schema_extra=ACCESS,
    )
    http_server_cert: Path | None = Field(
        None,
        description="Certificate of the gateway, PEM with those in between: the V2 API is HTTPS then. Renewed files "
        "hold for new connections.",
        json_schema_extra=ACCESS,
    )
    http_server_key: Path | None = Field(
        None, description="Its private key, PEM without a password.", json_schema_extra=ACCESS
    )
    http_client_ca: Path | None = Field(
        None,
        description="Authorities, PEM, one of which must have signed every caller's certificate.",
        json_schema_extra=ACCESS,
    )
    http_header_forward_pattern: str = Field(
        "",
        description="Regular expression of headers that become request parameters; upper and lower case are the same.",
        json_schema_extra=ACCESS,
    )
    grpc_header_forward_pattern: str = Field(
        "", description="The same over gRPC.", json_schema_extra=ACCESS
    )
    http_max_connections: int = Field(
        4096,
        ge=1,
        description="Connections that may be open; a further one is answered 503 and closed.",
        json_schema_extra=LIMITS,
    )
    http_header_timeout_secs: float = Field(
        20.0,
        gt=0,
        description="Seconds that the TLS handshake of a new connection may take, over gRPC too, and then the head "
        "of its first request.",
        json_schema_extra=LIMITS,
    )
    http_body_timeout_secs: float = Field(
        60.0, gt=0, description="Seconds that a body may take to come.", json_schema_extra=LIMITS
    )
    http_write_timeout_secs: float = Field(
        60.0,
        gt=0,
        description="Seconds that a caller may take nothing of its answer before it is disconnected (Linux), or of a "
        "gRPC stream before that ends.",
        json_schema_extra=LIMITS,
    )
    http_keepalive_secs: float = Field(
        75.0,
        gt=0,
        description="Seconds that an idle connection is kept, and that a further request's head may take.",
        json_schema_extra=LIMITS,
    )
    http_max_line_bytes: int = Field(
        8190, ge=256, description="Longest request line, bytes.", json_schema_extra=LIMITS
    )
    http_max_header_bytes: int = Field(
        8190, ge=256, description="Longest header, bytes.", json_schema_extra=LIMITS
    )
    http_max_headers: int = Field(
        128, ge=16, description="Headers of a request.", json_schema_extra=LIMITS
    )

    @field_validator("http_restricted_api", "grpc_restricted_protocol", mode="before")
    @classmethod
    def _split_restrictions(cls, value: object) -> object:
        """Split one text at its semicolons: what the environment can carry."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(";") if part.strip())
        return value
