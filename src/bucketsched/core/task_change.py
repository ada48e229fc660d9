"""A change of a task that waits: what it is asked to become."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from . import task_id as ids
from .task import FactKind, Mark, Priority, RowRef, Stage, TaskBody, at_stage


@dataclass(frozen=True, slots=True)
class TaskChange:
    """What is None stays as it is. `generation`: only if the task is still of this one."""

    payload: bytes | None = None
    content_type: str | None = None
    metadata: dict[str, str] | None = None
    priority: Priority | None = None
    due_ms: int | None = None
    generation: int | None = None
    again: bool = False
    """A task that has failed for good, or expired, is done all over. One that waits stays as it is."""
    expires_ms: int | None = None

    @property
    def empty(self) -> bool:
        """True if it asks for nothing."""
        return self == TaskChange(generation=self.generation)

    def applied_to(self, body: TaskBody) -> TaskBody:
        """The body afterwards."""
        return replace(
            body,
            payload=body.payload if self.payload is None else self.payload,
            content_type=body.content_type if self.content_type is None else self.content_type,
            metadata=body.metadata if self.metadata is None else self.metadata,
            priority=body.priority if self.priority is None else self.priority,
            nominal_due_ms=body.nominal_due_ms if self.due_ms is None else self.due_ms,
            expires_ms=self._expires_ms(body),
        )

    def _expires_ms(self, body: TaskBody) -> int:
        if self.expires_ms is not None:
            return self.expires_ms
        return 0 if self.again else body.expires_ms


class ChangeResult(Enum):
    """What became of a change."""

    CHANGED = "changed"
    """It is as it was asked to be, by this change or already before."""
    ALREADY_DISPATCHED = "already dispatched"
    ALREADY_CANCELLED = "already cancelled"
    ALREADY_FAILED = "already failed"
    ALREADY_SUCCEEDED = "already succeeded"
    ALREADY_EXPIRED = "already expired"
    OTHER_GENERATION = "of another generation"
    NOT_FOUND = "not found"


def home_pointer(ref: bytes, new_due_ms: int) -> Mark | None:
    """The fact by which a task's home row names its newest place, so that no look-up follows a chain of moves.

    None where the moved row is the home row itself. A pointer that is lost, or written late over a newer one, only
    makes look-ups longer: each place that a task has left names a later one.
    """
    due_ms, namespace_id, task_id, generation, attempt = RowRef.unpack(at_stage(ref, Stage.DISPATCH))
    home_ms = ids.home_of(task_id).due_ms
    if due_ms == home_ms:
        return None
    assert generation > 0 or attempt > 1, ref
    return Mark(RowRef(home_ms, namespace_id, task_id, 0, 1).pack(), FactKind.MOVED, new_due_ms)
