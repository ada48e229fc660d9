"""Notices: made by the record that they tell of, dispatched like any task, and lost or doubled by no crash."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from lane_world import NAMESPACE, Process, World

from bucketsched.core.catalog import Queue, QueueKind
from bucketsched.core.errors import Unavailable
from bucketsched.core.execution import Attempt, AttemptEnd, AttemptReport, EndResult
from bucketsched.core.notice_rule import NoticeEvent, NoticeRule
from bucketsched.core.queue_policy import QueuePolicy
from bucketsched.core.retry import RetryPolicy
from bucketsched.core.task import RowRef, TaskRow, bucket_end_ms, bucket_of

EVERYTHING = NoticeRule(tuple(NoticeEvent), "told")
ONCE = RetryPolicy(tries_max=2, delay_ms_first=1, delay_ms_max=1)


async def prepared(*queues: Queue) -> tuple[World, Process]:
    world = await World().prepare()
    await world.catalog.create_queue(Queue(NAMESPACE, "ns", "told", QueueKind.KAFKA, "told"))
    for queue in queues:
        await world.catalog.create_queue(queue)
    return world, await world.process()


def asking(row: TaskRow, *rules: NoticeRule, **body: object) -> TaskRow:
    changed = replace(row.body, notices=rules, **body)  # type: ignore[arg-type]
    return TaskRow(row.due_ms, NAMESPACE, row.task_id, changed, row.generation, row.attempt)


async def finish(
    world: World, process: Process, row: TaskRow, end: AttemptEnd, notices: bool = True, **said: Any
) -> None:
    now_ms = world.clock.now_ms()
    attempt = Attempt(NAMESPACE, row.task_id, row.generation, row.attempt, now_ms, now_ms, end, "w", **said)
    report = AttemptReport(attempt, row.due_ms, queue=row.body.queue, notices=notices)
    asked = asyncio.create_task(process.lane.finish([report]))
    await world.until(asked.done)
    assert asked.result() == [EndResult.TAKEN]


def told(world: World, queue: str = "told") -> list[dict[str, Any]]:
    messages = [committed.message for committed in world.journal.committed]
    return [json.loads(message.value) for message in messages if message.queue.name == queue]


def events(world: World) -> list[str]:
    return [one["event"] for one in told(world)]


async def dispatched(world: World, process: Process, rows: Sequence[TaskRow]) -> None:
    await world.create(*rows, hint=process)
    await world.until(lambda: {row.ref for row in rows} <= set(world.dispatched()))


async def test_each_event_is_told_once_and_says_what_happened() -> None:
    world, process = await prepared()
    row = asking(world.row(500), EVERYTHING, retry=ONCE)
    await dispatched(world, process, [row])
    await finish(world, process, row, AttemptEnd.FAILED, error_type="E", error_message="no", error_trace="here")
    await world.until(lambda: len(world.dispatched()) == 3)
    again = next(r for r in (await _rows(world, row)) if r.attempt == 2)
    await finish(world, process, again, AttemptEnd.TIMED_OUT)
    await world.until(lambda: len(told(world)) == 2)
    first, last = told(world)
    assert (first["event"], first["attempt"], first["error"]) == (
        "ATTEMPT_FAILED", 1, {"type": "E", "message": "no", "trace": "here"},
    )  # fmt: skip
    assert "next_attempt_at" in first
    assert (last["event"], last["attempt"], "next_attempt_at" in last) == ("DEAD_LETTERED", 2, False)
    message = next(c.message for c in world.journal.committed if c.message.queue.name == "told")
    headers = dict(message.headers)
    assert (headers["ce_type"], headers["content-type"]) == (b"bucketsched.attempt-failed", b"application/json")
    assert headers["ce_priority"] == b"0"
    world.check()
    await world.close()


async def _rows(world: World, row: TaskRow) -> list[TaskRow]:
    found, due_ms = [], row.due_ms
    while True:
        stored = await world.store.get(due_ms, NAMESPACE, row.task_id)
        assert stored is not None
        found.append(stored.row)
        if stored.facts.moved_to_ms is None:
            return found
        due_ms = stored.facts.moved_to_ms


async def test_success_expiry_and_poison_are_told_too() -> None:
    world, process = await prepared()
    fine = asking(world.row(500), EVERYTHING)
    lost = asking(world.row(501, queue="nowhere"), EVERYTHING)
    await dispatched(world, process, [fine])
    await world.create(lost, hint=process)
    await finish(world, process, fine, AttemptEnd.SUCCEEDED)
    old = world.row(1_000)
    old = asking(old, replace(EVERYTHING, late_ms=100_000), expires_ms=old.due_ms)
    await world.create(old)  # found by the rescan, too late
    await world.until(lambda: len(told(world)) == 3)
    assert sorted(events(world)) == ["DEAD_LETTERED", "EXPIRED", "SUCCEEDED"]
    world.check()
    await world.close()


async def test_what_is_dispatched_late_is_told_by_the_rules_that_call_it_late() -> None:
    world, _ = await prepared()
    row = world.row(100)
    early, late = replace(EVERYTHING, late_ms=1_000), NoticeRule((NoticeEvent.LATE,), "q", late_ms=60_000)
    await world.create(asking(row, early, late))
    await world.until(lambda: bool(told(world)))
    (notice,) = told(world)
    assert (notice["event"], notice["late_ms"] > 1_000) == ("LATE", True)
    assert len(world.dispatched()) == 2
    await world.close()


async def test_a_queue_has_all_its_tasks_told_and_tasks_themselves_only_what_they_asked_for() -> None:
    policy = QueuePolicy(notices=(NoticeRule((NoticeEvent.SUCCEEDED,), "told"),))
    world, process = await prepared(Queue(NAMESPACE, "ns", "jobs", QueueKind.WORKER, "jobs", policy=policy))
    plain, other = world.row(500, queue="jobs"), asking(world.row(501), NoticeRule((NoticeEvent.EXPIRED,), "told"))
    await dispatched(world, process, [plain, other])
    await finish(world, process, plain, AttemptEnd.SUCCEEDED, notices=False)
    await finish(world, process, other, AttemptEnd.SUCCEEDED)
    await world.pass_ms(3_000)
    assert [one["task_id"][:4] for one in told(world)] == [plain.task_id.hex()[:4]]
    await world.close()


async def test_nothing_is_told_of_notices() -> None:
    world = await World().prepare()
    policy = QueuePolicy(notices=(replace(EVERYTHING, queue="told"),))
    await world.catalog.create_queue(Queue(NAMESPACE, "ns", "told", QueueKind.WORKER, "told", policy=policy))
    process = await world.process()
    row = asking(world.row(500), EVERYTHING)
    await dispatched(world, process, [row])
    await finish(world, process, row, AttemptEnd.SUCCEEDED)
    await world.until(lambda: len(told(world)) == 1)
    ref = world.dispatched()[-1]
    await world.pass_ms(6_000, step_ms=100)
    (notice,) = [task.row for task in (await _partition(world)) if task.row.ref == ref]
    await finish(world, process, notice, AttemptEnd.FAILED)
    await world.pass_ms(10_000, step_ms=100)
    assert [RowRef.unpack(ref).attempt for ref in world.dispatched()] == [1, 1, 2], "a retry, and nothing else"
    await world.close()


async def _partition(world: World) -> list[Any]:
    now_ms = world.clock.now_ms()
    found = []
    for bucket in range(bucket_of(now_ms) - 1, bucket_of(now_ms) + 2):
        for shard in range(4):
            found += (await world.store.read_partition(bucket, shard, None, bucket_end_ms(bucket), 1_000)).tasks
    return found


@pytest.mark.parametrize("stored", [False, True])
async def test_a_successor_dispatches_the_notices_that_the_journal_has(stored: bool) -> None:
    world, process = await prepared()
    row = asking(world.row(500), EVERYTHING)
    await dispatched(world, process, [row])
    await world.pass_ms(6_000, step_ms=100)
    if not stored:
        world.store.hold("insert")
    held: list[bytes] = []
    process.lane.dispatcher._breaker.holds = lambda topic, row, owned, now: (  # type: ignore[method-assign]
        topic == "told" and held.append(row.ref) is None
    )
    await finish(world, process, row, AttemptEnd.SUCCEEDED)
    await world.pass_ms(6_000 if stored else 500, step_ms=100)
    assert not told(world)
    await process.crash()
    world.store.let_go("insert")
    await world.process("other")
    await world.until(lambda: bool(told(world)))
    await world.pass_ms(20_000, step_ms=500)
    assert events(world) == ["SUCCEEDED"]
    world.check()
    await world.close()


JOBS = Queue(NAMESPACE, "ns", "jobs", QueueKind.WORKER, "jobs", policy=QueuePolicy(notices=(EVERYTHING,)))


@pytest.mark.parametrize(
    ("end", "own"), [(AttemptEnd.FAILED, {"retry": RetryPolicy(tries_max=1)}), (AttemptEnd.SUCCEEDED, {})]
)
async def test_a_taker_asks_for_the_rules_of_the_queue_where_it_needs_the_task_alone(
    end: AttemptEnd, own: dict[str, RetryPolicy]
) -> None:
    """The policy of its own, or rules of its own, leave out nothing of what the queue has told."""
    world, process = await prepared(JOBS)
    row = asking(world.row(500, queue="jobs"), NoticeRule((NoticeEvent.LATE,), "told"), **own)
    await dispatched(world, process, [row])
    await world.pass_ms(6_000, step_ms=100)
    await process.crash()
    process = await world.process("other")
    assert not process.lane.dispatcher._queues.known(NAMESPACE, "jobs"), "else this shows nothing"
    await finish(world, process, row, end)
    await world.until(lambda: bool(told(world)))
    assert events(world) == ["DEAD_LETTERED" if end is AttemptEnd.FAILED else "SUCCEEDED"]
    await world.close()


async def test_what_has_expired_waits_for_the_rules_of_its_queue() -> None:
    world, process = await prepared(JOBS)
    world.catalog.fail_next("get_queue", Unavailable("no catalog"), times=3)
    row = world.row(500, queue="jobs")
    row = asking(row, expires_ms=row.due_ms - 1)
    await world.create(row, hint=process)
    await world.until(lambda: bool(told(world)))
    assert events(world) == ["EXPIRED"]
    await world.close()
