"""Every option of a serving process, declared once: from the command line, the environment or a file.

A field ``http_port`` is the option ``--http-port``, the variable ``HEADRACE_HTTP_PORT`` and the key ``http-port``
of a ``--config`` file, in this order of precedence. The command line's help, the checks and the defaults all come
from this declaration; nothing else in Headrace reads the environment for settings, but for ``HEADRACE_URL`` and
``HEADRACE_TOKEN`` of the commands that ask a gateway. What such a command shall do once (`infer`'s inputs,
``topics --create``) is declared with it and is no setting. Names are Triton's where Triton has the option, and
Kafka's where Kafka has it.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from headrace.deploy.setting_parts import SettingParts
from headrace.schemas.errors import ConfigError
from pydantic import Field, ValidationError, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

PREFIX = "HEADRACE_"
"""Of every environment variable."""

EMBEDDED_PORT = 9092
"""Kafka's own port, so that examples need no other."""

Words = Annotated[tuple[str, ...], NoDecode]
"""A repeatable option; one text with commas in the environment."""


def _panel(name: str, *, flag: bool = False) -> dict[str, Any]:
    return {"panel": name, "flag": flag}


REPOSITORY = _panel("Model repository")
BROKER = _panel("Kafka")
GATEWAY = _panel("Gateway")
WORKER = _panel("Worker")
PROCESS = _panel("Process")


