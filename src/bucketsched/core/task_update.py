"""What an update of a task may ask for."""

from __future__ import annotations

from dataclasses import dataclass

from .durations import in_words
from .errors import InvalidArgument
from .task import Priority
from .task_change import TaskChange
from .validation import Limits, check_content_type, check_metadata, check_payload


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


def validate_update(update: TaskUpdate, limits: Limits, now_ms: int) -> TaskChange:
    """The change that is meant. Raises InvalidArgument with the field at fault and what is allowed."""
    if update.payload is not None:
        check_payload(update.payload, limits)
    if update.metadata:
        check_metadata(update.metadata, limits)
    if update.content_type:
        check_content_type(update.content_type)
    change = TaskChange(
        update.payload,
        update.content_type,
        update.metadata,
        update.priority,
        _due_ms(update, limits, now_ms),
        update.expected_generation,
    )
    if change.empty:
        raise InvalidArgument("update_mask", "must name at least one of the fields that can be changed")
    if change.generation is not None and change.generation < 0:
        raise InvalidArgument("expected_generation", "must not be negative")
    return change


def _due_ms(update: TaskUpdate, limits: Limits, now_ms: int) -> int | None:
    if update.delay_ms is None:
        if update.due_ms is not None and update.due_ms > now_ms + limits.delay_ms_max:
            raise InvalidArgument("due_time", f"must be at most {in_words(limits.delay_ms_max)} from now")
        return update.due_ms
    if update.due_ms is not None:
        raise InvalidArgument("delay", "must not be given together with due_time")
    if not 0 <= update.delay_ms <= limits.delay_ms_max:
        raise InvalidArgument("delay", f"must be 0 to {in_words(limits.delay_ms_max)}")
    return now_ms + update.delay_ms
