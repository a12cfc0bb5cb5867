"""A small file system for one broker's log folder, that can be filled: a tmpfs, which takes root to mount."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Self

SIZE_MIB = 128
PIECE = bytes(1 << 20)


class Unmountable(Exception):
    """No file system may be mounted here; the sentence says why."""


class Disk:
    """The small file system of a node; a context manager, which mounts it.

    Attributes:
        node: Whose.
        data: Where its records lie.
    """

    def __init__(self, node: int, path: Path) -> None:
        """Keep both; entering mounts."""
        self.node = node
        self.data = path / "data"
        self._path = path

    def __enter__(self) -> Self:
        """Mount; `Unmountable` where that is not allowed."""
        self._path.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs", str(self._path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as exc:
            raise Unmountable(f"mount cannot be run: {exc}") from exc
        if done.returncode:
            raise Unmountable(f"a tmpfs cannot be mounted: {done.stderr.strip()}")
        return self

    def __exit__(self, *exc: object) -> None:
        """Unmount; nobody uses it any more."""
        subprocess.run(["umount", str(self._path)], check=True)

    @contextlib.contextmanager
    def filled(self) -> Iterator[None]:
        """Leave no byte free while the block runs."""
        ballast = self._path / "ballast"
        descriptor = os.open(ballast, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        try:
            self._fill(descriptor)
            yield
        finally:
            os.close(descriptor)
            ballast.unlink()

    def _fill(self, descriptor: int) -> None:
        for size in (len(PIECE), 4096, 1):
            try:
                while True:
                    os.write(descriptor, PIECE[:size])
            except OSError as exc:
                if exc.errno != errno.ENOSPC:
                    raise
