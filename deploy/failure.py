"""What may end a command, as the one sentence that is printed for it."""

from __future__ import annotations

import errno
import os

from headrace.consumers.progress import PartitionStuck
from headrace.consumers.supervision import InstancesExhausted
from headrace.schemas.errors import ConfigError, InferError, LogError

EXHAUSTED = 75
"""Exit status of a worker that only a new process can mend (EX_TEMPFAIL): nothing of a model can execute any more, or a
partition stays stuck. Start it again."""


class CommandFailed(Exception):
    """A command ends without success; the sentence is for people.

    Attributes:
        status: Exit status of the process: 1, 2 where the command line itself is wrong, or `EXHAUSTED`.
    """

    def __init__(self, sentence: str, *, status: int = 1) -> None:
        """Keep both."""
        super().__init__(sentence)
        self.status = status


def port_taken(exc: OSError, option: str, address: str, port: int) -> CommandFailed:
    """Return the sentence for a port that cannot be listened on, naming the option that chooses another."""
    if exc.errno == errno.EADDRINUSE:
        return CommandFailed(
            f"port {port} on {address} is taken by another process, choose another with {option}"
        )
    # asyncio puts the whole story into strerror; the bare reason reads better.
    reason = os.strerror(exc.errno) if exc.errno else str(exc)
    return CommandFailed(f"cannot listen on {address}:{port} ({option}): {reason}")


def known_failure(exc: BaseException) -> CommandFailed | None:
    """Return what to print for an exception, or None for one that only a bug of ours can be.

    A task group wraps what its tasks raise; the first known cause in it counts.
    """
    if isinstance(exc, CommandFailed):
        return exc
    if isinstance(exc, InstancesExhausted | PartitionStuck):
        return CommandFailed(str(exc), status=EXHAUSTED)
    if isinstance(exc, ConfigError | LogError | InferError):
        return CommandFailed(str(exc))
    if isinstance(exc, BaseExceptionGroup):
        for inner in exc.exceptions:
            found = known_failure(inner)
            if found is not None:
                return found
    return None


def failure_of(exc: BaseException) -> CommandFailed:
    """Return what to print for any exception: of a bug of ours, its kind and how to see more."""
    cause = first_cause(exc)
    return known_failure(exc) or CommandFailed(
        f"internal error, {type(cause).__name__}: {cause}; headrace --debug COMMAND shows where it comes from"
    )


def first_cause(exc: BaseException) -> BaseException:
    """Return the first exception inside the groups that tasks make, or the exception itself."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return exc
