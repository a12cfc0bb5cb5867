"""Which path is which V2 route (SEMANTICS §2.1), as a pure function: whole paths only, versions of digits only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum, auto
from functools import lru_cache, partial
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
    STATISTICS = auto()
    TRACE = auto()
    LOGGING = auto()
    SYSTEM_SHARED_MEMORY = auto()
    CUDA_SHARED_MEMORY = auto()
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
    Kind.STATISTICS: Group.STATISTICS,
    Kind.TRACE: Group.TRACE,
    Kind.LOGGING: Group.LOGGING,
    Kind.SYSTEM_SHARED_MEMORY: Group.SHARED_MEMORY,
    Kind.CUDA_SHARED_MEMORY: Group.SHARED_MEMORY,
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
        feature: For an ABSENT route, what it would be; for CONTROL, ``load`` or ``unload``; for REQUEST, its id; for
            shared memory, ``status``, ``register`` or ``unregister``.
        region: Region of shared memory, or ``""``.
    """

    kind: Kind
    methods: tuple[str, ...]
    model: str = ""
    version: str = ""
    feature: str = ""
    region: str = ""


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
    "/v2/models/stats": Target(Kind.STATISTICS, _GET),
    "/v2/trace/setting": Target(Kind.TRACE, _BOTH),
    "/v2/logging": Target(Kind.LOGGING, _BOTH),
}
_OF_MODEL = {
    "": (Kind.MODEL, _GET, ""),
    "ready": (Kind.MODEL_READY, _GET, ""),
    "config": (Kind.CONFIG, _GET, ""),
    "infer": (Kind.INFER, _POST, ""),
    "stats": (Kind.STATISTICS, _GET, ""),
    "generate": (Kind.GENERATE, _POST, ""),
    "generate_stream": (Kind.GENERATE_STREAM, _POST, ""),
    "trace/setting": (Kind.TRACE, _BOTH, ""),
}
_SHARED_MEMORY_VERBS = {"status": _GET, "register": _POST, "unregister": _POST}
_SHARED_MEMORIES = {
    "systemsharedmemory": Kind.SYSTEM_SHARED_MEMORY,
    "cudasharedmemory": Kind.CUDA_SHARED_MEMORY,
}


def paths() -> Iterator[str]:
    """Yield every path that there is, as templates with ``{model}``, ``{version}``, ``{region}`` and ``{request}``.

    Forms that name a repository (PB-21) are left out: nobody offers them.
    """
    yield from _FIXED
    yield "/v2/requests/{request}"
    for root in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        for rest, (kind, _, _) in _OF_MODEL.items():
            if kind is not Kind.TRACE or "{version}" not in root:
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
    if kind is Kind.TRACE and version:
        return None  # settings are a model's, not a version's
    return Target(kind, methods, model, version, feature)


def _repository_target(parts: list[str]) -> Target | None:
    """``models/{m}/load`` and ``/unload``; with a repository's name these are absent (PB-10, PB-21).

    The index has a form with a name, too, which says nothing: Triton answers as without it.
    """
    if len(parts) == 3 and parts[0] == "models" and parts[2] in ("load", "unload"):
        return Target(Kind.CONTROL, _POST, unquote(parts[1]), feature=parts[2])
    named = "addressing a repository by name"
    if len(parts) == 2 and parts[1] == "index":
        return Target(Kind.INDEX, _POST)
    if len(parts) == 4 and parts[1] == "models" and parts[3] in ("load", "unload"):
        return Target(Kind.ABSENT, _POST, feature=named)
    return None


def _shared_memory_target(kind: Kind, parts: list[str]) -> Target | None:
    """``status``, ``unregister``, and with ``region/{r}`` before it also ``register`` (PB-13)."""
    region, rest = "", parts
    if len(parts) == 3 and parts[0] == "region":
        region, rest = unquote(parts[1]), parts[2:]
    if len(rest) != 1 or rest[0] not in _SHARED_MEMORY_VERBS:
        return None
    if rest[0] == "register" and not region:
        return None
    return Target(kind, _SHARED_MEMORY_VERBS[rest[0]], feature=rest[0], region=region)


def _request_target(parts: list[str]) -> Target | None:
    """``requests/{id}``: a call that was accepted to be answered later. Not Triton's."""
    return Target(Kind.REQUEST, _FETCH, feature=parts[0]) if len(parts) == 1 else None


_FIRST_PARTS: Mapping[str, Callable[[list[str]], Target | None]] = {
    "requests": _request_target,
    "models": _model_target,
    "repository": _repository_target,
    **{name: partial(_shared_memory_target, kind) for name, kind in _SHARED_MEMORIES.items()},
}
