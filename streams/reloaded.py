"""Something that is made of files, and made again when they change while the server runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from headrace.schemas.errors import ConfigError

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""How soon a change is seen, seconds: a look costs a system call, and calls come by the thousand."""

Made = TypeVar("Made")


class Reloaded(Generic[Made]):
    """Called, it returns what the files are now. Nothing runs meanwhile: who calls, looks.

    Files that become unreadable or wrong leave what there was, and the log says so once.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        read: Callable[[], Made],
        *,
        what: str,
        look_every_s: float = LOOK_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the files.

        Args:
            paths: Looked at.
            read: Makes it of them; raises `ConfigError`.
            what: What it is, for the log.
            look_every_s: How often at most.
            clock: Seconds that never go back.

        Raises:
            ConfigError: As ``read``.
        """
        self._paths = paths
        self._read = read
        self._what = what
        self._every_s = look_every_s
        self._clock = clock
        self._seen = self._state()
        self._made = read()
        self._look_at = clock() + look_every_s

    def __call__(self) -> Made:
        """Return it, made again if need be."""
        now = self._clock()
        if now >= self._look_at:
            self._look_at = now + self._every_s
            state = self._state()
            if state != self._seen:
                self._seen = state
                self._read_again()
        return self._made

    def _read_again(self) -> None:
        try:
            self._made = self._read()
        except ConfigError as error:
            logger.error("%s: as before, for they changed and are wrong: %s", self._what, error)  # noqa: TRY400  # it says all
        else:
            logger.info("%s: read again from %s", self._what, self._paths[0])

    def _state(self) -> list[tuple[int, int, int] | None]:
        """Return what changes when a file does; links are followed, as mounted secrets are swapped by them."""
        return [_state(path) for path in self._paths]


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