class Settings(SettingParts):
    """The settings of one process, read once at its start and never changed."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, protected_namespaces=()
    )

    model_repository: Words = Field(
        (),
        description="Model repository, a local folder; may be given several times.",
        json_schema_extra=REPOSITORY,
    )
    model_control_mode: Literal["none"] = Field(
        "none",
        description="How models are loaded: none loads every model at the start.",
        json_schema_extra=REPOSITORY,
    )
    model_config_name: str = Field(
        "",
        description="Read configs/<name>.pbtxt of a model instead of its config.pbtxt where it exists.",
        json_schema_extra=REPOSITORY,
    )
    disable_auto_complete_config: bool = Field(
        default=False,
        description="Take configurations as they are written, without asking the model file.",
        json_schema_extra=_panel("Model repository", flag=True),
    )
    model_load_thread_count: int = Field(
        4, ge=1, description="Models that load at the same time.", json_schema_extra=REPOSITORY
    )
    model_load_retry_count: int = Field(
        0,
        ge=0,
        description="Times that a failed load is tried again.",
        json_schema_extra=REPOSITORY,
    )
    default_max_batch_size: int = Field(
        4,
        ge=1,
        description="Rows per batch that auto-complete chooses for a model that can batch and says nothing.",
        json_schema_extra=REPOSITORY,
    )
    exit_on_error: bool = Field(
        default=True,
        description="Refuse to start when a model does not load; false serves the others.",
        json_schema_extra=REPOSITORY,
    )
    strict_readiness: bool = Field(
        default=True,
        description="Ready only when every model is; false is ready once the process answers.",
        json_schema_extra=REPOSITORY,
    )
    bootstrap_servers: str = Field(
        "",
        description="Kafka brokers, host:port with commas between; none starts the embedded broker.",
        json_schema_extra=BROKER,
    )
    kafka_config: Path | None = Field(
        None,
        description="File with Kafka's own client properties (bootstrap.servers, security.protocol, …).",
        json_schema_extra=BROKER,
    )
    broker_port: int = Field(
        EMBEDDED_PORT,
        ge=0,
        le=65535,
        description="Port of the embedded broker; another free one is taken where the default is not free.",
        json_schema_extra=BROKER,
    )
    topic_prefix: str = Field(
        "headrace", description="First part of every topic name.", json_schema_extra=BROKER
    )
    mapping: Words = Field(
        (),
        description="Serve a model from a topic of yours, MODEL=FILE with a mapping file (headrace map); may be given "
        "several times.",
        json_schema_extra=WORKER,
    )
    partitions: int = Field(
        4, ge=1, description="Partitions of topics that are created.", json_schema_extra=BROKER
    )
    http_address: str = Field(
        "127.0.0.1",
        description="Address to listen on; 0.0.0.0 is every interface, which a container needs.",
        json_schema_extra=PROCESS,
    )
    http_port: int = Field(
        8000,
        ge=0,
        le=65535,
        description="Port of the gateway's V2 API.",
        json_schema_extra=GATEWAY,
    )
    reuse_http_port: bool = Field(
        default=False,
        description="Let several gateways on one machine listen on the same HTTP port, all with this option.",
        json_schema_extra=GATEWAY,
    )
    metrics_port: int = Field(
        8002,
        ge=0,
        le=65535,
        description="Port of the gateway's metrics.",
        json_schema_extra=GATEWAY,
    )
    worker_port: int = Field(
        8003,
        ge=0,
        le=65535,
        description="Port of the worker's health and metrics.",
        json_schema_extra=WORKER,
    )
    allow_metrics: bool = Field(
        default=True, description="Offer Prometheus metrics.", json_schema_extra=PROCESS
    )
    http_max_input_size: int = Field(
        64 * 2**20,
        ge=1,
        description="Largest request body, bytes.",
        json_schema_extra=GATEWAY,
    )
    http_timeout_ms: int = Field(
        60_000,
        ge=1,
        description="Milliseconds that a call waits which names no deadline of its own (X-Headrace-Timeout-Ms).",
        json_schema_extra=GATEWAY,
    )
    allow_reply_topics: Words = Field(
        (),
        description="Pattern of topics that a record's reply-topic may name, or a call's X-Headrace-Reply-Topic, such "
        "as 'orders.*'; besides those with the topic prefix. May be given several times.",
        json_schema_extra=BROKER,
    )
    worker_id: str = Field(
        "",
        description="Name of this worker, unique in the fleet; none makes one of host and process.",
        json_schema_extra=WORKER,
    )
    group_instance_id: str = Field(
        "",
        description="Kafka's group.instance.id: a restart within the session keeps its partitions.",
        json_schema_extra=WORKER,
    )
    max_queued_records: int = Field(
        4096,
        ge=1,
        description="Records of a model that may be admitted and unanswered; above, polling pauses. Of a sequence "
        "model that declares its state, a partition pauses at its share of them, or at two polls if that is more.",
        json_schema_extra=WORKER,
    )
    max_queued_bytes: int = Field(
        256 * 2**20,
        ge=1,
        description="The same in bytes of their values.",
        json_schema_extra=WORKER,
    )
    max_partition_span: int = Field(
        10_000,
        ge=1,
        description="Offsets between the oldest unfinished record of a partition and the newest; "
        "above --max-poll-records where a model with sequences keeps memory of its own.",
        json_schema_extra=WORKER,
    )
    max_poll_records: int = Field(
        512, ge=1, description="Records of one poll.", json_schema_extra=WORKER
    )
    settle_interval_ms: float = Field(
        5.0,
        ge=0,
        description="Milliseconds that answers gather before they are published.",
        json_schema_extra=WORKER,
    )
    settle_backlog_interval_ms: float = Field(
        25.0,
        ge=0,
        description="The same while more requests wait than the instances can take at once.",
        json_schema_extra=WORKER,
    )
    delivery: Literal["at_least_once", "exactly_once"] = Field(
        "at_least_once",
        description="Guarantee of the answers; exactly_once needs Apache Kafka 4.0 or newer, and readers with "
        "isolation.level=read_committed. A model's parameter delivery goes before it.",
        json_schema_extra=WORKER,
    )
    transaction_interval_ms: float = Field(
        100.0,
        ge=0,
        description="Milliseconds that answers which nobody awaits gather for a transaction of exactly_once.",
        json_schema_extra=WORKER,
    )
    commit_interval_ms: int = Field(
        500,
        ge=0,
        description="Milliseconds between two commits of a partition at least, each with snapshots of the sequences "
        "that moved on; 0 commits at each settle. A crash repeats the answers of so long.",
        json_schema_extra=WORKER,
    )
    revoke_grace_secs: float = Field(
        10.0,
        ge=0,
        description="Seconds that a revoked partition's executing batches are waited for.",
        json_schema_extra=WORKER,
    )
    worker_advertised_url: str = Field(
        "",
        description="Where other machines reach the worker's port, such as http://10.0.0.7:8003; none is made "
        "of --http-address and --worker-port, with the host's name for an address that is every interface.",
        json_schema_extra=WORKER,
    )
    max_live_sequences: int = Field(
        200_000,
        ge=1,
        description="Sequences of a model that may have started and not ended; above, a START is answered queue_full.",
        json_schema_extra=WORKER,
    )
    max_backlogged_sequences: int = Field(
        1024,
        ge=1,
        description="Sequences of a partition that may wait for a slot where the model keeps memory of its own, "
        "which cannot be parked; above, a START is answered queue_full.",
        json_schema_extra=WORKER,
    )
    max_ended_sequences: int = Field(
        50_000,
        ge=1,
        description="Ended or expired sequences of a partition that are remembered; above, the oldest are forgotten.",
        json_schema_extra=WORKER,
    )
    ended_ttl_secs: float = Field(
        3600.0,
        ge=0,
        description="Seconds that an ended or expired sequence is remembered.",
        json_schema_extra=WORKER,
    )
    snapshot_every: int = Field(
        0,
        ge=0,
        description="Snapshot a sequence after this many of its steps, beside each commit; 0 is with commits only. "
        "A model's parameter snapshot_every goes before it.",
        json_schema_extra=WORKER,
    )
    sequence_skew_secs: float = Field(
        5.0,
        ge=0,
        description="Seconds that this machine's clock and the brokers' may differ: a silent sequence is freed "
        "this much after its idle limit.",
        json_schema_extra=WORKER,
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe log line to write.", json_schema_extra=PROCESS
    )
    config: Path | None = Field(
        None,
        description="TOML file with any of these options; unknown keys are refused.",
        json_schema_extra=PROCESS,
    )

    @field_validator("model_repository", "allow_reply_topics", "mapping", mode="before")
    @classmethod
    def _split_words(cls, value: object) -> object:
        """Split one text at its commas: what the environment can carry."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("worker_advertised_url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        """Take the root of an HTTP URL, without the slash at its end."""
        found = urlsplit(value)
        if value and not (
            found.scheme in ("http", "https") and found.hostname and found.path in ("", "/")
        ):
            raise ValueError("expected the root of a URL, such as http://10.0.0.7:8003")
        return value.rstrip("/")


