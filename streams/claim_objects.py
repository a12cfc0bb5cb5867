"""Where values that no record holds are kept: the port that `headrace.streams.claims` stands on, and fsspec behind it.

fsspec speaks to local folders, memory, S3, Google's and Azure's stores and more, by the URL's scheme; those beyond the
first two need their package, such as `s3fs`, and take endpoint and credentials from fsspec's own configuration
(``FSSPEC_S3_ENDPOINT_URL`` and the like) or their SDK's. Foreign exceptions are translated here, once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

import fsspec
from headrace.schemas.errors import ConfigError, InferError, InvalidRequest, Reason, Unavailable

T = TypeVar("T")

MAX_URL_CHARS = 2048
"""Of the store's URL: with an object's name and the other members it must fit into a header."""

MAX_CAUSE_CHARS = 200
"""Of a foreign exception's text in an error."""

LOCAL = ("file", "local", "memory")
"""Schemes of stores where folders are things of their own."""


class Objects(Protocol):
    """A store of values by name. Its calls block; `headrace.streams.claims.Claims` makes them in threads of its own.

    Attributes:
        url: Of the store, without a slash at its end: an object's URL is this, a slash and its name.
    """

    url: str

    def write(self, name: str, value: bytes) -> None:
        """Keep a value; when this returns, every reader finds it.

        Raises:
            Unavailable: It cannot be kept now.
        """

    def read(self, name: str, limit: int) -> bytes:
        """Return the first ``limit`` bytes of a value, all if it has fewer.

        Raises:
            InvalidRequest: There is no such object (`Reason.CLAIM_MISSING`), or it lies elsewhere.
            Unavailable: It cannot be read now.
        """

    def delete(self, name: str) -> bool:
        """Remove an object; False if there is none, and the store tells (S3 does not).

        Raises:
            Unavailable: It cannot be removed now.
        """

    def names(self, folder: str) -> Sequence[str]:
        """Return the names of what is in a folder, ``""`` is the store itself, without the folder's own.

        Raises:
            Unavailable: It cannot be listed now.
        """

    def forget(self, folder: str) -> None:
        """Remove a folder if it is empty and the store has such things; fails silently."""


def store_url(text: str) -> str:
    """Return a store's URL as claims spell it; a path is a local folder.

    Raises:
        ConfigError: It holds what must not stand in records, or is no folder of its own.
    """

    def refused(expected: str) -> ConfigError:
        shown = text.rpartition("@")[2]  # a password may stand before it
        return ConfigError(expected, field="--claim-check-url", value=shown)

    url = text if "://" in text else f"file://{Path(text).absolute()}"
    url = url.rstrip("/")
    parts = urlsplit(url)
    if "::" in url or parts.query or parts.fragment:
        raise refused("expected one URL, without ::, ? and #")
    if "@" in parts.netloc:
        raise refused("expected a URL without credentials: it stands in each record's header")
    if not parts.scheme or not (parts.netloc or parts.path):
        raise refused(
            "expected a folder of its own, such as s3://bucket/claims or file:///var/claims"
        )
    if len(url) > MAX_URL_CHARS or not url.isprintable():
        raise refused(f"expected at most {MAX_URL_CHARS} characters that can be shown")
    return url


class FsspecObjects:
    """A folder or bucket that fsspec knows; see `Objects`.

    Attributes:
        url: Of the store.
    """

    def __init__(self, url: str) -> None:
        """Choose the file system; nothing is asked of it yet.

        Raises:
            ConfigError: The URL is refused (`store_url`), its scheme unknown, or its package not installed.
        """
        self.url = store_url(url)
        scheme = urlsplit(self.url).scheme
        self._has_folders = scheme in LOCAL
        options = {"auto_mkdir": True} if scheme in ("file", "local") else {}
        try:
            self._files, self._root = fsspec.url_to_fs(self.url, **options)
        except (ValueError, ImportError) as exc:
            raise ConfigError(
                f"there is no store of this kind: {exc}", field="--claim-check-url", value=self.url
            ) from exc
        self._real_root = os.path.realpath(self._root) if "auto_mkdir" in options else ""

    def __repr__(self) -> str:
        """Show where."""
        return f"FsspecObjects({self.url})"

    def write(self, name: str, value: bytes) -> None:
        """Keep a value."""
        self._call("be stored", name, lambda path: self._files.pipe_file(path, value))

    def read(self, name: str, limit: int) -> bytes:
        """Return the first ``limit`` bytes of a value."""
        try:
            found: bytes = self._call("be read", name, lambda path: self._read(path, limit))
        except FileNotFoundError as exc:
            raise InvalidRequest(
                f"there is no value at {self.url}/{name}: it was never stored, or is older than the store keeps it",
                reason=Reason.CLAIM_MISSING,
            ) from exc
        return found

    def delete(self, name: str) -> bool:
        """Remove an object; False if there is none."""
        try:
            self._call("be removed", name, self._files.rm_file)
        except FileNotFoundError:
            return False
        return True

    def names(self, folder: str) -> Sequence[str]:
        """Return the names of what is in a folder; none where it does not exist."""
        try:
            found: Sequence[str] = self._call("be listed", folder, self._list)
        except FileNotFoundError:
            return ()
        return [path.rstrip("/").rpartition("/")[2] for path in found]

    def forget(self, folder: str) -> None:
        """Remove an empty folder of a local store; object stores have none."""
        if self._has_folders and folder:
            try:
                self._files.rmdir(f"{self._root}/{folder}")
            except OSError:
                return  # somebody else did, or it is not empty

    def _read(self, path: str, limit: int) -> bytes:
        if self._real_root and not os.path.realpath(path).startswith(self._real_root + os.sep):
            # A link that somebody with the right to write has put there.
            raise InvalidRequest(
                f"a value lies outside of {self.url} by a link, expected an object of the store",
                reason=Reason.CLAIM_REFUSED,
            )
        found: bytes = self._files.cat_file(path, start=0, end=limit)
        return found

    def _list(self, path: str) -> list[str]:
        self._files.invalidate_cache()  # others write, too
        found: list[str] = self._files.ls(path, detail=False)
        return found

    def _call(self, what: str, name: str, work: Callable[[str], T]) -> T:
        path = f"{self._root}/{name}" if name else self._root
        try:
            return work(path)
        except (InferError, FileNotFoundError) as exc:
            if what == "be stored" and isinstance(exc, FileNotFoundError):
                raise self._unavailable(what, name, exc) from exc  # its bucket is missing
            raise
        except Exception as exc:
            # Whatever the file system's own client raises: all of it is that the store does not serve us now.
            raise self._unavailable(what, name, exc) from exc

    def _unavailable(self, what: str, name: str, exc: Exception) -> Unavailable:
        cause = f"{type(exc).__name__}: {exc}"[:MAX_CAUSE_CHARS]
        return Unavailable(
            f"{self.url}/{name} cannot {what} ({cause})",
            reason=Reason.CLAIM_UNREACHABLE,
        )
