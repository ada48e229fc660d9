"""Retry policies, as the client gives and takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and how far apart, an attempt that has failed is followed by another one. Lengths in seconds.

    None: as the server has it by default: 10 attempts, the first one among them; pauses of 0 to 1 s behind the first,
    `initial_delay`, growing by 2, `multiplier`, to 5 min, `max_delay`. No attempt is due later than `max_elapsed` after
    the task was; None: as long as there are attempts. `non_retryable_errors`: types of errors after which there is no
    other; of a Python worker, the names of exception classes.
    """

    max_attempts: int | None = None
    initial_delay: float | timedelta | None = None
    multiplier: float | None = None
    max_delay: float | timedelta | None = None
    max_elapsed: float | timedelta | None = None
    non_retryable_errors: Sequence[str] = ()
