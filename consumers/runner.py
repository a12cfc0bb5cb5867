"""One thread with the instance that it serves; the loop's side of it is `headrace.consumers.pool`."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from headrace.backends.backend import Instance
from headrace.consumers.execution import Execution

Work: TypeAlias = Callable[[Instance], Execution]
Done: TypeAlias = Callable[[int, Execution | BaseException], None]
Returned: TypeAlias = Callable[["Runner", Execution | BaseException, Done], None]
"""Told in the loop of each outcome: who, what, and whom the work was for."""


class Runner:
    """Takes one piece of work at a time and posts the outcome back; it ends with an outcome that is an exception.

    Attributes:
        number: Instance number.
        instance: None until `revive` has made it.
        begun: Pieces of work that the thread has begun.
        is_abandoned: Nobody waits for it any more: it closes its instance and ends as soon as it can.
        thread: None before `launch`.
    """

    __slots__ = ("_lock", "_work", "begun", "instance", "is_abandoned", "number", "thread")

    def __init__(self, number: int, instance: Instance | None) -> None:
        """Have no thread yet."""
        self.number = number
        self.instance = instance
        self.begun = 0
        self.is_abandoned = False
        self.thread: threading.Thread | None = None
        self._work: queue.SimpleQueue[tuple[Work, Done] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()

    def launch(self, target: Callable[[], None], name: str) -> None:
        """Start the thread with `serve` or `revive`."""
        # A hung model must not keep the process from ending.
        self.thread = threading.Thread(target=target, name=name, daemon=True)
        self.thread.start()

    def put(self, work: Work, done: Done) -> None:
        """Give it work, for now or after what it is at."""
        self._work.put((work, done))

    def end(self) -> None:
        """Let the thread end after what it was given."""
        self._work.put(None)

    def abandon(self) -> None:
        """Let the thread begin nothing any more."""
        with self._lock:
            self.is_abandoned = True
        self.end()

    def is_healthy(self) -> bool:
        """Ask the instance; one that cannot even answer is not."""
        try:
            return self.instance is not None and self.instance.healthy()
        except Exception:  # noqa: BLE001  # whatever a plug-in raises
            return False

    def serve(
        self,
        loop: asyncio.AbstractEventLoop,
        returned: Returned,
        came_back: Callable[[Runner], None],
    ) -> None:
        """Work until told to end; in the thread.

        Args:
            loop: Where the callbacks run. Once it is closed the process is ending, and nobody waits for them.
            returned: Told of each outcome.
            came_back: Told that the thread of an abandoned runner ends.
        """
        assert self.instance is not None
        with suppress(RuntimeError):
            while (item := self._work.get()) is not None:
                run, done = item
                with self._lock:
                    if self.is_abandoned:
                        break
                    self.begun += 1
                outcome: Execution | BaseException
                try:
                    outcome = run(self.instance)
                except BaseException as exc:  # noqa: BLE001  # the thread dies of it, and the loop must know
                    outcome = exc
                loop.call_soon_threadsafe(returned, self, outcome, done)
                if isinstance(outcome, BaseException):
                    break
        if self.is_abandoned:
            with suppress(
                Exception
            ):  # whatever state it is in, nobody asks it for anything any more
                self.instance.close()
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(came_back, self)

    def revive(
        self,
        make: Callable[[], Instance],
        loop: asyncio.AbstractEventLoop,
        made: Callable[[Runner, BaseException | None], None],
    ) -> bool:
        """Make the instance; in the thread. Returns False where that failed.

        Args:
            make: Makes it, blocking.
            loop: Where the callback runs.
            made: Told why that failed, or None.
        """
        failed: BaseException | None = None
        try:
            self.instance = make()
        except BaseException as exc:  # noqa: BLE001  # whatever a plug-in raises: it is tried again
            failed = exc
        try:
            loop.call_soon_threadsafe(made, self, failed)
        except RuntimeError:
            return False  # as above
        return failed is None
