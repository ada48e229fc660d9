"""What an update may ask for, and what its change makes of a task."""

from __future__ import annotations

from dataclasses import replace

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
        (TaskUpdate(due_ms=NOW_MS + 5, start_by_ms=NOW_MS + 4), "start_by"),
        (TaskUpdate(delay_ms=5, start_by_ms=NOW_MS + 5 + LIMITS.delay_ms_max + 1), "start_by"),
        (TaskUpdate(start_by_ms=NOW_MS + 2 * LIMITS.delay_ms_max + 1), "start_by"),
    ],
)
def test_what_is_not_allowed_is_named(update: TaskUpdate, field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        validate_update(update, LIMITS, NOW_MS)
    assert refused.value.field == field


def test_a_delay_is_resolved_once() -> None:
    assert validate_update(TaskUpdate(delay_ms=DAY_MS), LIMITS, NOW_MS) == TaskChange(due_ms=NOW_MS + DAY_MS)


@pytest.mark.parametrize(
    ("update", "expires_ms"),
    [
        (TaskUpdate(start_by_ms=NOW_MS - 5), NOW_MS - 5),
        (TaskUpdate(start_by_ms=NOW_MS + 2 * LIMITS.delay_ms_max), NOW_MS + 2 * LIMITS.delay_ms_max),
        (TaskUpdate(start_by_ms=0), 1),
        (TaskUpdate(due_ms=NOW_MS + 5, start_by_ms=NOW_MS + 5), NOW_MS + 5),
    ],
)
def test_an_expiry_may_be_another_one(update: TaskUpdate, expires_ms: int) -> None:
    change = validate_update(update, LIMITS, NOW_MS)
    assert change == TaskChange(due_ms=update.due_ms, expires_ms=expires_ms)
    assert change.applied_to(BODY).expires_ms == expires_ms
    assert change_of(change_request(b"n", b"t", change)) == change


def test_an_expiry_stays_unless_it_is_said_or_the_task_is_done_all_over() -> None:
    body = replace(BODY, expires_ms=NOW_MS + 7)
    assert TaskChange(payload=b"x").applied_to(body).expires_ms == NOW_MS + 7
    assert TaskChange(again=True).applied_to(body).expires_ms == 0
    assert TaskChange(again=True, expires_ms=9).applied_to(body).expires_ms == 9


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
