"""The command line. Each command's module is loaded when the command is called, so that all of them start fast.

Results go to stdout: tables for people, or with `--output json` one JSON document; everything else goes to stderr.
Exit codes: see `exit_code.ExitCode`.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

TERMINATED = 128 + signal.SIGTERM
"""As a shell tells the end by SIGTERM; see exit_code.ExitCode."""


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; the exit code. SIGTERM ends it at once, until the command handles it by itself."""
    if threading.current_thread() is threading.main_thread():  # only there signals can be minded
        signal.signal(signal.SIGTERM, _end)
    from .exit_code import run

    return run(arguments)


def _end(number: int, frame: FrameType | None) -> None:
    """Without an exception: raised somewhere in an import's callbacks it would be swallowed, and the start go on."""
    os._exit(TERMINATED)
