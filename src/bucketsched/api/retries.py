"""bucketsched.v1.RetryPolicy from and to what the core knows."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from ..core.durations import duration_ms
from ..core.retry import RetryPolicy
from ..core.retry_check import asked_policy
from ..stubs.v1 import task_pb2 as pb


def retry_of(message: pb.RetryPolicy, where: str) -> RetryPolicy:
    """What was asked for, with defaults for what was left out. Raises InvalidArgument where it is no length of time."""
    given = {
        field.name: duration_ms(found.seconds, found.nanos, f"{where}.{field.name}")
        for field, found in message.ListFields()
        if field.message_type
    }
    return asked_policy(
        message.max_attempts if message.HasField("max_attempts") else None,
        given.get("initial_delay"),
        message.multiplier if message.HasField("multiplier") else None,
        given.get("max_delay"),
        given.get("max_elapsed"),
        message.non_retryable_errors,
    )


def retry_message(retry: RetryPolicy | None) -> pb.RetryPolicy | None:
    """As it is shown: all of it."""
    if retry is None:
        return None
    return pb.RetryPolicy(
        max_attempts=retry.tries_max,
        initial_delay=length(retry.delay_ms_first),
        multiplier=retry.multiplier,
        max_delay=length(retry.delay_ms_max),
        max_elapsed=length(retry.elapsed_ms_max),
        non_retryable_errors=retry.final_errors,
    )


def length(ms: int) -> Duration:
    """A length of time."""
    seconds, rest = divmod(ms, 1000)
    return Duration(seconds=seconds, nanos=rest * 1_000_000)
