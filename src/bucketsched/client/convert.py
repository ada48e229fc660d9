"""Messages of bucketsched.v1 as what the client gives."""

from __future__ import annotations

from datetime import datetime

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from ..core.catalog import QueueKind
from ..core.errors import InvalidArgument
from ..core.execution import AttemptEnd as AttemptOutcome
from ..core.task import Priority, TaskState
from ..stubs.v1 import info_pb2, queue_pb2, task_pb2
from .mail_message import email_from_message
from .model import (
    Attempt,
    CancelOutcome,
    CreatedTask,
    NamespaceInfo,
    QueueInfo,
    ServerInfo,
    TaskInfo,
    UpdateOutcome,
    to_datetime,
)
from .notice_message import from_messages as notices_of
from .request import from_timestamp
from .retry_message import from_message as retry_of
from .sqs_message import sqs_from_message
from .webhook_message import from_message

_STATES: dict[int, TaskState] = {
    task_pb2.TASK_STATE_PENDING: TaskState.PENDING,
    task_pb2.TASK_STATE_DISPATCHED: TaskState.DISPATCHED,
    task_pb2.TASK_STATE_CANCELLED: TaskState.CANCELLED,
    task_pb2.TASK_STATE_FAILED: TaskState.FAILED,
    task_pb2.TASK_STATE_RUNNING: TaskState.RUNNING,
    task_pb2.TASK_STATE_SUCCEEDED: TaskState.SUCCEEDED,
    task_pb2.TASK_STATE_RETRYING: TaskState.RETRYING,
    task_pb2.TASK_STATE_EXPIRED: TaskState.EXPIRED,
}
_PRIORITIES: dict[int, Priority] = {
    task_pb2.PRIORITY_HIGH: Priority.HIGH,
    task_pb2.PRIORITY_LOW: Priority.LOW,
}
_OUTCOMES: dict[int, CancelOutcome] = {
    task_pb2.CANCEL_OUTCOME_CANCELLED: CancelOutcome.CANCELLED,
    task_pb2.CANCEL_OUTCOME_ALREADY_DISPATCHED: CancelOutcome.ALREADY_DISPATCHED,
    task_pb2.CANCEL_OUTCOME_ALREADY_CANCELLED: CancelOutcome.ALREADY_CANCELLED,
    task_pb2.CANCEL_OUTCOME_ALREADY_FAILED: CancelOutcome.ALREADY_FAILED,
    task_pb2.CANCEL_OUTCOME_ALREADY_SUCCEEDED: CancelOutcome.ALREADY_SUCCEEDED,
    task_pb2.CANCEL_OUTCOME_ALREADY_EXPIRED: CancelOutcome.ALREADY_EXPIRED,
}
_UPDATES: dict[int, UpdateOutcome] = {
    task_pb2.UPDATE_OUTCOME_UPDATED: UpdateOutcome.UPDATED,
    task_pb2.UPDATE_OUTCOME_ALREADY_DISPATCHED: UpdateOutcome.ALREADY_DISPATCHED,
    task_pb2.UPDATE_OUTCOME_ALREADY_CANCELLED: UpdateOutcome.ALREADY_CANCELLED,
    task_pb2.UPDATE_OUTCOME_ALREADY_FAILED: UpdateOutcome.ALREADY_FAILED,
    task_pb2.UPDATE_OUTCOME_ALREADY_SUCCEEDED: UpdateOutcome.ALREADY_SUCCEEDED,
    task_pb2.UPDATE_OUTCOME_ALREADY_EXPIRED: UpdateOutcome.ALREADY_EXPIRED,
}
_ENDS: dict[int, AttemptOutcome] = {
    task_pb2.ATTEMPT_OUTCOME_SUCCEEDED: AttemptOutcome.SUCCEEDED,
    task_pb2.ATTEMPT_OUTCOME_FAILED: AttemptOutcome.FAILED,
    task_pb2.ATTEMPT_OUTCOME_TIMED_OUT: AttemptOutcome.TIMED_OUT,
    task_pb2.ATTEMPT_OUTCOME_EXPIRED: AttemptOutcome.EXPIRED,
}
_KINDS: dict[int, QueueKind] = {
    queue_pb2.QUEUE_KIND_KAFKA: QueueKind.KAFKA,
    queue_pb2.QUEUE_KIND_WORKER: QueueKind.WORKER,
    queue_pb2.QUEUE_KIND_WEBHOOK: QueueKind.WEBHOOK,
    queue_pb2.QUEUE_KIND_SQS: QueueKind.SQS,
    queue_pb2.QUEUE_KIND_EMAIL: QueueKind.EMAIL,
}
_TO_KIND: dict[str, queue_pb2.QueueKind.ValueType] = {
    QueueKind.KAFKA: queue_pb2.QUEUE_KIND_KAFKA,
    QueueKind.WORKER: queue_pb2.QUEUE_KIND_WORKER,
    QueueKind.WEBHOOK: queue_pb2.QUEUE_KIND_WEBHOOK,
    QueueKind.SQS: queue_pb2.QUEUE_KIND_SQS,
    QueueKind.EMAIL: queue_pb2.QUEUE_KIND_EMAIL,
}


