"""Retry policies as messages of bucketsched.v1."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.errors import InvalidArgument
from ..stubs.v1 import task_pb2 as pb
from .fields import check_text, length_message, seconds_of
from .retry_policy import RetryPolicy

_INT32_MAX = 2**31 - 1


def to_message(policy: RetryPolicy | None) -> pb.RetryPolicy | None:
    """As it is sent. Raises InvalidArgument for what no message can hold; the rest is up to the server."""
    if policy is None:
        return None
    if not isinstance(policy, RetryPolicy):
        raise InvalidArgument("retry", f"must be a RetryPolicy, is {type(policy).__name__}")
    attempts, multiplier = policy.max_attempts, policy.multiplier
    if attempts is not None and not (isinstance(attempts, int) and -_INT32_MAX <= attempts <= _INT32_MAX):
        raise InvalidArgument("retry.max_attempts", f"must be a number, is {attempts!r}")
    if multiplier is not None and (isinstance(multiplier, bool) or not isinstance(multiplier, int | float)):
        raise InvalidArgument("retry.multiplier", f"must be a number, is {multiplier!r}")
    return pb.RetryPolicy(
        max_attempts=attempts,
        initial_delay=length_message("retry.initial_delay", policy.initial_delay),
        multiplier=multiplier,
        max_delay=length_message("retry.max_delay", policy.max_delay),
        max_elapsed=length_message("retry.max_elapsed", policy.max_elapsed),
        non_retryable_errors=_names(policy.non_retryable_errors),
    )


def from_message(message: pb.RetryPolicy) -> RetryPolicy:
    """As the server shows it: all of it."""
    return RetryPolicy(
        max_attempts=message.max_attempts,
        initial_delay=seconds_of(message.initial_delay),
        multiplier=message.multiplier,
        max_delay=seconds_of(message.max_delay),
        max_elapsed=seconds_of(message.max_elapsed),
        non_retryable_errors=tuple(message.non_retryable_errors),
    )


def _names(names: Sequence[str]) -> Sequence[str]:
    field = "retry.non_retryable_errors"
    if isinstance(names, str | bytes):  # a single text would be taken for its characters
        raise InvalidArgument(field, f"must be a list, is {type(names).__name__}")
    for name in names:
        check_text(field, name)
    return names
