"""The name that somebody probably meant. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

CUTOFF = 0.6
"""Likeness from which on a name is suggested, from 0 to 1; as `difflib` has it."""


def nearest_name(name: str, known: Iterable[str], *, cutoff: float = CUTOFF) -> str:
    """Return the known name that is most like one that is none, whatever its case; ``""`` where none is like it."""
    folded = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), list(folded), n=1, cutoff=cutoff)
    return folded[near[0]] if near else ""
