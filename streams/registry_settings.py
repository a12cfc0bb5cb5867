"""A Schema Registry's connection by Confluent's own option names, as they stand in a Java client's properties.

Each may have the prefix ``schema.registry.``; ``basic.auth.…``, ``bearer.auth.…`` and what begins with
``schema.registry.`` are understood among a Kafka client's properties, too (`registry_properties` takes them out).
Secrets come in here and go nowhere but to the client: no error, repr or log line shows one.
"""

from __future__ import annotations

import difflib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from headrace.schemas.errors import ConfigError
from headrace.streams.kafka_names import SECURITY, whole
from headrace.streams.kafka_security import tls_context

PREFIX = "schema.registry."
URL = "schema.registry.url"
SECRETS = ("basic.auth.", "bearer.auth.")
"""Begins of names that Confluent's clients take without the prefix, too."""

PEM_NAMES = frozenset(name for name in SECURITY if name.startswith("ssl."))
OURS = frozenset(
    {
        "auto.register.schemas",
        "basic.auth.credentials.source",
        "basic.auth.user.info",
        "bearer.auth.credentials.source",
        "bearer.auth.token",
        "cache.capacity",
        "http.read.timeout.ms",
        "max.retries",
        "retries.max.wait.ms",
        "retries.wait.ms",
        "url",
        *PEM_NAMES,
    }
)


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """Where a Schema Registry is, who we are there, and within which bounds it is asked.

    Attributes:
        urls: Base URLs without a slash at their end, asked in turn where one fails (``url``, separated by commas).
        user: For basic authentication, ``""`` is none (``basic.auth.user.info``, ``user:password``).
        password: Beside it.
        token: For bearer authentication, ``""`` is none (``bearer.auth.token``).
        tls: How servers of https URLs are verified, and our own certificate; None is the system's default.
        registers: Schemas of results are registered; else they must be there (``auto.register.schemas``).
        timeout_s: Of one request, seconds (``http.read.timeout.ms``).
        max_retries: How often a request that failed is made again before it is given up (``max.retries``).
        wait_s: First pause before that, doubling, seconds (``retries.wait.ms``).
        max_wait_s: Longest pause (``retries.max.wait.ms``).
        max_schemas: Schemas that are remembered, those asked for last (``cache.capacity``).
        max_connections: Requests at once.
        max_bytes: Longest answer, bytes.
    """

    urls: tuple[str, ...]
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    registers: bool = True
    timeout_s: float = 10.0
    max_retries: int = 3
    wait_s: float = 0.2
    max_wait_s: float = 5.0
    max_schemas: int = 1000
    max_connections: int = 8
    max_bytes: int = 8 * 2**20


