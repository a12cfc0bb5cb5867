"""Writes traces to files, in a thread of its own: a slow disk must not hold up calls."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import BoundedSemaphore

logger = logging.getLogger(__name__)

MAX_WAITING = 64
"""Writes that may wait for the disk; what comes beyond is dropped, with a warning."""


class TraceFile:
    """A trace file and the numbered ones beside it; a `headrace.streams.trace_settings.TraceWriter`.

    Each of them holds one JSON array, and is a whole one after every write. The file itself is begun anew by the first
    write of the process, as Triton does.
    """

    def __init__(self, path: Path) -> None:
        """Keep the path; nothing is opened before there is something to write."""
        self._path = path
        self._is_begun = False
        self._next = 0
        self._room = BoundedSemaphore(MAX_WAITING)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trace-file")

    def append(self, text: str) -> None:
        """Add items of a JSON array, with commas between them, to the file itself."""
        self._submit(self._append, self._path, text)

    def write_next(self, text: str) -> None:
        """Write them as an array to a file of their own: ``<path>.0``, then ``<path>.1`` and so on."""
        path = self._path.with_name(f"{self._path.name}.{self._next}")
        self._next += 1
        self._submit(_begin, path, text)

    def close(self) -> None:
        """Wait until all is written."""
        self._thread.shutdown()

    def _submit(self, write: Callable[[Path, str], None], path: Path, text: str) -> None:
        if self._room.acquire(blocking=False):
            self._thread.submit(self._write, write, path, text)
        else:
            logger.warning("traces are dropped: %d writes wait for %s", MAX_WAITING, self._path)

    def _write(self, write: Callable[[Path, str], None], path: Path, text: str) -> None:
        try:
            write(path, text)
        except OSError as error:
            logger.error("traces could not be written to %s: %s", path, error)  # noqa: TRY400  # the disk's trouble
        finally:
            self._room.release()

    def _append(self, path: Path, text: str) -> None:
        if not self._is_begun:
            _begin(path, text)
            self._is_begun = True
            return
        with path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)  # over the bracket that closes the array
            file.write(f",{text}]".encode())


def _begin(path: Path, text: str) -> None:
    path.write_text(f"[{text}]", encoding="utf-8")
