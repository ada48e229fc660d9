"""Outcomes of dispatched attempts: the first one counts, retries follow it, and a successor learns both."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from lane_world import NAMESPACE, Process, World

from bucketsched.adapters.memory.journal import Stage as CommitStage
from bucketsched.core.execution import Attempt, AttemptEnd, AttemptReport, EndResult
from bucketsched.core.retry import RetryPolicy
from bucketsched.core.task import (
    BUCKET_MS,
    FactKind,
    Facts,
    RowRef,
    Stage,
    TaskRow,
    at_stage,
    bucket_end_ms,
    bucket_of,
    stage_of,
)
from bucketsched.core.task_change import ChangeResult, TaskChange
from bucketsched.ports import CancelResult, Changed, HintAnswer

QUICK = RetryPolicy(tries_max=3, delay_ms_first=2_000, delay_ms_max=10_000)


def with_retry(row: TaskRow, retry: RetryPolicy | None = QUICK, expires_ms: int = 0) -> TaskRow:
    return TaskRow(row.due_ms, NAMESPACE, row.task_id, replace(row.body, retry=retry, expires_ms=expires_ms))


def report(world: World, row: TaskRow, end: AttemptEnd = AttemptEnd.SUCCEEDED, **more: object) -> AttemptReport:
    now_ms = world.clock.now_ms()
    said = {"started_ms": now_ms - 5, "ended_ms": now_ms, "worker": "w"}
    said |= {name: more.pop(name) for name in list(more) if name in Attempt.__slots__}  # type: ignore[attr-defined]
    attempt = Attempt(NAMESPACE, row.task_id, row.generation, row.attempt, end=end, **said)  # type: ignore[arg-type]
    return AttemptReport(attempt, row.due_ms, **more)  # type: ignore[arg-type]


async def finish(world: World, process: Process, *reports: AttemptReport) -> list[EndResult | HintAnswer]:
    asked = asyncio.create_task(process.lane.finish(reports))
    await world.until(asked.done)
    return asked.result()


async def change(world: World, process: Process, row: TaskRow, **what: object) -> Changed | HintAnswer:
    asked = asyncio.create_task(process.lane.change(NAMESPACE, row.task_id, TaskChange(**what)))  # type: ignore[arg-type]
    await world.until(asked.done)
    return asked.result()


async def dispatched(world: World, process: Process, row: TaskRow) -> None:
    await world.create(row, hint=process)
    await world.until(lambda: row.ref in world.dispatched())


async def facts(world: World, row: TaskRow) -> Facts:
    stored = await world.store.get(row.due_ms, NAMESPACE, row.task_id)
    assert stored is not None
    return stored.facts


def attempts(world: World) -> list[tuple[int, int]]:
    refs = [RowRef.unpack(ref) for ref in world.dispatched()]
    return [(ref.generation, ref.attempt) for ref in refs]


async def test_a_success_is_a_fact_and_an_entry_of_the_log() -> None:
    world = await World().prepare()
    process = await world.process()
    row = world.row(500)
    await dispatched(world, process, row)
    said = report(world, row, result=b"done")
    assert await finish(world, process, said) == [EndResult.TAKEN]
    await world.pass_ms(6_000, step_ms=100)
    found = await facts(world, row)
    assert found.succeeded_ms is not None
    assert found.dispatched_ms is not None
    assert await world.store.attempts(NAMESPACE, row.task_id) == [said.attempt]
    await world.pass_ms(BUCKET_MS, step_ms=500)
    assert attempts(world) == [(0, 1)]
    world.check()
    await world.close()


async def test_the_first_outcome_counts_and_is_taken_again_when_it_is_repeated() -> None:
    world = await World().prepare()
    process = await world.process()
    row = world.row(500)
    await dispatched(world, process, row)
    first, other = report(world, row), report(world, row, AttemptEnd.FAILED, worker="other")
    assert await finish(world, process, first) == [EndResult.TAKEN]
    assert await finish(world, process, other, first) == [EndResult.ALREADY_ENDED, EndResult.TAKEN]
    await world.pass_ms(3 * BUCKET_MS, step_ms=500)
    assert await finish(world, process, other, first) == [EndResult.ALREADY_ENDED, EndResult.TAKEN]
    assert (await facts(world, row)).failed_ms is None
    assert attempts(world) == [(0, 1)]
    outcomes = [o for r in world.records() for s in r.sections for o in s.others if stage_of(o.ref) is Stage.OUTCOME]
    assert [outcome.kind for outcome in outcomes] == [FactKind.SUCCEEDED]
    await world.close()


async def test_outcomes_that_meet_in_one_transaction_exclude_each_other() -> None:
    world = await World().prepare()
    process = await world.process()
    row = world.row(500)
    await dispatched(world, process, row)
    both = report(world, row), report(world, row, AttemptEnd.TIMED_OUT, worker="")
    assert sorted((await finish(world, process, *both)), key=str) == [EndResult.ALREADY_ENDED, EndResult.TAKEN]
    await world.pass_ms(6_000, step_ms=100)
    assert len(await world.store.attempts(NAMESPACE, row.task_id)) == 1
    await world.close()


async def test_a_failure_is_followed_by_further_attempts_until_there_are_none() -> None:
    world = await World().prepare()
    process = await world.process()
    row = with_retry(world.row(500))
    await dispatched(world, process, row)
    for attempt in (1, 2):
        said = report(world, row, AttemptEnd.FAILED, error_type="E", error_message=f"no {attempt}")
        assert await finish(world, process, said) == [EndResult.TAKEN]
        await world.until(lambda attempt=attempt: len(attempts(world)) == attempt + 1)  # type: ignore[misc]
        again = RowRef.unpack(world.dispatched()[-1])
        assert said.attempt.ended_ms <= again.due_ms <= said.attempt.ended_ms + QUICK.ceiling_ms(attempt)
        row = TaskRow(again.due_ms, NAMESPACE, row.task_id, row.body, again.generation, again.attempt)
    last = report(world, row, AttemptEnd.FAILED, error_type="E", error_message="no 3")
    assert await finish(world, process, last) == [EndResult.TAKEN]
    await world.pass_ms(BUCKET_MS, step_ms=500)
    assert attempts(world) == [(0, 1), (0, 2), (0, 3)]
    found = await facts(world, row)
    assert (found.failed_ms is not None, found.failed_reason) == (True, "E: no 3")
    log = await world.store.attempts(NAMESPACE, row.task_id)
    assert [(entry.attempt, entry.error_message, entry.retry_ms > 0) for entry in log] == [
        (1, "no 1", True), (2, "no 2", True), (3, "no 3", False),
    ]  # fmt: skip
    world.check()
    await world.close()


@pytest.mark.parametrize(
    "more", [{"final": True}, {"error_type": "Fatal"}, {"pause_ms_least": 3_600_001}, {"pause_ms_least": 900_000}]
)
async def test_some_failures_are_final(more: dict[str, object]) -> None:
    """By what the report says, by the type of the error, or because time is up, the policy's or the task's own."""
    world = await World().prepare()
    process = await world.process()
    row = with_retry(world.row(500), replace(QUICK, final_errors=("Fatal",)), world.clock.now_ms() + 600_000)
    await dispatched(world, process, row)
    assert await finish(world, process, report(world, row, AttemptEnd.FAILED, **more)) == [EndResult.TAKEN]
    await world.pass_ms(BUCKET_MS, step_ms=500)
    assert attempts(world) == [(0, 1)]
    assert (await facts(world, row)).failed_ms is not None
    await world.close()


async def test_the_pause_is_at_least_what_the_other_side_asked_for() -> None:
    world = await World().prepare()
    process = await world.process()
    row = with_retry(world.row(500))
    await dispatched(world, process, row)
    said = report(world, row, AttemptEnd.FAILED, pause_ms_least=20_000)
    assert await finish(world, process, said) == [EndResult.TAKEN]
    await world.until(lambda: len(attempts(world)) == 2)
    assert RowRef.unpack(world.dispatched()[-1]).due_ms >= said.attempt.ended_ms + 20_000
    await world.close()


async def test_what_was_not_dispatched_has_no_outcome() -> None:
    world = await World().prepare()
    process = await world.process()
    waiting, unknown, done = world.row(30_000), world.row(10), world.row(500)
    await world.create(waiting, hint=process)
    await dispatched(world, process, done)
    later = replace(report(world, done), attempt=replace(report(world, done).attempt, attempt=2))
    reports = report(world, waiting), report(world, unknown), later
    assert await finish(world, process, *reports) == [EndResult.NOT_FOUND] * 3
    await world.pass_ms(35_000, step_ms=500)
    assert waiting.ref in world.dispatched()
    world.check()
    await world.close()


async def test_a_retry_is_cancelled_or_changed_like_any_task_that_waits() -> None:
    world = await World().prepare()
    process = await world.process()
    slow = RetryPolicy(delay_ms_first=1, delay_ms_max=1)
    rows = [with_retry(world.row(500 + i), slow) for i in range(2)]
    for row in rows:
        await dispatched(world, process, row)
    said = [report(world, row, AttemptEnd.FAILED, pause_ms_least=20_000) for row in rows]
    assert await finish(world, process, *said) == [EndResult.TAKEN] * 2
    cancelled = asyncio.create_task(process.lane.cancel(NAMESPACE, rows[0].task_id))
    await world.until(cancelled.done)
    assert cancelled.result() is CancelResult.CANCELLED
    changed = await change(world, process, rows[1], payload=b"new")
    assert isinstance(changed, Changed)
    assert changed.row is not None
    assert (changed.result, changed.row.generation, changed.row.attempt) == (ChangeResult.CHANGED, 1, 2)
    await world.pass_ms(25_000, step_ms=500)
    assert attempts(world) == [(0, 1), (0, 1), (1, 2)]
    world.check()
    await world.close()


@pytest.mark.parametrize("marked", [False, True])
async def test_a_successor_knows_outcomes_and_goes_on_with_retries(marked: bool) -> None:
    """Also those whose facts nobody had stored yet."""
    world = await World().prepare()
    process = await world.process()
    rows = [with_retry(world.row(500 + i)) for i in range(2)]
    for row in rows:
        await dispatched(world, process, row)
    if not marked:
        await world.pass_ms(6_000, step_ms=100)
        for write in ("insert", "mark", "record_attempts"):
            world.store.hold(write)
    said = report(world, rows[0]), report(world, rows[1], AttemptEnd.FAILED, pause_ms_least=10_000)
    assert await finish(world, process, *said) == [EndResult.TAKEN] * 2
    if marked:
        await world.pass_ms(6_000, step_ms=100)
    await process.crash()
    for write in ("insert", "mark", "record_attempts"):
        world.store.let_go(write)
    other = await world.process("other")
    late = report(world, rows[0], AttemptEnd.FAILED), report(world, rows[1], worker="late")
    assert await finish(world, other, *late) == [EndResult.ALREADY_ENDED] * 2
    assert await finish(world, other, *said) == [EndResult.TAKEN] * 2
    await world.pass_ms(20_000, step_ms=500)
    assert attempts(world) == [(0, 1), (0, 1), (0, 2)]
    assert (await facts(world, rows[0])).succeeded_ms is not None
    assert len(await world.store.attempts(NAMESPACE, rows[1].task_id)) == 1
    world.check()
    await world.close()


async def test_what_has_failed_for_good_is_done_all_over() -> None:
    world = await World().prepare()
    process = await world.process()
    row, lost = with_retry(world.row(500)), world.row(500, queue="none")
    await world.create(lost, hint=process)
    await dispatched(world, process, row)
    assert await finish(world, process, report(world, row, AttemptEnd.FAILED, final=True)) == [EndResult.TAKEN]
    await world.pass_ms(6_000, step_ms=100)
    now_ms = world.clock.now_ms()
    changed = await change(world, process, row, again=True, due_ms=now_ms)
    assert isinstance(changed, Changed)
    assert changed.row is not None
    assert (changed.result, changed.row.generation, changed.row.attempt) == (ChangeResult.CHANGED, 1, 1)
    await world.until(lambda: len(attempts(world)) == 2)
    again = await change(world, process, row, again=True)
    assert isinstance(again, Changed)
    assert again.result is ChangeResult.ALREADY_DISPATCHED
    assert attempts(world) == [(0, 1), (1, 1)]
    redriven = await change(world, process, lost, again=True, due_ms=now_ms)
    assert isinstance(redriven, Changed)
    assert redriven.result is ChangeResult.CHANGED
    world.check()
    await world.close()


async def test_a_retry_that_is_changed_waits_on_as_the_attempt_that_it_was() -> None:
    """Its contents are other ones; only another due time is another due time."""
    world = await World().prepare()
    process = await world.process()
    row = with_retry(world.row(500), replace(QUICK, delay_ms_first=40_000, delay_ms_max=40_000))
    await dispatched(world, process, row)
    said = report(world, row, AttemptEnd.FAILED, pause_ms_least=30_000)
    assert await finish(world, process, said) == [EndResult.TAKEN]
    await world.pass_ms(2_000, step_ms=100)
    retry_ms = (await facts(world, row)).moved_to_ms
    assert retry_ms is not None
    changed = await change(world, process, row, payload=b"new")
    assert isinstance(changed, Changed)
    assert changed.row is not None
    assert (changed.row.body.payload, changed.row.generation, changed.row.attempt) == (b"new", 1, 2)
    assert retry_ms < changed.row.due_ms < retry_ms + 5
    hastened = await change(world, process, row, due_ms=world.clock.now_ms())
    assert isinstance(hastened, Changed)
    await world.until(lambda: len(attempts(world)) == 2)
    assert world.clock.now_ms() < retry_ms
    assert attempts(world) == [(0, 1), (2, 2)]
    world.check()
    await world.close()


async def test_what_is_of_use_for_longer_does_not_expire_any_more() -> None:
    world = await World().prepare()
    process = await world.process()
    rows = [with_retry(world.row(2_000), expires_ms=world.clock.now_ms() + 1_500) for _ in range(2)]
    for row in rows:
        await world.create(row, hint=process)
    changed = await change(world, process, rows[0], expires_ms=world.clock.now_ms() + 60_000)
    assert isinstance(changed, Changed)
    assert changed.result is ChangeResult.CHANGED
    await world.pass_ms(20_000, step_ms=100)
    assert [RowRef.unpack(ref).task_id for ref in world.dispatched()] == [rows[0].task_id]
    assert (await facts(world, rows[1])).expired_ms is not None
    await world.close()


async def test_a_task_that_waits_is_not_hastened_by_doing_it_all_over() -> None:
    """So the same may be asked for again when the answer was lost."""
    world = await World().prepare()
    process = await world.process()
    far, near = world.row(5 * BUCKET_MS), world.row(40_000)
    for row in (far, near):
        await world.create(row, hint=process)
        waits = await change(world, process, row, again=True, due_ms=world.clock.now_ms())
        assert waits == Changed(ChangeResult.CHANGED, row)
    await world.pass_ms(30_000, step_ms=500)
    assert attempts(world) == []
    await world.close()


async def test_a_task_that_has_succeeded_is_not_done_all_over() -> None:
    world = await World().prepare()
    process = await world.process()
    row = world.row(500)
    await dispatched(world, process, row)
    assert await finish(world, process, report(world, row)) == [EndResult.TAKEN]
    await world.pass_ms(6_000, step_ms=100)
    for what in ({"again": True}, {"payload": b"new"}):
        changed = await change(world, process, row, **what)
        assert isinstance(changed, Changed)
        assert changed.result is ChangeResult.ALREADY_SUCCEEDED
    cancelled = asyncio.create_task(process.lane.cancel(NAMESPACE, row.task_id))
    await world.until(cancelled.done)
    assert cancelled.result() is CancelResult.ALREADY_SUCCEEDED
    await world.close()


async def test_what_is_of_no_use_any_more_expires_instead_of_being_dispatched() -> None:
    world = await World().prepare()
    await world.process()
    row = world.row(500)
    of_use, too_old = with_retry(world.row(501), expires_ms=row.due_ms + 60_000), with_retry(row, expires_ms=row.due_ms)
    await world.create(of_use, too_old)  # nobody is told: the rescan finds them, too late for one
    await world.pass_ms(20_000, step_ms=100)
    assert world.dispatched() == [of_use.ref]
    assert (await facts(world, too_old)).expired_ms is not None
    world.check()
    await world.close()


async def test_an_outcome_is_remembered_for_as_long_as_its_dispatch() -> None:
    """Also where its bucket is closed by then: else a second one would be taken without a look at the row."""
    world = await World(grace_ms=1_000).prepare()
    process = await world.process()
    row = world.row(bucket_end_ms(bucket_of(world.clock.now_ms())) - world.clock.now_ms() - 500)
    await dispatched(world, process, row)
    owned = process.lane._ranges[0]
    await world.until(lambda: owned.first_open_bucket > row.bucket)
    plain = {"queue": "q", "notices": False}
    assert await finish(world, process, report(world, row, **plain)) == [EndResult.TAKEN]
    await world.pass_ms(6_000, step_ms=100)
    assert owned.status(row.ref) is not None
    other = report(world, row, AttemptEnd.EXPIRED, **plain)
    assert await finish(world, process, other) == [EndResult.ALREADY_ENDED]
    await world.until(lambda: owned.status(row.ref) is None)
    assert owned.status(at_stage(row.ref, Stage.OUTCOME)) is None
    await world.close()


async def test_while_the_store_is_away_nobody_is_told_that_a_retry_is_too_late() -> None:
    """The store still says: dispatched, no outcome. The owner knows better, and so does the end of the next attempt."""
    world = await World().prepare()
    process = await world.process()
    row = with_retry(world.row(500), RetryPolicy(delay_ms_first=1, delay_ms_max=1))
    await dispatched(world, process, row)
    await world.pass_ms(6_000, step_ms=100)
    world.store.hold("insert")
    asked = asyncio.create_task(process.lane.finish([report(world, row, AttemptEnd.FAILED)]))
    await world.until(lambda: len(attempts(world)) == 2)
    again = RowRef.unpack(world.dispatched()[-1])
    retried = TaskRow(again.due_ms, NAMESPACE, row.task_id, row.body, again.generation, again.attempt)
    cancelled = asyncio.create_task(process.lane.cancel(NAMESPACE, row.task_id))
    ended = asyncio.create_task(process.lane.finish([report(world, retried, AttemptEnd.FAILED, final=True)]))
    await world.until(lambda: cancelled.done() and ended.done() and asked.done())
    assert cancelled.result() is HintAnswer.NOT_READY
    assert ended.result() == [HintAnswer.NOT_READY]
    world.store.let_go("insert")
    await world.pass_ms(1_000)
    assert await finish(world, process, report(world, retried, AttemptEnd.FAILED, final=True)) == [EndResult.TAKEN]
    await world.close()


async def test_an_attempt_that_ends_before_its_owner_knows_of_the_dispatch_is_asked_for_again() -> None:
    """The message is there as soon as the transaction is committed; the answer to that may take its time."""
    world = await World().prepare()
    process = await world.process()
    row = with_retry(world.row(500))
    await world.create(row, hint=process)
    committed, go_on = asyncio.Event(), asyncio.Event()

    async def pause(lane: int, stage: CommitStage) -> None:
        if stage is CommitStage.COMMITTED and world.journal.committed:
            committed.set()
            await go_on.wait()

    world.journal.pause = pause
    await world.until(committed.is_set)
    said = report(world, row, AttemptEnd.FAILED)
    assert await finish(world, process, said) == [HintAnswer.NOT_READY]
    go_on.set()
    await world.pass_ms(100)
    assert await finish(world, process, said) == [EndResult.TAKEN]
    await world.until(lambda: attempts(world) == [(0, 1), (0, 2)])
    await world.close()
