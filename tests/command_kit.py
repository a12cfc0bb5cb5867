"""Runs a `headrace` command as a shell sees it: what it prints, what it complains of, its exit status.

In this process, where an interpreter of its own for each would import everything anew for two seconds; as a process for
the one test of a command that says that it is one.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import sys
import threading
from contextlib import ExitStack, redirect_stderr, redirect_stdout

from headrace.deploy import console
from headrace.deploy.cli import main

PATIENCE_S = 90.0
COLUMNS = 240

Said = tuple[int, str, str]
"""Exit status, standard output, standard error."""


async def as_process(*arguments: str, columns: int = COLUMNS) -> Said:
    """Run ``headrace`` with these arguments as a process."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.deploy.cli", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "COLUMNS": str(columns)},
    )
    async with asyncio.timeout(PATIENCE_S):
        printed, complained = await process.communicate()
    assert process.returncode is not None
    return process.returncode, printed.decode(), complained.decode()


async def command(*arguments: str, columns: int = COLUMNS) -> Said:
    """Run the same in a thread; one at a time, for it prints on what is the whole process's."""
    async with asyncio.timeout(PATIENCE_S):
        return await asyncio.to_thread(_run, arguments, columns)


def _run(arguments: tuple[str, ...], columns: int) -> Said:
    printed, complained = io.StringIO(), io.StringIO()
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(printed))
        stack.enter_context(redirect_stderr(complained))
        for page in (console.out, console.errors):
            stack.callback(setattr, page, "width", page.width)
            page.width = columns
        warnings = _Warnings(complained)
        logging.getLogger().addHandler(warnings)
        stack.callback(logging.getLogger().removeHandler, warnings)
        try:
            main(list(arguments))
        except SystemExit as ended:
            status = ended.code or 0
    assert isinstance(status, int)
    return status, printed.getvalue(), complained.getvalue()


class _Warnings(logging.StreamHandler[io.StringIO]):
    """Prints this thread's warnings, as a process does that has set up no logging."""

    def __init__(self, stream: io.StringIO) -> None:
        super().__init__(stream)
        self.setLevel(logging.WARNING)
        self._thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        return record.thread == self._thread and super().filter(record) is not False
