"""Why a message is late: one reason, the first that holds."""

from __future__ import annotations

import pytest

from bucketsched.core import task_id as ids
from bucketsched.core.catalog import Queue, QueueKind
from bucketsched.core.lateness import LATE_MS, LateReason, why_late
from bucketsched.core.message import from_headers, to_message
from bucketsched.core.task import TaskBody, TaskRow

NAMESPACE = bytes(16)
DUE_MS = 1_764_472_099_123
LONG_MS = 3_600_000


def row(created_ms: int = DUE_MS - LONG_MS, due_ms: int = DUE_MS, generation: int = 0) -> TaskRow:
    body = TaskBody("ns", "q", "t", nominal_due_ms=DUE_MS, created_ms=created_ms)
    return TaskRow(due_ms, NAMESPACE, ids.mint(due_ms, 1, 2), body, generation)


@pytest.mark.parametrize(
    ("task", "dispatched_ms", "served_from_ms", "blocked_until_ms", "reason"),
    [
        (row(), DUE_MS, DUE_MS + 5, DUE_MS + 5, None),
        (row(), DUE_MS + LATE_MS, 0, 0, None),
        (row(), DUE_MS + LATE_MS + 1, 0, 0, LateReason.LOAD),
        (row(), DUE_MS + LONG_MS, DUE_MS + 1, DUE_MS + LONG_MS, LateReason.OUTAGE),
        (row(), DUE_MS + LONG_MS, DUE_MS, DUE_MS, LateReason.DESTINATION),
        (row(), DUE_MS + LONG_MS, DUE_MS, DUE_MS - 1, LateReason.LOAD),
        (row(created_ms=DUE_MS + LONG_MS), DUE_MS + LONG_MS + 9, DUE_MS + 1, 0, LateReason.CREATED),
        (row(created_ms=DUE_MS + LONG_MS), DUE_MS + 2 * LONG_MS, DUE_MS + 1, 0, LateReason.OUTAGE),
        (row(due_ms=DUE_MS + LONG_MS, generation=1), DUE_MS + LONG_MS + 9, 0, 0, LateReason.MOVED),
        (row(due_ms=DUE_MS + LONG_MS, generation=1), DUE_MS + 2 * LONG_MS, 0, 0, LateReason.LOAD),
    ],
)
def test_the_first_reason_that_holds(
    task: TaskRow, dispatched_ms: int, served_from_ms: int, blocked_until_ms: int, reason: LateReason | None
) -> None:
    assert why_late(task, dispatched_ms, served_from_ms, blocked_until_ms) is reason


def test_a_message_says_that_it_is_late_and_why() -> None:
    queue = Queue(NAMESPACE, "ns", "q", QueueKind.KAFKA, "topic")
    on_time = dict(to_message(row(), queue, 1, DUE_MS + 5).headers)
    assert not {"ce_latems", "ce_latereason"} & on_time.keys()
    late = to_message(row(due_ms=DUE_MS + 7, generation=1), queue, 1, DUE_MS + LONG_MS, LateReason.OUTAGE)
    headers = dict(late.headers)
    assert (headers["ce_latems"], headers["ce_latereason"]) == (b"%d" % LONG_MS, b"outage")
    assert from_headers(late.headers, late.value).due_ms == DUE_MS


def test_the_reasons_are_what_the_documentation_says() -> None:
    from pathlib import Path

    text = (Path(__file__).parents[2] / "docs" / "messages.md").read_text()
    assert all(f"`{reason.value}`" in text for reason in LateReason)
