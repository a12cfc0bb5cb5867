"""Strict reading of a mapping file's tables: every key is known, every value has the type that it should. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from headrace.schemas.errors import ConfigError
from headrace.schemas.nearest import nearest_name

MAX_LISTED = 20
"""Names that an error lists."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return what to write instead of a name that is none: the nearest one, or all that there are."""
    names = list(known)
    if near := nearest_name(name, names, cutoff=0.5):  # people's own names differ more than ours
        return f"did you mean '{near}'?"
    if not names:
        return "expected none"
    listed = ", ".join(names[:MAX_LISTED]) + (", …" if len(names) > MAX_LISTED else "")
    return f"expected one of {listed}" if len(names) > 1 else f"expected {listed}"


class Table:
    """One table of a file.

    Attributes:
        file: Path as the user knows it.
        field: Dotted path of the table; ``""`` is the file itself.
    """

    def __init__(
        self, values: Mapping[str, object], known: Sequence[str] | None, *, file: str, field: str
    ) -> None:
        """Keep the values.

        Args:
            values: As TOML gave them.
            known: Keys that may occur; None where they are names of the user's own.
            file: For errors.
            field: For errors.

        Raises:
            ConfigError: A key is unknown; the sentence has the nearest one.
        """
        self.file, self.field = file, field
        self._values = values
        for key in values:
            if known is not None and key not in known:
                raise ConfigError(
                    f"there is no such key, {nearest(key, known)}",
                    file=file,
                    field=self.path(key),
                )

    def __contains__(self, key: str) -> bool:
        """Whether the key is given."""
        return key in self._values

    def keys(self) -> list[str]:
        """Return the keys that are given, in their order."""
        return list(self._values)

    def path(self, key: str) -> str:
        """Return a key's path for errors."""
        return ".".join(part for part in (self.field, key) if part)

    def value(self, key: str) -> object:
        """Return a value as it is, None where it is not given."""
        return self._values.get(key)

    def refuse(self, key: str, expected: str) -> NoReturn:
        """Raise the error of a key's value."""
        value = self._values.get(key)
        shown = "" if key not in self._values else repr(value)[:120]
        raise ConfigError(expected, file=self.file, field=self.path(key), value=shown)

    def table(self, key: str, known: Sequence[str] | None) -> Table:
        """Return a table in this one; an empty one where it is not given."""
        found = self._values.get(key, {})
        if not isinstance(found, dict):
            self.refuse(key, "expected a table")
        return Table(found, known, file=self.file, field=self.path(key))

    def items(self, key: str) -> list[object]:
        """Return an array's items, none where it is not given."""
        found = self._values.get(key, [])
        if not isinstance(found, list):
            self.refuse(key, "expected an array")
        return found

    def text(self, key: str, default: str = "") -> str:
        """Return a text."""
        found = self._values.get(key, default)
        if not isinstance(found, str):
            self.refuse(key, "expected a text")
        return found

    def needed(self, key: str, expected: str) -> str:
        """Return a text that must be given and not be empty."""
        found = self.text(key)
        if not found:
            self.refuse(key, f"expected {expected}")
        return found

    def word(self, key: str, words: Sequence[str], default: str) -> str:
        """Return one of the words."""
        found = self.text(key, default)
        if found not in words:
            self.refuse(key, nearest(found, words))
        return found

    def flag(self, key: str) -> bool:
        """Return true or false; false where it is not given."""
        found = self._values.get(key, False)
        if not isinstance(found, bool):
            self.refuse(key, "expected true or false")
        return found

    def count(self, key: str, default: int, *, least: int = 1) -> int:
        """Return a whole number."""
        found = self._values.get(key, default)
        if type(found) is not int or found < least:
            self.refuse(key, f"expected a whole number of {least} or more")
        return found
