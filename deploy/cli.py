"""The command `headrace` as a process: imports the commands, quickly, and runs the one that is asked for."""

from __future__ import annotations

import gc
import sys


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; always ends with `SystemExit`.

    Args:
        arguments: Without the program's name; None takes the process's own, and the process with them.
    """
    if arguments is None:
        # The imports make no garbage, but the collector would look through them again and again: a sixth of the start.
        gc.disable()
    from headrace.deploy.commands import run  # noqa: PLC0415

    if arguments is None:
        gc.freeze()
        gc.enable()
    run(sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    main()
