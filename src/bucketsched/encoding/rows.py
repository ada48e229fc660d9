"""Task bodies and rows as protobuf."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from ..core.notice_rule import NoticeEvent, NoticeRule
from ..core.retry import RetryPolicy
from ..core.task import Priority, TaskBody, TaskRow
from ..stubs.internal.v1 import storage_pb2 as pb

UNDECODABLE = ""
"""The `type` of a body that could not be decoded: such a row is failed, never sent. No valid task has an empty type."""


def body_message(body: TaskBody) -> pb.TaskBody:
    """The protobuf form of a body."""
    message = pb.TaskBody(
        namespace=body.namespace,
        queue=body.queue,
        type=body.type,
        payload=body.payload,
        metadata=body.metadata,
        priority=body.priority,
        nominal_due_ms=body.nominal_due_ms,
        created_ms=body.created_ms,
        content_type=body.content_type,
        idempotency_key=body.idempotency_key,
        expires_ms=body.expires_ms,
    )
    for rule in body.notices:
        message.notices.add(events=rule.events, queue=rule.queue, late_ms=rule.late_ms)
    if body.retry is not None:
        message.retry.CopyFrom(_retry_message(body.retry))
    return message


def _retry_message(retry: RetryPolicy) -> pb.RetryPolicy:
    return pb.RetryPolicy(
        tries_max=retry.tries_max,
        delay_ms_first=retry.delay_ms_first,
        delay_ms_max=retry.delay_ms_max,
        elapsed_ms_max=retry.elapsed_ms_max,
        multiplier=retry.multiplier,
        final_errors=retry.final_errors,
    )


def _retry_of(message: pb.RetryPolicy) -> RetryPolicy:
    return RetryPolicy(
        message.tries_max,
        message.delay_ms_first,
        message.delay_ms_max,
        message.elapsed_ms_max,
        message.multiplier,
        tuple(message.final_errors),
    )


def encode_body(body: TaskBody) -> bytes:
    """The cell tasks.body."""
    return body_message(body).SerializeToString()


def body_from_message(message: pb.TaskBody) -> TaskBody:
    """Reverse of `body_message`."""
    return TaskBody(
        namespace=message.namespace,
        queue=message.queue,
        type=message.type,
        payload=message.payload,
        metadata=dict(message.metadata) if message.metadata else {},
        priority=Priority(message.priority),
        nominal_due_ms=message.nominal_due_ms,
        created_ms=message.created_ms,
        content_type=message.content_type,
        idempotency_key=message.idempotency_key,
        retry=_retry_of(message.retry) if message.HasField("retry") else None,
        expires_ms=message.expires_ms,
        notices=tuple(_rule_of(rule) for rule in message.notices),
    )


def _rule_of(message: pb.NoticeRule) -> NoticeRule:
    return NoticeRule(tuple(NoticeEvent(event) for event in message.events), message.queue, message.late_ms)


def decode_body(value: bytes) -> TaskBody:
    """Reverse of `encode_body`; what can't be decoded becomes a body whose type is UNDECODABLE."""
    try:
        return body_from_message(pb.TaskBody.FromString(value))
    except (DecodeError, ValueError):
        return TaskBody("", "", UNDECODABLE, payload=value)


def row_message(row: TaskRow) -> pb.StoredRow:
    """A row as it travels between nodes."""
    return pb.StoredRow(
        due_ms=row.due_ms,
        namespace_id=row.namespace_id,
        task_id=row.task_id,
        generation=row.generation,
        attempt=row.attempt,
        body=body_message(row.body),
    )


def row_from_message(message: pb.StoredRow) -> TaskRow:
    """Reverse of `row_message`."""
    return TaskRow(
        message.due_ms,
        message.namespace_id,
        message.task_id,
        body_from_message(message.body),
        message.generation,
        message.attempt,
    )
