"""Triton's logging settings with their live effect on this process's log (SEMANTICS PB-74).

Each severity is on or off by itself, which levels alone cannot say, so a filter at the handlers decides; levels only
keep what nobody wants from being formatted. Verbose level 1 is what Headrace itself says for debugging, 2 and above
what its libraries say too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TypeAlias

from headrace.schemas.errors import MalformedRequest, Unavailable, Unsupported

DEFAULT_FORMAT = "default"
ISO8601_FORMAT = "ISO8601"

OWN_LOGGER = "headrace"
RETRYING_LOGGER = "aiokafka"
"""A client that reports each retry of a connection; what matters of it comes back as an error of ours."""

LOGGERS = ("", OWN_LOGGER, RETRYING_LOGGER)
"""Whose levels are set; the first is the root."""

LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"

MAX_VERBOSE = 2**31 - 1

Given: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class LogSetting:
    """What is logged, by Triton's names.

    Attributes:
        log_info: Information is.
        log_warning: Warnings are.
        log_error: Errors are.
        log_verbose_level: 0 nothing for debugging, 1 Headrace's own, 2 and above its libraries' too.
        log_format: How a line's time is written: ``default``, or ``ISO8601`` in UTC.
    """

    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_verbose_level: int = 0
    log_format: str = DEFAULT_FORMAT

    @classmethod
    def from_level(cls, level: str) -> LogSetting:
        """Return the setting that writes lines from a level on: ``debug``, ``info``, ``warning`` or ``error``."""
        return cls(
            log_info=level in ("debug", "info"),
            log_warning=level != "error",
            log_verbose_level=2 if level == "debug" else 0,
        )

    def takes(self, level: int) -> bool:
        """Whether a line of this level, by Python's numbers, is written; the filter of all handlers."""
        if level >= logging.ERROR:
            return self.log_error
        if level >= logging.WARNING:
            return self.log_warning
        if level >= logging.INFO:
            return self.log_info
        return self.log_verbose_level > 0

    def threshold(self) -> int:
        """Return the least severe level of which something is written, verbose lines aside."""
        levels = (logging.INFO, logging.WARNING, logging.ERROR)
        return next((level for level in levels if self.takes(level)), logging.CRITICAL + 1)


class LogSettings:
    """The logging of this process; HTTP and gRPC change the same object.

    Attributes:
        setting: As it is.
    """

    def __init__(
        self,
        setting: LogSetting = LogSetting(),  # frozen
        *,
        handlers: Iterable[logging.Handler] = (),
    ) -> None:
        """Take over the root logger's ``handlers``, where they are given; without them settings are only kept."""
        self.setting = setting
        self._handlers = tuple(handlers)
        self._levels = {name: logging.getLogger(name).level for name in LOGGERS}
        self._formatters = [handler.formatter for handler in self._handlers]
        for handler in self._handlers:
            handler.addFilter(self._filter)
        self._apply()

    def close(self) -> None:
        """Leave the log as it was found."""
        if not self._handlers:
            return
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)
        for handler, formatter in zip(self._handlers, self._formatters, strict=True):
            handler.removeFilter(self._filter)
            handler.setFormatter(formatter)

    def shown(self) -> dict[str, object]:
        """Return all six settings as V2 JSON has them; ``log_file`` is empty, for lines go to standard error."""
        shown = {item.name: getattr(self.setting, item.name) for item in fields(self.setting)}
        return {"log_file": "", **shown}

    def update(self, given: Given) -> None:
        """Change settings, all of them or none.

        Args:
            given: Names → values as JSON has them; unknown names and nulls are ignored.

        Raises:
            Unsupported: ``log_file``.
            MalformedRequest: A value is of the wrong JSON type.
            Unavailable: An unknown ``log_format``.
        """
        if given.get("log_file") is not None:
            raise Unsupported("log file location can not be updated through network protocol")
        changes: dict[str, object] = {}
        for name in ("log_info", "log_warning", "log_error"):
            value = given.get(name)
            if not isinstance(value, bool | None):
                raise MalformedRequest(f"Unable to parse '{name}': expected true or false")
            changes[name] = value
        level = given.get("log_verbose_level")
        if level is not None and not (type(level) is int and 0 <= level <= MAX_VERBOSE):
            raise MalformedRequest(
                "Unable to parse 'log_verbose_level': expected an unsigned integer"
            )
        changes["log_verbose_level"] = level
        changes["log_format"] = _format(given.get("log_format"))
        known = {name: value for name, value in changes.items() if value is not None}
        self.setting = replace(self.setting, **known)  # type: ignore[arg-type]  # checked above, each by its name
        self._apply()

    def _filter(self, record: logging.LogRecord) -> bool:
        return self.setting.takes(record.levelno)

    def _apply(self) -> None:
        if not self._handlers:
            return
        verbose, least = self.setting.log_verbose_level, self.setting.threshold()
        logging.getLogger(OWN_LOGGER).setLevel(logging.DEBUG if verbose >= 1 else least)
        logging.getLogger().setLevel(logging.DEBUG if verbose >= 2 else least)
        logging.getLogger(RETRYING_LOGGER).setLevel(
            logging.NOTSET if verbose >= 2 else logging.CRITICAL
        )
        line = logging.Formatter(LINE)
        if self.setting.log_format == ISO8601_FORMAT:
            line = logging.Formatter(LINE, datefmt="%Y-%m-%dT%H:%M:%SZ")
            line.converter = time.gmtime
        for handler in self._handlers:
            handler.setFormatter(line)


def _format(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise MalformedRequest("Unable to parse 'log_format': expected a string")
    if value not in (DEFAULT_FORMAT, ISO8601_FORMAT):
        # Triton's code, though the caller is to blame.
        raise Unavailable(f"invalid argument for --log_format, got: {value:.60}")
    return value