def registry_properties(properties: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Part a client's properties.

    Returns:
        Those of its Schema Registry, without the prefix, and the others: Kafka's own. A name with the prefix goes
        before one without.
    """
    registry, kafka = dict[str, str](), dict[str, str]()
    for name, value in properties.items():
        if name.startswith(PREFIX):
            registry[name.removeprefix(PREFIX)] = value
        elif not name.startswith(SECRETS):
            kafka[name] = value
    for name, value in properties.items():
        if name.startswith(SECRETS):
            registry.setdefault(name, value)
    return registry, kafka


def registry_settings(
    properties: Mapping[str, str],
    *,
    sasl: tuple[str, str] | None = None,
    file: str = "",
) -> RegistrySettings:
    """Read the properties of a Schema Registry, without the prefix (see `registry_properties`).

    Args:
        properties: By Confluent's names; ``url`` is required.
        sasl: User and password at Kafka, for ``basic.auth.credentials.source`` = SASL_INHERIT.
        file: Where they stand, for errors.

    Raises:
        ConfigError: A name is unknown, a value malformed, or parts do not fit together.
    """
    for name in properties:
        if name not in OURS:
            near = difflib.get_close_matches(name, sorted(OURS), 1)
            hint = f"; did you mean {PREFIX}{near[0]}?" if near else ""
            raise _wrong(f"is no option of a Schema Registry here{hint}", name, file)
    urls, written = _urls(properties.get("url", ""), file)
    user, password = _basic(properties, written, sasl, file)
    token = _bearer(properties, file)
    if user and token:
        raise _wrong("expected either basic.auth.… or bearer.auth.…", "bearer.auth.token", file)
    tls = None
    if any(name in properties for name in PEM_NAMES):
        try:
            tls = tls_context(properties, file)
        except ConfigError as exc:
            raise _wrong(exc.expected, exc.field, file, exc.value) from exc
    return RegistrySettings(
        urls,
        user,
        password,
        token,
        tls,
        registers=_truth(properties, "auto.register.schemas", file),
        timeout_s=_number(properties, "http.read.timeout.ms", 10_000, file) / 1000,
        max_retries=_number(properties, "max.retries", 3, file),
        wait_s=_number(properties, "retries.wait.ms", 200, file) / 1000,
        max_wait_s=_number(properties, "retries.max.wait.ms", 5000, file) / 1000,
        max_schemas=max(1, _number(properties, "cache.capacity", 1000, file)),
    )


def _urls(text: str, file: str) -> tuple[tuple[str, ...], tuple[str, str] | None]:
    """Return the URLs without user and password, and the first of these that are written in one."""
    found: list[str] = []
    written: tuple[str, str] | None = None
    for url in filter(None, (part.strip() for part in text.split(","))):
        try:
            parts = urlsplit(url)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname)
        except ValueError:
            is_url = False
        if not is_url:
            raise _wrong("expected http://host:port or https://host:port", "url", file)
        if parts.username is not None and written is None:
            written = (unquote(parts.username), unquote(parts.password or ""))
        host = parts.netloc.rpartition("@")[2]
        found.append(f"{parts.scheme}://{host}{parts.path.rstrip('/')}")
    if not found:
        raise _wrong("name the Schema Registry as http://host:port", "url", file)
    return tuple(found), written


def _basic(
    properties: Mapping[str, str],
    written: tuple[str, str] | None,
    sasl: tuple[str, str] | None,
    file: str,
) -> tuple[str, str]:
    """Return user and password, ``""`` for none."""
    name = "basic.auth.user.info"
    info = properties.get(name)
    # Java's default is the URL; whoever gives user and password means them.
    source = properties.get("basic.auth.credentials.source", "USER_INFO" if info else "URL")
    match source:
        case "USER_INFO":
            user, colon, password = (info or "").partition(":")
            if not user or not colon:
                raise _wrong("expected user:password", name, file)
            return user, password
        case "SASL_INHERIT":
            if sasl is None:
                raise _wrong(
                    "takes user and password of Kafka's own, and there are none",
                    "basic.auth.credentials.source",
                    file,
                    source,
                )
            return sasl
        case "URL":
            return written or ("", "")
    raise _wrong(
        "expected USER_INFO, URL or SASL_INHERIT", "basic.auth.credentials.source", file, source
    )


def _bearer(properties: Mapping[str, str], file: str) -> str:
    name = "bearer.auth.credentials.source"
    token = properties.get("bearer.auth.token", "")
    if (source := properties.get(name, "STATIC_TOKEN")) != "STATIC_TOKEN":
        raise _wrong("expected STATIC_TOKEN", name, file, source)
    if name in properties and not token:
        raise _wrong("expected a token", "bearer.auth.token", file)
    return token


def _number(properties: Mapping[str, str], name: str, default: int, file: str) -> int:
    text = properties.get(name, str(default)).strip()
    try:
        return int(str(whole(text)))
    except ValueError as exc:
        raise _wrong("expected a whole number, 0 or more", name, file, text) from exc


def _truth(properties: Mapping[str, str], name: str, file: str) -> bool:
    text = properties.get(name, "true").strip()
    if text.lower() not in ("true", "false"):
        raise _wrong("expected true or false", name, file, text)
    return text.lower() == "true"


def _wrong(expected: str, name: str, file: str, value: str = "") -> ConfigError:
    return ConfigError(expected, file=file, field=PREFIX + name, value=value)
