"""The faults that the identity backend's script asks for."""

from __future__ import annotations

from pathlib import Path

from headrace.backends.identity_script import Script
from headrace.schemas.errors import BackendError, BackendUnavailable, Retriable


def failure(script: Script, why: str) -> BaseException:
    """Return what ``fail_times`` and ``fail_if`` raise, as ``fail_as`` says."""
    text = f"scripted failure: {why}"
    match script.fail_as:
        case "retriable":
            return Retriable(text)
        case "unavailable":
            return BackendUnavailable(text)
        case "death":
            return SystemExit(text)
    return BackendError(text)


def is_short(script: Script) -> bool:
    """Whether memory is still short, where it ever is."""
    file = script.out_of_memory_until_file
    return not (file and Path(file).exists())


def exit_marked(script: Script) -> bool:
    """Whether to exit now: always without a marker, else once, when the marker is made."""
    if not script.exit_marker_file:
        return True
    try:
        Path(script.exit_marker_file).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
