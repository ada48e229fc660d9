"""Entries of the execution log, and reports of them, as protobuf."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from ..core.execution import Attempt, AttemptEnd, AttemptReport
from ..stubs.internal.v1 import owner_pb2, storage_pb2


def attempt_message(attempt: Attempt) -> storage_pb2.Attempt:
    """The protobuf form of an entry."""
    return storage_pb2.Attempt(
        namespace_id=attempt.namespace_id,
        task_id=attempt.task_id,
        generation=attempt.generation,
        attempt=attempt.attempt,
        started_ms=attempt.started_ms,
        ended_ms=attempt.ended_ms,
        end=attempt.end.value if attempt.end else "",
        worker=attempt.worker,
        error_type=attempt.error_type,
        error_message=attempt.error_message,
        error_trace=attempt.error_trace,
        result=attempt.result,
        retry_ms=attempt.retry_ms,
    )


def attempt_of(message: storage_pb2.Attempt) -> Attempt:
    """Reverse of `attempt_message`. Raises ValueError where its end is none."""
    return Attempt(
        namespace_id=message.namespace_id,
        task_id=message.task_id,
        generation=message.generation,
        attempt=message.attempt,
        started_ms=message.started_ms,
        ended_ms=message.ended_ms,
        end=AttemptEnd(message.end) if message.end else None,
        worker=message.worker,
        error_type=message.error_type,
        error_message=message.error_message,
        error_trace=message.error_trace,
        result=message.result,
        retry_ms=message.retry_ms,
    )


def encode_outcome(attempt: Attempt) -> bytes:
    """What the journal keeps of an outcome."""
    return storage_pb2.OutcomeRecord(attempt=attempt_message(attempt)).SerializeToString()


def decode_outcome(value: bytes) -> Attempt:
    """Reverse of `encode_outcome`. Raises ValueError where it can't be decoded."""
    try:
        return attempt_of(storage_pb2.OutcomeRecord.FromString(value).attempt)
    except DecodeError as error:
        raise ValueError(str(error)) from error


def report_message(report: AttemptReport) -> owner_pb2.AttemptReport:
    """The protobuf form of a report."""
    return owner_pb2.AttemptReport(
        attempt=attempt_message(report.attempt),
        row_due_ms=report.row_due_ms,
        final=report.final,
        pause_ms_least=report.pause_ms_least,
        queue=report.queue,
        notices=report.notices,
    )


def report_of(message: owner_pb2.AttemptReport) -> AttemptReport:
    """Reverse of `report_message`. Raises ValueError where its attempt's end is none."""
    attempt = attempt_of(message.attempt)
    more = (message.final, message.pause_ms_least, message.queue, message.notices)
    return AttemptReport(attempt, message.row_due_ms, *more)
