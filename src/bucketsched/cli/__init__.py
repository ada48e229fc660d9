"""The command line. Each command's module is loaded when the command is called, so that all of them start fast.

Results go to stdout: tables for people, or with `--output json` one JSON document; everything else goes to stderr.
Exit codes: see `exit_code.ExitCode`.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

TERMINATED = 128 + signal.SIGTERM
"""As a shell tells the end by SIGTERM; see exit_code.ExitCode."""


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; the exit code. SIGTERM ends it by SystemExit, until the command handles it by itself."""
    signal.signal(signal.SIGTERM, _end)
    from .exit_code import run

    return run(arguments)


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(TERMINATED)