def created(message: task_pb2.CreateTaskResponse) -> CreatedTask:
    """An accepted task."""
    state = _STATES.get(message.state, TaskState.PENDING)
    return CreatedTask(message.task_id, from_timestamp(message.due_time), state)


def task(message: task_pb2.Task) -> TaskInfo:
    """A task."""
    return TaskInfo(
        id=message.task_id,
        namespace=message.namespace,
        queue=message.queue,
        type=message.type,
        payload=message.payload,
        metadata=dict(message.metadata),
        content_type=message.content_type,
        priority=priority(message.priority),
        state=_STATES.get(message.state, TaskState.PENDING),
        due=_instant(message.due_time),
        created=_instant(message.create_time),
        generation=message.generation,
        attempt=message.attempt,
        dispatched=_given(message, "dispatch_time"),
        cancelled=_given(message, "cancel_time"),
        failed=_given(message, "fail_time"),
        fail_reason=message.fail_reason,
        idempotency_key=message.idempotency_key,
        succeeded=_given(message, "success_time"),
        expired=_given(message, "expire_time"),
        start_by=_given(message, "start_by"),
        retry=retry_of(message.retry) if message.HasField("retry") else None,
        last_attempts=tuple(map(attempt, message.last_attempts)),
        last_error=message.last_error,
        notices=notices_of(message.notices),
    )


def attempt(message: task_pb2.Attempt) -> Attempt:
    """An entry of the execution log."""
    return Attempt(
        generation=message.generation,
        attempt=message.attempt,
        started=_given(message, "start_time"),
        ended=_given(message, "end_time"),
        outcome=_ENDS.get(message.outcome),
        worker=message.worker,
        error_type=message.error_type,
        error_message=message.error_message,
        error_trace=message.error_trace,
        result=message.result,
        retry_due=_given(message, "retry_time"),
    )


def priority(value: int) -> Priority:
    """A priority; unspecified is NORMAL."""
    return _PRIORITIES.get(value, Priority.NORMAL)


def cancel_outcome(value: int) -> CancelOutcome:
    """What became of a cancel."""
    return _OUTCOMES[value]


def update_outcome(value: int) -> UpdateOutcome:
    """What became of a change."""
    return _UPDATES[value]


def queue(message: queue_pb2.Queue) -> QueueInfo:
    """A queue."""
    return QueueInfo(
        namespace=message.namespace,
        name=message.name,
        kind=_KINDS[message.kind],
        topic=message.topic,
        partitions=message.partitions,
        replication=message.replication,
        priority_topics=message.priority_topics,
        created=_instant(message.create_time),
        webhook=from_message(message.webhook) if message.HasField("webhook") else None,
        sqs=sqs_from_message(message.sqs) if message.HasField("sqs") else None,
        email=email_from_message(message.email) if message.HasField("email") else None,
        retry=retry_of(message.policy.retry) if message.policy.HasField("retry") else None,
        notices=notices_of(message.policy.notices),
    )


def to_queue_kind(kind: QueueKind | str) -> queue_pb2.QueueKind.ValueType:
    """Reverse. Raises InvalidArgument."""
    found = _TO_KIND.get(kind.upper()) if isinstance(kind, str) else None
    if found is None:
        raise InvalidArgument("kind", "must be KAFKA, WORKER, WEBHOOK, SQS or EMAIL")
    return found


def namespace(message: queue_pb2.Namespace) -> NamespaceInfo:
    """A namespace."""
    return NamespaceInfo(message.name, _instant(message.create_time))


def server_info(message: info_pb2.GetServerInfoResponse, clock_offset_ms: int) -> ServerInfo:
    """The server."""
    return ServerInfo(
        version=message.version,
        mode=message.mode,
        shards=message.shards,
        payload_bytes_max=message.payload_bytes_max,
        batch_tasks_max=message.batch_tasks_max,
        delay_ms_max=message.delay_ms_max,
        clock_offset_ms=clock_offset_ms,
    )


def _instant(value: Timestamp) -> datetime:
    return to_datetime(from_timestamp(value))


def _given(message: Message, field: str) -> datetime | None:
    return _instant(getattr(message, field)) if message.HasField(field) else None
