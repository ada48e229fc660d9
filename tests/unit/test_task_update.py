"""What an update may ask for, and what its change makes of a task."""

from __future__ import annotations

import pytest

from bucketsched.core.durations import DAY_MS
from bucketsched.core.errors import InvalidArgument
from bucketsched.core.task import Priority, TaskBody
from bucketsched.core.task_change import TaskChange
from bucketsched.core.task_update import TaskUpdate, validate_update
from bucketsched.core.validation import Limits
from bucketsched.encoding.changes import change_of, change_request

NOW_MS = 1_700_000_000_000
LIMITS = Limits()
BODY = TaskBody("ns", "q", "t", b"old", {"a": "b"}, Priority.LOW, NOW_MS, NOW_MS - 5, "text/plain")


@pytest.mark.parametrize(
    ("update", "field"),
    [
        (TaskUpdate(), "update_mask"),
        (TaskUpdate(expected_generation=3), "update_mask"),
        (TaskUpdate(payload=b"x" * (LIMITS.payload_bytes_max + 1)), "payload"),
        (TaskUpdate(metadata={"a b": "c"}), "metadata"),
        (TaskUpdate(metadata={"a": "\n"}), "metadata"),
        (TaskUpdate(content_type="text"), "content_type"),
        (TaskUpdate(due_ms=NOW_MS + LIMITS.delay_ms_max + 1), "due_time"),
        (TaskUpdate(delay_ms=-1), "delay"),
        (TaskUpdate(delay_ms=LIMITS.delay_ms_max + 1), "delay"),
        (TaskUpdate(due_ms=NOW_MS, delay_ms=1), "delay"),
        (TaskUpdate(payload=b"", expected_generation=-1), "expected_generation"),
    ],
)
def test_what_is_not_allowed_is_named(update: TaskUpdate, field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        validate_update(update, LIMITS, NOW_MS)
    assert refused.value.field == field


def test_a_delay_is_resolved_once() -> None:
    assert validate_update(TaskUpdate(delay_ms=DAY_MS), LIMITS, NOW_MS) == TaskChange(due_ms=NOW_MS + DAY_MS)


def test_a_due_time_in_the_past_is_allowed() -> None:
    assert validate_update(TaskUpdate(due_ms=5), LIMITS, NOW_MS) == TaskChange(due_ms=5)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (TaskChange(), BODY),
        (
            TaskChange(payload=b""),
            TaskBody("ns", "q", "t", b"", {"a": "b"}, Priority.LOW, NOW_MS, NOW_MS - 5, "text/plain"),
        ),
        (TaskChange(metadata={}), TaskBody("ns", "q", "t", b"old", {}, Priority.LOW, NOW_MS, NOW_MS - 5, "text/plain")),
        (
            TaskChange(priority=Priority.HIGH, due_ms=0, content_type=""),
            TaskBody("ns", "q", "t", b"old", {"a": "b"}, Priority.HIGH, 0, NOW_MS - 5, ""),
        ),
    ],
)
def test_only_what_is_named_is_changed(change: TaskChange, expected: TaskBody) -> None:
    assert change.applied_to(BODY) == expected


@pytest.mark.parametrize(
    "change",
    [
        TaskChange(),
        TaskChange(payload=b"", content_type="", metadata={}, priority=Priority.HIGH, due_ms=0, generation=0),
        TaskChange(payload=b"\xff", content_type="a/b", metadata={"k": "ü"}, priority=Priority.LOW, due_ms=2**42),
    ],
)
def test_a_change_travels_unchanged(change: TaskChange) -> None:
    assert change_of(change_request(b"n" * 16, b"t" * 16, change)) == change
