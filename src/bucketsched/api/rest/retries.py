"""Retry policies as JSON has them."""

from __future__ import annotations

from typing import Any

from ...core.retry import RetryPolicy
from ...core.retry_check import asked_policy
from . import models
from .content import length_or_none_ms


def retry_of(body: models.Retry | None, where: str) -> RetryPolicy | None:
    """What was asked for, with defaults for what was left out. Raises InvalidArgument where it is no length of time."""
    if body is None:
        return None
    return asked_policy(
        body.max_attempts,
        length_or_none_ms(body.initial_delay, f"{where}.initial_delay"),
        body.multiplier,
        length_or_none_ms(body.max_delay, f"{where}.max_delay"),
        length_or_none_ms(body.max_elapsed, f"{where}.max_elapsed"),
        body.non_retryable_errors or (),
    )


def retry_json(retry: RetryPolicy | None) -> dict[str, Any] | None:
    """As it is shown: all of it, lengths in seconds."""
    if retry is None:
        return None
    return {
        "max_attempts": retry.tries_max,
        "initial_delay": retry.delay_ms_first / 1000,
        "multiplier": retry.multiplier,
        "max_delay": retry.delay_ms_max / 1000,
        "max_elapsed": retry.elapsed_ms_max / 1000,
        "non_retryable_errors": retry.final_errors,
    }
