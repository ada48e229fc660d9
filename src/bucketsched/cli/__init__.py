"""The command line. Each command's module is loaded when the command is called, so that all of them start fast.

Results go to stdout: tables for people, or with `--output json` one JSON document; everything else goes to stderr.
Exit codes: see `exit_code.ExitCode`.
"""

from __future__ import annotations


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; the exit code."""
    from .exit_code import run

    return run(arguments)
