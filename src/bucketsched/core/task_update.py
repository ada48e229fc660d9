"""What an update of a task may ask for."""

from __future__ import annotations

from dataclasses import dataclass

from .durations import in_words
from .errors import InvalidArgument
from .task import Priority
from .task_change import TaskChange
from .validation import Limits, check_content_type, check_metadata, check_payload, resolve_due_ms


@dataclass(frozen=True, slots=True)
class TaskUpdate:
    """A change as it was asked for: None stays as it is. At most one of `due_ms` and `delay_ms`."""

    payload: bytes | None = None
    content_type: str | None = None
    metadata: dict[str, str] | None = None
    priority: Priority | None = None
    due_ms: int | None = None
    delay_ms: int | None = None
    expected_generation: int | None = None
    start_by_ms: int | None = None


def validate_update(update: TaskUpdate, limits: Limits, now_ms: int) -> TaskChange:
    """The change that is meant. Raises InvalidArgument with the field at fault and what is allowed."""
    if update.payload is not None:
        check_payload(update.payload, limits)
    if update.metadata:
        check_metadata(update.metadata, limits)
    if update.content_type:
        check_content_type(update.content_type)
    due_ms = resolve_due_ms(update.due_ms, update.delay_ms, limits, now_ms)
    change = TaskChange(
        update.payload,
        update.content_type,
        update.metadata,
        update.priority,
        due_ms,
        update.expected_generation,
        expires_ms=_expires_ms(update.start_by_ms, due_ms, limits, now_ms),
    )
    if change.empty:
        raise InvalidArgument("update_mask", "must name at least one of the fields that can be changed")
    if change.generation is not None and change.generation < 0:
        raise InvalidArgument("expected_generation", "must not be negative")
    return change


def _expires_ms(start_by_ms: int | None, due_ms: int | None, limits: Limits, now_ms: int) -> int | None:
    """When the task is due is known here only where that is changed, too; else it may be as far ahead as any."""
    if start_by_ms is None:
        return None
    latest_due_ms = now_ms + limits.delay_ms_max if due_ms is None else due_ms
    if start_by_ms > latest_due_ms + limits.delay_ms_max:
        raise InvalidArgument("start_by", f"must be at most {in_words(limits.delay_ms_max)} after the task is due")
    if due_ms is not None and start_by_ms < due_ms:
        raise InvalidArgument("start_by", "must not be before the task is due")
    return max(1, start_by_ms)
