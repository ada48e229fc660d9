"""bucketsched.v1.Attempt from entries of the execution log."""

from __future__ import annotations

from ..core.execution import Attempt, AttemptEnd
from ..stubs.v1 import task_pb2 as pb
from .instants import timestamp

_OUTCOMES = {
    None: pb.ATTEMPT_OUTCOME_UNSPECIFIED,
    AttemptEnd.SUCCEEDED: pb.ATTEMPT_OUTCOME_SUCCEEDED,
    AttemptEnd.FAILED: pb.ATTEMPT_OUTCOME_FAILED,
    AttemptEnd.TIMED_OUT: pb.ATTEMPT_OUTCOME_TIMED_OUT,
    AttemptEnd.EXPIRED: pb.ATTEMPT_OUTCOME_EXPIRED,
}


def attempt_message(attempt: Attempt) -> pb.Attempt:
    """One entry, as it is shown."""
    return pb.Attempt(
        generation=attempt.generation,
        attempt=attempt.attempt,
        start_time=timestamp(attempt.started_ms) if attempt.started_ms else None,
        end_time=timestamp(attempt.ended_ms) if attempt.ended_ms else None,
        worker=attempt.worker,
        outcome=_OUTCOMES[attempt.end],
        error_type=attempt.error_type,
        error_message=attempt.error_message,
        error_trace=attempt.error_trace,
        result=attempt.result,
        retry_time=timestamp(attempt.retry_ms) if attempt.retry_ms else None,
    )
