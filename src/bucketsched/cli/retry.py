"""What says on the command line how often, and how far apart, a failed attempt is followed by another one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .parameters import LENGTH

if TYPE_CHECKING:
    from ..client import RetryPolicy

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = [
    click.option("--max-attempts", type=int, help="Retry policy: the first one among them [10]."),
    click.option("--initial-delay", type=LENGTH, help="Retry policy: the longest pause behind the first attempt [1s]."),
    click.option("--multiplier", type=float, help="Retry policy: what it grows by with each attempt [2]."),
    click.option("--max-delay", type=LENGTH, help="Retry policy: what it grows to [5m, or the initial one]."),
    click.option("--max-elapsed", type=LENGTH, help="Retry policy: no attempt is due later after the task was [any]."),
    click.option(
        "--non-retryable-error",
        "non_retryable_errors",
        multiple=True,
        help="Retry policy: a type of error after which there is no other attempt. May be given many times.",
    ),
]

RETRY_OPTIONS = ("max_attempts", "initial_delay", "multiplier", "max_delay", "max_elapsed", "non_retryable_errors")
"""As a command gets them."""


def retry_options(command: Command) -> Command:
    """Adds the options; `retry_of` takes them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def retry_of(**given: Any) -> RetryPolicy | None:
    """The policy that the options mean. None: none of them was given."""
    from ..client import RetryPolicy

    chosen = {name: value for name, value in given.items() if value not in (None, ())}
    return RetryPolicy(**chosen) if chosen else None


def described_retry(policy: RetryPolicy | None) -> dict[str, Any] | None:
    """As it is shown: lengths in seconds."""
    if policy is None:
        return None
    return {
        "max_attempts": policy.max_attempts,
        "initial_delay": _plain(policy.initial_delay),
        "multiplier": policy.multiplier,
        "max_delay": _plain(policy.max_delay),
        "max_elapsed": _plain(policy.max_elapsed),
        "non_retryable_errors": list(policy.non_retryable_errors),
    }


def _plain(length: float | timedelta | None) -> float | None:
    return length.total_seconds() if isinstance(length, timedelta) else length
