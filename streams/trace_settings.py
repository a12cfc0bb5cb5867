"""Triton's trace settings: global ones and each model's own, who is sampled, and what is written (SEMANTICS PB-73).

A model mirrors the global settings but for what was set for itself; null takes a model's value back to the global one,
and a global one back to what the process was started with. Every change begins the count of requests anew and writes
what had gathered, as Triton does. What a gateway can know of a request is traced: when it came, was asked, was
answered and sent. TENSORS and OpenTelemetry are refused, for a setting that is taken must work.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeAlias

from headrace.schemas.errors import InvalidRequest, MalformedRequest, Unsupported

TIMESTAMPS = "TIMESTAMPS"
OFF = "OFF"
MODE = "triton"

MAX_WHOLE = 2**32 - 1
MAX_COUNT = 2**31 - 1

MAX_GATHERED = 1_000
"""Traces that gather in memory before they are written, where ``log_frequency`` is 0 or above it."""

Given: TypeAlias = Mapping[str, object]
"""Names of settings → values as JSON has them: strings, a list of strings for ``trace_level``, None to clear."""


class TraceWriter(Protocol):
    """Writes traces: `headrace.streams.trace_file.TraceFile`."""

    def append(self, text: str) -> None:
        """Add items of a JSON array, with commas between them, to the file itself."""

    def write_next(self, text: str) -> None:
        """Write them as an array to a file of their own, which gets the next number behind its name."""


@dataclass(frozen=True, slots=True)
class TraceSetting:
    """What is traced.

    Attributes:
        is_on: Level TIMESTAMPS; else OFF.
        rate: Every so many requests one is traced; 0 none.
        count: Traces that are still to be collected; -1 is no end.
        log_frequency: Traces that are written together to a numbered file; 0 is one file for all.
    """

    is_on: bool = False
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0


@dataclass(slots=True)
class _Sampler:
    """A setting at work: whose turn it is, and what has gathered."""

    setting: TraceSetting
    left: int
    seen: int = 0
    gathered: list[str] = field(default_factory=list)
    is_replaced: bool = False


class Trace:
    """The trace of one request: mark what happens, then `end` it, whatever became of the request.

    Attributes:
        version: The version that answered, ``""`` where none did.
        request_id: The caller's own, or ``""``.
    """

    __slots__ = ("_model", "_number", "_times", "_write", "request_id", "version")

    def __init__(self, number: int, model: str, write: Callable[[str], None]) -> None:
        """Made by `TraceSettings.start`; ``write`` gets the items of the trace file."""
        self.version = self.request_id = ""
        self._number = number
        self._model = model
        self._write = write
        self._times: list[tuple[str, int]] = []

    def mark(self, activity: str, at_ns: int | None = None) -> None:
        """Note that something happens, such as ``REQUEST_START``; now, unless a monotonic time is given, ns."""
        self._times.append((activity, time.monotonic_ns() if at_ns is None else at_ns))

    def end(self) -> None:
        """Have it written."""
        head: dict[str, object] = {
            "id": self._number,
            "model_name": self._model,
            "model_version": int(self.version) if self.version.isdecimal() else -1,
        }
        if self.request_id:
            head["request_id"] = self.request_id
        items: list[object] = [head]
        items += [
            {"id": self._number, "timestamps": [{"name": name, "ns": ns}]}
            for name, ns in self._times
        ]
        self._write(",".join(json.dumps(item, separators=(",", ":")) for item in items))


_UNSEEN = Trace(0, "", lambda _: None)
"""Of a request whose turn it is not."""


class TraceSettings:
    """The settings of one gateway; HTTP and gRPC ask the same object."""

    def __init__(
        self,
        initial: TraceSetting = TraceSetting(),  # frozen
        *,
        path: str = "",
        writer: TraceWriter | None = None,
    ) -> None:
        """Begin with what the process was started with.

        Args:
            initial: The settings.
            path: Name of the trace file, as it is shown; ``""`` is none, and then nothing can be traced.
            writer: Writes to it; None where there is none.

        Raises:
            InvalidRequest: The initial settings cannot be.
        """
        self._initial = initial
        self._path = path
        self._writer = writer
        self._numbers = itertools.count(1)
        _check(initial, path)
        self._global = _Sampler(initial, initial.count)
        self._global_given: dict[str, bool | int] = {}
        self._models: dict[str, _Sampler] = {}
        self._given: dict[str, dict[str, bool | int]] = {}
        self._is_idle = not initial.is_on

    def shown(self, model: str = "") -> dict[str, object]:
        """Return a model's settings as V2 JSON has them, or with ``""`` the global ones; all numbers are texts."""
        sampler = self._models.get(model, self._global)
        setting = sampler.setting
        return {
            "trace_level": [TIMESTAMPS if setting.is_on else OFF],
            "trace_rate": str(setting.rate),
            "trace_count": str(sampler.left),
            "log_frequency": str(setting.log_frequency),
            "trace_file": self._path,
            "trace_mode": MODE,
        }

    def update(self, given: Given, model: str = "") -> None:
        """Change settings, all of them or none; those that are not named keep their value.

        Args:
            given: See `Given`; unknown names are ignored.
            model: Whose settings, a model that is known; ``""`` changes the global ones, and with them those of models
                that mirror them.

        Raises:
            Unsupported: ``trace_file``, a level or a mode that is not offered.
            InvalidRequest: A value cannot be.
            MalformedRequest: A value is of the wrong JSON type.
        """
        changes = _changes(given)
        if model:
            own = _merged(self._given.get(model, {}), changes)
            setting = _with(self._global.setting, own)
            _check(setting, self._path)
            self._replace_model(model, own, setting)
        else:
            own = _merged(self._global_given, changes)
            setting = _with(self._initial, own)
            _check(setting, self._path)
            mirrors = {name: _with(setting, theirs) for name, theirs in self._given.items()}
            for mirror in mirrors.values():
                _check(mirror, self._path)
            self._global_given = own
            self._retire(self._global)
            self._global = _Sampler(setting, setting.count)
            for name, mirror in mirrors.items():
                self._replace_model(name, self._given[name], mirror)
        samplers = [self._global, *self._models.values()]
        self._is_idle = not any(sampler.setting.is_on for sampler in samplers)

    @property
    def is_idle(self) -> bool:
        """Whether no request is traced, whatever its model."""
        return self._is_idle

    def start(self, model: str) -> Trace | None:
        """Begin a request's trace, where it is its turn."""
        if self._is_idle:
            return None
        sampler = self._models.get(model, self._global)
        if not sampler.setting.is_on or not sampler.left or not sampler.setting.rate:
            return None
        sampler.seen += 1
        if sampler.seen % sampler.setting.rate:
            return None
        if sampler.left > 0:
            sampler.left -= 1
        return Trace(next(self._numbers), model, partial(self._collect, sampler))

    @contextmanager
    def request(self, model: str, request_id: str) -> Iterator[Trace]:
        """Trace a request while the block runs, where it is its turn: of it is known when it began, and when it ended.

        The block sets the trace's ``version``, also where nobody sees it.
        """
        trace = self.start(model)
        if trace is None:
            yield _UNSEEN
            return
        trace.request_id = request_id
        trace.mark("REQUEST_START")
        try:
            yield trace
            trace.mark("REQUEST_END")
        finally:
            trace.end()

    def close(self) -> None:
        """Write what has gathered; call it when the last request has been answered."""
        for sampler in (self._global, *self._models.values()):
            self._retire(sampler)

    def _replace_model(
        self, model: str, own: dict[str, bool | int], setting: TraceSetting
    ) -> None:
        before = self._models.pop(model, None)
        self._given.pop(model, None)
        if before is not None:
            self._retire(before)
        if own:
            self._given[model] = own
            self._models[model] = _Sampler(setting, setting.count)

    def _retire(self, sampler: _Sampler) -> None:
        sampler.is_replaced = True
        self._flush(sampler)

    def _collect(self, sampler: _Sampler, text: str) -> None:
        sampler.gathered.append(text)
        frequency = sampler.setting.log_frequency
        is_last = sampler.left == 0
        if sampler.is_replaced or is_last or len(sampler.gathered) >= (frequency or MAX_GATHERED):
            self._flush(sampler)

    def _flush(self, sampler: _Sampler) -> None:
        if not sampler.gathered or self._writer is None:
            return
        text = ",".join(sampler.gathered)
        sampler.gathered = []
        if sampler.setting.log_frequency:
            self._writer.write_next(text)
        else:
            self._writer.append(text)


