"""Runs a command that dies with the process that asked for it; started as a script by `headrace.streams.embedded`.

On Linux the kernel is asked to kill this process when its parent dies, and the command then takes its place, so
nothing of ours stays in between. Elsewhere this process stays, and ends the command when its standard input
closes, which happens when the parent dies, however it dies. `preexec_fn` would do the first without a script, but
runs Python between fork and exec, which may deadlock where there are threads.

    python embedded_child.py PARENT_PID COMMAND [ARGUMENT...]
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> int:
    """Become the command, or watch over it; returns its exit code."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0 or (
            os.getppid() != parent  # it died before the kernel knew
        ):
            return 1
        os.execv(command[0], command)  # noqa: S606  # no shell wanted: the command replaces this process
    child = subprocess.Popen(command)  # noqa: S603  # our own command line

    def end_with_parent() -> None:
        sys.stdin.buffer.read()
        child.kill()

    threading.Thread(target=end_with_parent, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    return child.wait()


if __name__ == "__main__":
    sys.exit(main())
