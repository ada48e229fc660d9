"""What the process says when it ends."""

from __future__ import annotations

import os
import sys
from enum import IntEnum

import click

from ..core.errors import (
    AlreadyExists,
    BucketschedError,
    ConfigError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Unavailable,
)


class ExitCode(IntEnum):
    """The exit codes of every command."""

    OK = 0
    FAILURE = 1
    """Something went wrong that none of the others names."""
    INVALID = 2
    """Wrong usage, a value that is not allowed, or a wrong setting."""
    NOT_FOUND = 3
    CONFLICT = 4
    """It exists already and differs, or it is too late: a cancelled task was already dispatched."""
    UNAVAILABLE = 5
    """The server can't be reached or can't answer now; the same command can safely be given again."""
    INTERRUPTED = 130
    """By SIGINT; a server ends with 0 instead, once it can, or so after a second one."""
    TERMINATED = 143
    """By SIGTERM; likewise."""


HELP = """Exit codes: 0 done, 1 failed, 2 wrong usage, value or setting, 3 not found, 4 conflict or too late,
5 unavailable (try again), 130 interrupted, 143 terminated."""

_CODES: tuple[tuple[type[BucketschedError], ExitCode], ...] = (
    (InvalidArgument, ExitCode.INVALID),
    (ConfigError, ExitCode.INVALID),
    (NotFound, ExitCode.NOT_FOUND),
    (AlreadyExists, ExitCode.CONFLICT),
    (FailedPrecondition, ExitCode.CONFLICT),
    (Unavailable, ExitCode.UNAVAILABLE),
)


def run(arguments: list[str] | None) -> int:
    """Runs the command line, and turns every error into one line on stderr and an exit code."""
    from .root import root

    try:
        result = root.main(args=arguments, prog_name="bucketsched", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else ExitCode.OK
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # whoever reads our output has seen enough; don't complain again when stdout is flushed at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILURE
    except BucketschedError as error:
        print(f"bucketsched: {one_line(error)}", file=sys.stderr)
        return code_of(error)


def code_of(error: BucketschedError) -> ExitCode:
    """The exit code for an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILURE)


def one_line(error: Exception) -> str:
    """The error's message without line breaks."""
    return " ".join(str(error).split())
