"""Which path is which V2 route (SEMANTICS §2.1), as a pure function: whole paths only, versions of digits only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum, auto
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

from headrace.streams.access import Group

MAX_REMEMBERED = 512
"""Paths whose route is remembered: clients ask the same few again and again."""


class Kind(StrEnum):
    """The routes that this gateway knows. ABSENT ones are Triton's, and answered with 501."""

    SERVER = auto()
    LIVE = auto()
    READY = auto()
    MODEL = auto()
    MODEL_READY = auto()
    CONFIG = auto()
    INFER = auto()
    GENERATE = auto()
    GENERATE_STREAM = auto()
    INDEX = auto()
    CONTROL = auto()
    OPENAPI = auto()
    REQUEST = auto()
    ABSENT = auto()


GROUPS: Mapping[Kind, Group] = {
    Kind.SERVER: Group.METADATA,
    Kind.LIVE: Group.HEALTH,
    Kind.READY: Group.HEALTH,
    Kind.MODEL: Group.METADATA,
    Kind.MODEL_READY: Group.HEALTH,
    Kind.CONFIG: Group.MODEL_CONFIG,
    Kind.INFER: Group.INFERENCE,
    Kind.GENERATE: Group.INFERENCE,
    Kind.GENERATE_STREAM: Group.INFERENCE,
    Kind.INDEX: Group.MODEL_REPOSITORY,
    Kind.CONTROL: Group.MODEL_REPOSITORY,
    Kind.OPENAPI: Group.METADATA,
    Kind.REQUEST: Group.INFERENCE,
    Kind.ABSENT: Group.METADATA,
}
"""Which API group each kind of route belongs to: what it may be restricted with (SEMANTICS PB-22)."""


class Target(NamedTuple):
    """A route with the parts of its path.

    Attributes:
        kind: Which route.
        methods: The verbs that it takes.
        model: Model name, or ``""``.
        version: Digits, or ``""``.
        feature: For an ABSENT route, what it would be; for CONTROL, ``load`` or ``unload``; for REQUEST, its id.
    """

    kind: Kind
    methods: tuple[str, ...]
    model: str = ""
    version: str = ""
    feature: str = ""


_GET = ("GET",)
_POST = ("POST",)
_BOTH = ("GET", "POST")
_FETCH = ("GET", "DELETE")

_FIXED = {
    "/v2": Target(Kind.SERVER, _GET),
    "/v2/openapi.json": Target(Kind.OPENAPI, _GET),
    "/v2/health/live": Target(Kind.LIVE, _GET),
    "/v2/health/ready": Target(Kind.READY, _GET),
    "/v2/repository/index": Target(Kind.INDEX, _POST),
    "/v2/models/stats": Target(Kind.ABSENT, _GET, feature="the statistics extension"),
    "/v2/trace/setting": Target(Kind.ABSENT, _BOTH, feature="the trace extension"),
    "/v2/logging": Target(Kind.ABSENT, _BOTH, feature="the logging extension"),
}
_OF_MODEL = {
    "": (Kind.MODEL, _GET, ""),
    "ready": (Kind.MODEL_READY, _GET, ""),
    "config": (Kind.CONFIG, _GET, ""),
    "infer": (Kind.INFER, _POST, ""),
    "stats": (Kind.ABSENT, _GET, "the statistics extension"),
    "generate": (Kind.GENERATE, _POST, ""),
    "generate_stream": (Kind.GENERATE_STREAM, _POST, ""),
    "trace/setting": (Kind.ABSENT, _BOTH, "the trace extension"),
}
_SHARED_MEMORY_VERBS = {"status": _GET, "register": _POST, "unregister": _POST}
_SHARED_MEMORIES = ("systemsharedmemory", "cudasharedmemory")


def paths() -> Iterator[str]:
    """Yield every path that there is, as templates with ``{model}``, ``{version}``, ``{region}`` and ``{request}``.

    Forms that name a repository (PB-21) are left out: nobody offers them.
    """
    yield from _FIXED
    yield "/v2/requests/{request}"
    for root in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        for rest in _OF_MODEL:
            yield f"{root}/{rest}" if rest else root
    for verb in ("load", "unload"):
        yield f"/v2/repository/models/{{model}}/{verb}"
    for memory in _SHARED_MEMORIES:
        for verb in _SHARED_MEMORY_VERBS:
            yield f"/v2/{memory}/region/{{region}}/{verb}"
            if verb != "register":
                yield f"/v2/{memory}/{verb}"


@lru_cache(maxsize=MAX_REMEMBERED)
def resolve(path: str) -> Target | None:
    """Return the route of a path as it stands in the request line, None where there is none (SEMANTICS PB-20)."""
    path = path.partition("?")[0]
    fixed = _FIXED.get(path)
    if fixed is not None:
        return fixed
    if not path.startswith("/v2/"):
        return None
    parts = path[len("/v2/") :].split("/")
    if "" in parts:
        return None
    group = _FIRST_PARTS.get(parts[0])
    return group(parts[1:]) if group is not None else None


def _model_target(parts: list[str]) -> Target | None:
    if not parts:
        return None
    model, rest = unquote(parts[0]), parts[1:]
    version = ""
    if rest and rest[0] == "versions":
        if len(rest) < 2 or not (rest[1].isascii() and rest[1].isdigit()):
            return None
        version, rest = rest[1], rest[2:]
    found = _OF_MODEL.get("/".join(rest))
    if found is None:
        return None
    kind, methods, feature = found
    return Target(kind, methods, model, version, feature)


def _repository_target(parts: list[str]) -> Target | None:
    """``models/{m}/load`` and ``/unload``; forms with a repository's name parse, and are absent (PB-10, PB-21)."""
    if len(parts) == 3 and parts[0] == "models" and parts[2] in ("load", "unload"):
        return Target(Kind.CONTROL, _POST, unquote(parts[1]), feature=parts[2])
    named = "addressing a repository by name"
    if len(parts) == 2 and parts[1] == "index":
        return Target(Kind.ABSENT, _POST, feature=named)
    if len(parts) == 4 and parts[1] == "models" and parts[3] in ("load", "unload"):
        return Target(Kind.ABSENT, _POST, feature=named)
    return None


def _shared_memory_target(parts: list[str]) -> Target | None:
    rest = parts[2:] if len(parts) == 3 and parts[0] == "region" else parts
    if len(rest) != 1 or rest[0] not in _SHARED_MEMORY_VERBS:
        return None
    if rest[0] == "register" and len(parts) != 3:
        return None
    return Target(
        Kind.ABSENT, _SHARED_MEMORY_VERBS[rest[0]], feature="the shared memory extension"
    )


def _request_target(parts: list[str]) -> Target | None:
    """``requests/{id}``: a call that was accepted to be answered later. Not Triton's."""
    return Target(Kind.REQUEST, _FETCH, feature=parts[0]) if len(parts) == 1 else None


_FIRST_PARTS = {
    "requests": _request_target,
    "models": _model_target,
    "repository": _repository_target,
    **dict.fromkeys(_SHARED_MEMORIES, _shared_memory_target),
}
