"""Changes of tasks as they travel between nodes."""

from __future__ import annotations

from ..core.task import Priority
from ..core.task_change import TaskChange
from ..stubs.internal.v1 import owner_pb2 as pb


def change_request(namespace_id: bytes, task_id: bytes, change: TaskChange) -> pb.ChangeRequest:
    """The question to the owner."""
    metadata = None if change.metadata is None else pb.Metadata(entries=change.metadata)
    return pb.ChangeRequest(
        namespace_id=namespace_id,
        task_id=task_id,
        payload=change.payload,
        content_type=change.content_type,
        metadata=metadata,
        priority=change.priority,
        due_ms=change.due_ms,
        generation=change.generation,
        again=change.again,
        expires_ms=change.expires_ms,
    )


def change_of(request: pb.ChangeRequest) -> TaskChange:
    """Reverse of `change_request`. Raises ValueError where the priority is none."""
    return TaskChange(
        payload=request.payload if request.HasField("payload") else None,
        content_type=request.content_type if request.HasField("content_type") else None,
        metadata=dict(request.metadata.entries) if request.HasField("metadata") else None,
        priority=Priority(request.priority) if request.HasField("priority") else None,
        due_ms=request.due_ms if request.HasField("due_ms") else None,
        generation=request.generation if request.HasField("generation") else None,
        again=request.again,
        expires_ms=request.expires_ms if request.HasField("expires_ms") else None,
    )