def option_name(field: str) -> str:
    """Return a field's name as the command line spells it."""
    return "--" + field.replace("_", "-")


def variable_name(field: str) -> str:
    """Return a field's name as the environment spells it."""
    return PREFIX + field.upper()


def load_settings(given: Mapping[str, object]) -> Settings:
    """Read the settings: what the command line gave, then the environment, then the ``config`` file.

    Args:
        given: Field → value from the command line; only what was really given.

    Raises:
        ConfigError: A value is not what the field takes, the file cannot be read, or it has an unknown key (the
            sentence suggests the nearest one).
    """
    present = {name.upper() for name in os.environ}
    path = given.get("config") or os.environ.get(variable_name("config"))
    from_file = _read_file(Path(str(path))) if path else {}
    values: dict[str, object] = {
        field: value for field, value in from_file.items() if variable_name(field) not in present
    }
    values.update(given)
    try:
        return Settings(**values)  # type: ignore[arg-type]  # checked field by field by pydantic
    except ValidationError as exc:
        raise _first_error(exc, given, from_file, str(path)) from exc


def _read_file(path: Path) -> dict[str, object]:
    """Read a TOML file of options, spelled with hyphens or underscores."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(
            f"the file cannot be read: {exc.strerror}", field="--config", value=path
        ) from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"expected TOML: {exc}", file=str(path)) from exc
    values: dict[str, object] = {}
    known = [field.replace("_", "-") for field in Settings.model_fields if field != "config"]
    for key, value in table.items():
        spelled = key.replace("_", "-")
        if spelled not in known:
            near = difflib.get_close_matches(spelled, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
            raise ConfigError(f"there is no such setting, {hint}", file=str(path), field=key)
        values[spelled.replace("-", "_")] = value
    return values


def _first_error(
    error: ValidationError,
    given: Mapping[str, object],
    from_file: Mapping[str, object],
    path: str,
) -> ConfigError:
    """Turn pydantic's first complaint into our sentence, named as the user wrote the setting."""
    first = error.errors()[0]
    field = str(first["loc"][0])
    detail = first["msg"].replace("Input should be", "expected").replace("Value error, ", "")
    if field == "model_control_mode":
        detail = "expected none; loading and unloading at run time are not offered yet"
    value = first["input"]
    if field in given:
        return ConfigError(detail, field=option_name(field), value=value)
    if field in from_file and variable_name(field) not in os.environ:
        return ConfigError(detail, file=path, field=field.replace("_", "-"), value=value)
    return ConfigError(detail, field=variable_name(field), value=value)