def _check(setting: TraceSetting, path: str) -> None:
    """Refuse a setting under which nothing could be traced, though it is on."""
    if not setting.is_on:
        return
    why = ""
    if setting.rate == 0:
        why = "sample rate must be non-zero"
    elif not path:
        why = "trace file name is not given (--trace-file)"
    if why:
        raise InvalidRequest(f"Attempting to set invalid trace setting :{why}")


def _with(setting: TraceSetting, own: Mapping[str, bool | int]) -> TraceSetting:
    return replace(setting, **own)  # type: ignore[arg-type]  # made by `_changes`, each of its field's type


def _merged(
    before: Mapping[str, bool | int], changes: Mapping[str, bool | int | None]
) -> dict[str, bool | int]:
    merged: dict[str, bool | int | None] = {**before, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def _changes(given: Given) -> dict[str, bool | int | None]:
    """Return fields of `TraceSetting` with their new values, None for those that are cleared."""
    if "trace_file" in given:
        raise Unsupported("trace file location can not be updated through network protocol")
    if given.get("trace_mode", MODE) not in (MODE, None):
        raise Unsupported(
            f"trace mode {given['trace_mode']!r:.60} is not offered, expected {MODE}"
        )
    changes: dict[str, bool | int | None] = {}
    if "trace_level" in given:
        changes["is_on"] = _level(given["trace_level"])
    for name, key, lowest, highest in (
        ("rate", "trace_rate", 0, MAX_WHOLE),
        ("count", "trace_count", -1, MAX_COUNT),
        ("log_frequency", "log_frequency", 0, MAX_WHOLE),
    ):
        if key in given:
            changes[name] = _whole(key, given[key], lowest, highest)
    return changes


def _level(levels: object) -> bool | None:
    if levels is None:
        return None
    if not isinstance(levels, list) or not all(isinstance(level, str) for level in levels):
        raise MalformedRequest("Unable to parse 'trace_level': expected an array of strings")
    if OFF in levels and len(levels) > 1:
        raise InvalidRequest("Expect only one trace level 'OFF' is specified")
    if "TENSORS" in levels:
        raise Unsupported(f"trace level 'TENSORS' is not offered, expected {OFF} or {TIMESTAMPS}")
    for level in levels:
        if level not in (OFF, TIMESTAMPS):
            raise InvalidRequest(
                f"Unable to parse 'trace_level', got: {level:.60}, expected {OFF} or {TIMESTAMPS}"
            )
    if not levels:
        raise InvalidRequest(f"'trace_level' is empty, expected {OFF} or {TIMESTAMPS}")
    return TIMESTAMPS in levels


def _whole(key: str, value: object, lowest: int, highest: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise MalformedRequest(f"Unable to parse '{key}': expected a string")
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidRequest(f"Unable to parse '{key}', got: {value:.60}")
    number = int(value) if len(digits) <= 20 else highest + 1
    if key == "trace_count" and number < lowest:
        raise InvalidRequest(
            f"Unable to parse 'trace_count'. Expecting value >= {lowest}, got:{value:.60}"
        )
    if not lowest <= number <= highest:
        raise InvalidRequest(
            f"Unable to parse '{key}', value is out of range [ {lowest}, {highest} ], got: {value:.60}"
        )
    return number
