"""What a retry policy may be, as it is asked for: one validator for tasks and queues."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from .durations import DAY_MS, in_words
from .errors import InvalidArgument
from .execution import ERROR_TYPE_CHARACTERS_MAX
from .retry import DEFAULT_RETRY, RetryPolicy

ATTEMPTS_MAX = 1_000
MULTIPLIER_MAX = 100.0
LENGTH_MS_MAX = 400 * DAY_MS
FINAL_ERRORS_MAX = 20

_UNCLEAN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def asked_policy(
    attempts: int | None,
    initial_ms: int | None,
    multiplier: float | None,
    delay_ms_max: int | None,
    elapsed_ms_max: int | None,
    final_errors: Sequence[str] = (),
) -> RetryPolicy:
    """The policy that is meant; None: it was left out. Not checked yet.

    The longest pause is no shorter than the first one then, and there is no limit to the time that all of it takes:
    who says how often, and how far apart, means that.
    """
    initial_ms = DEFAULT_RETRY.delay_ms_first if initial_ms is None else initial_ms
    return RetryPolicy(
        tries_max=DEFAULT_RETRY.tries_max if attempts is None else attempts,
        delay_ms_first=initial_ms,
        delay_ms_max=max(DEFAULT_RETRY.delay_ms_max, initial_ms) if delay_ms_max is None else delay_ms_max,
        elapsed_ms_max=LENGTH_MS_MAX if elapsed_ms_max is None else elapsed_ms_max,
        multiplier=DEFAULT_RETRY.multiplier if multiplier is None else float(multiplier),
        final_errors=tuple(final_errors),
    )


def check_retry(policy: RetryPolicy, where: str) -> None:
    """Raises InvalidArgument with the field at fault: `where`, and which of its parts."""
    if not 1 <= policy.tries_max <= ATTEMPTS_MAX:
        raise InvalidArgument(f"{where}.max_attempts", f"must be 1 to {ATTEMPTS_MAX}, is {policy.tries_max}")
    for name, length_ms in (
        ("initial_delay", policy.delay_ms_first),
        ("max_delay", policy.delay_ms_max),
        ("max_elapsed", policy.elapsed_ms_max),
    ):
        if not 0 <= length_ms <= LENGTH_MS_MAX:
            raise InvalidArgument(f"{where}.{name}", f"must be 0 to {in_words(LENGTH_MS_MAX)}")
    if policy.delay_ms_first > policy.delay_ms_max:
        raise InvalidArgument(f"{where}.max_delay", "must be at least initial_delay")
    if not (math.isfinite(policy.multiplier) and 1 <= policy.multiplier <= MULTIPLIER_MAX):
        raise InvalidArgument(f"{where}.multiplier", f"must be 1 to {MULTIPLIER_MAX:g}, is {policy.multiplier:g}")
    _check_errors(policy.final_errors, f"{where}.non_retryable_errors")


def _check_errors(types: Sequence[str], field: str) -> None:
    if len(types) > FINAL_ERRORS_MAX:
        raise InvalidArgument(field, f"must be at most {FINAL_ERRORS_MAX}, are {len(types)}")
    for name in types:
        if not 1 <= len(name) <= ERROR_TYPE_CHARACTERS_MAX or _UNCLEAN.search(name):
            raise InvalidArgument(
                field, f"must each be 1 to {ERROR_TYPE_CHARACTERS_MAX} characters, none of them a control character"
            )
