"""The due heap and the ready queue, as laws."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from bucketsched.core import task_id as ids
from bucketsched.core.due_heap import DueHeap
from bucketsched.core.ready_queue import ReadyQueue
from bucketsched.core.task import Priority, TaskBody, TaskRow

AGEING_MS = 30_000


def row(due_ms: int, number: int, priority: Priority = Priority.NORMAL, queue: str = "q") -> TaskRow:
    return TaskRow(due_ms, bytes(16), ids.mint(due_ms, 0, number), TaskBody("n", queue, "t", priority=priority))


@example([10, 11, 13], 10, 5)
@given(st.lists(st.integers(0, 1_000), max_size=40), st.integers(0, 1_000), st.integers(0, 50))
def test_what_is_due_comes_out_earliest_first_and_nothing_else(dues: list[int], now_ms: int, limit: int) -> None:
    heap = DueHeap()
    for number, due_ms in enumerate(dues):
        heap.push(row(due_ms, number))
    out = [r.due_ms for r in heap.pop_due(now_ms, limit)]
    assert out == sorted(due for due in dues if due <= now_ms)[:limit]
    assert len(heap) == len(dues) - len(out)
    left = sorted(dues)[len(out) :]
    assert heap.next_due_ms == (left[0] if left else None)


@given(st.lists(st.tuples(st.integers(0, 100_000), st.sampled_from(Priority)), max_size=40))
def test_priority_decides_unless_the_lower_one_is_older_by_the_ageing(tasks: list[tuple[int, Priority]]) -> None:
    queue: ReadyQueue[int] = ReadyQueue(AGEING_MS)
    for number, (due_ms, priority) in enumerate(tasks):
        queue.push(row(due_ms, number, priority), number)
    out = [queue.pop() for _ in range(len(queue))]
    assert sorted(number for _, number in out) == list(range(len(tasks)))
    for (first, _), (second, _) in pairwise(out):
        steps = second.body.priority - first.body.priority
        assert first.due_ms <= second.due_ms + AGEING_MS * steps


def test_rows_of_one_instant_and_priority_keep_an_order() -> None:
    queue: ReadyQueue[None] = ReadyQueue(AGEING_MS)
    rows = [row(5, n) for n in (3, 1, 2)]
    for one in rows:
        queue.push(one, None)
    assert [queue.pop()[0].ref for _ in rows] == sorted(r.ref for r in rows)


def test_a_row_of_a_former_and_a_present_owner_comes_out_for_both() -> None:
    queue: ReadyQueue[object] = ReadyQueue(AGEING_MS)
    owners = [object(), object()]
    for owner in owners:
        queue.push(row(5, 1), owner)
    assert [queue.pop()[1] for _ in owners] == owners


def test_a_backlog_goes_beside_the_present_and_in_its_own_order() -> None:
    queue: ReadyQueue[str] = ReadyQueue(AGEING_MS)
    for number in range(8):
        queue.push(row(number, number), "backlog", backlog=True)
        queue.push(row(1_000_000 + number, 100 + number), "present")
    out = [queue.pop() for _ in range(len(queue))]
    owners = [owner for _, owner in out]
    assert owners[:8].count("present") == 6
    assert owners[8:].count("backlog") == 6
    for kind in ("present", "backlog"):
        dues = [found.due_ms for found, owner in out if owner == kind]
        assert dues == sorted(dues)


def test_the_backlogs_of_queues_take_turns_each_in_its_own_order() -> None:
    queue: ReadyQueue[str] = ReadyQueue(AGEING_MS)
    for number in range(60):
        queue.push(row(number, number), "huge", backlog=True)
    for number in range(6):
        for name in ("b", "c"):
            queue.push(row(100_000 + number // 3, number, Priority(2 - number % 3), name), name, backlog=True)
    assert len(queue) == 72
    out = [queue.pop() for _ in range(72)]
    owners = [owner for _, owner in out]
    assert [owners[:18].count(name) for name in ("huge", "b", "c")] == [6, 6, 6]
    assert set(owners[18:]) == {"huge"}
    for name in ("huge", "b", "c"):
        keys = [found.due_ms + AGEING_MS * found.body.priority for found, owner in out if owner == name]
        assert keys == sorted(keys)
    assert len(queue) == 0
