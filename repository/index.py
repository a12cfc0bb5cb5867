"""What is loaded and in which state: the index and readiness.

The only shared state of the repository: loading threads write it, the event loop reads it, under one lock that
is held for no longer than a dictionary look-up.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

UNLOADED = "unloaded"
"""The one reason of an UNAVAILABLE version that strict readiness forgives (SEMANTICS SV-02)."""

DUPLICATE = "model appears in two or more repositories"
"""Reason of a model that several repositories hold (SEMANTICS MR-05)."""


class State(StrEnum):
    """State of one model version (SEMANTICS PB-63)."""

    UNKNOWN = "UNKNOWN"
    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"


@dataclass(frozen=True, slots=True)
class VersionState:
    """State of one version, and why it is not ready."""

    state: State
    reason: str = ""


class Index:
    """Every known model, its versions and their states."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.Lock()
        self._models: dict[str, dict[int, VersionState]] = {}
        self._reasons: dict[str, str] = {}
        self._generation = 0

    @property
    def generation(self) -> int:
        """Number of changes so far: whoever publishes the index compares it."""
        return self._generation

    def add(self, model: str, reason: str = "") -> None:
        """Make a model known that has no version yet.

        Args:
            model: Model name.
            reason: Why it can have none (its configuration is wrong, it is a duplicate); ``""``: not yet tried.
        """
        with self._lock:
            self._models.setdefault(model, {})
            self._reasons[model] = reason
            self._generation += 1

    def set(self, model: str, states: Mapping[int, VersionState]) -> None:
        """Set the states of some versions at once: a reader sees all of them changed or none."""
        with self._lock:
            self._models.setdefault(model, {}).update(states)
            self._generation += 1

    def rows(self, *, ready: bool = False) -> list[dict[str, str]]:
        """Return the index as the repository endpoint shows it (SEMANTICS PB-63).

        Args:
            ready: Only READY versions.

        Returns:
            ``{name, version?, state?, reason?}``, by name and version.
        """
        with self._lock:
            rows: list[dict[str, str]] = []
            for model in sorted(self._models):
                versions = self._models[model]
                if not versions and not ready:
                    rows.append(self._bare(model))
                for version in sorted(versions):
                    found = versions[version]
                    if ready and found.state is not State.READY:
                        continue
                    row = {"name": model, "version": str(version), "state": found.state.value}
                    rows.append(row | ({"reason": found.reason} if found.reason else {}))
            return rows

    def is_ready(self, *, strict: bool = True) -> bool:
        """Whether the server as a whole is ready (SEMANTICS SV-02).

        Args:
            strict: Every version of every known model must be READY; one that was unloaded is forgiven, a model
                without any version is not. Else models do not matter.
        """
        if not strict:
            return True
        with self._lock:
            return all(
                versions
                and all(
                    found.state is State.READY or found.reason == UNLOADED
                    for found in versions.values()
                )
                for versions in self._models.values()
            )

    def _bare(self, model: str) -> dict[str, str]:
        reason = self._reasons.get(model)
        if not reason:
            return {"name": model}
        return {"name": model, "state": State.UNAVAILABLE.value, "reason": reason}
