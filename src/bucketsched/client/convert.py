"""Messages of bucketsched.v1 as what the client gives."""

from __future__ import annotations

from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp

from ..core.catalog import QueueKind
from ..core.errors import InvalidArgument
from ..core.task import Priority, TaskState
from ..stubs.v1 import info_pb2, queue_pb2, task_pb2
from .model import (
    CancelOutcome,
    CreatedTask,
    NamespaceInfo,
    QueueInfo,
    ServerInfo,
    TaskInfo,
    UpdateOutcome,
    to_datetime,
)
from .request import from_timestamp
from .webhook_message import from_message

_STATES: dict[int, TaskState] = {
    task_pb2.TASK_STATE_PENDING: TaskState.PENDING,
    task_pb2.TASK_STATE_DISPATCHED: TaskState.DISPATCHED,
    task_pb2.TASK_STATE_CANCELLED: TaskState.CANCELLED,
    task_pb2.TASK_STATE_FAILED: TaskState.FAILED,
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
}
_UPDATES: dict[int, UpdateOutcome] = {
    task_pb2.UPDATE_OUTCOME_UPDATED: UpdateOutcome.UPDATED,
    task_pb2.UPDATE_OUTCOME_ALREADY_DISPATCHED: UpdateOutcome.ALREADY_DISPATCHED,
    task_pb2.UPDATE_OUTCOME_ALREADY_CANCELLED: UpdateOutcome.ALREADY_CANCELLED,
    task_pb2.UPDATE_OUTCOME_ALREADY_FAILED: UpdateOutcome.ALREADY_FAILED,
}
_KINDS: dict[int, QueueKind] = {
    queue_pb2.QUEUE_KIND_KAFKA: QueueKind.KAFKA,
    queue_pb2.QUEUE_KIND_WORKER: QueueKind.WORKER,
    queue_pb2.QUEUE_KIND_WEBHOOK: QueueKind.WEBHOOK,
}
_TO_KIND: dict[str, queue_pb2.QueueKind.ValueType] = {
    QueueKind.KAFKA: queue_pb2.QUEUE_KIND_KAFKA,
    QueueKind.WORKER: queue_pb2.QUEUE_KIND_WORKER,
    QueueKind.WEBHOOK: queue_pb2.QUEUE_KIND_WEBHOOK,
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
        dispatched=_instant(message.dispatch_time) if message.HasField("dispatch_time") else None,
        cancelled=_instant(message.cancel_time) if message.HasField("cancel_time") else None,
        failed=_instant(message.fail_time) if message.HasField("fail_time") else None,
        fail_reason=message.fail_reason,
        idempotency_key=message.idempotency_key,
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
    )


def to_queue_kind(kind: QueueKind | str) -> queue_pb2.QueueKind.ValueType:
    """Reverse. Raises InvalidArgument."""
    found = _TO_KIND.get(kind.upper()) if isinstance(kind, str) else None
    if found is None:
        raise InvalidArgument("kind", "must be KAFKA, WORKER or WEBHOOK")
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
