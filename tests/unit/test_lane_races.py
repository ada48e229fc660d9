"""Ranges that leave and come back, and clocks that do, while rows wait to be sent."""

from __future__ import annotations

import asyncio

import pytest
from lane_world import NAMESPACE, Process, World

from bucketsched.core.catalog import Queue, QueueKind
from bucketsched.core.task import bucket_of
from bucketsched.poller.limits import REMEMBER_MS
from bucketsched.ports import CancelResult, HintAnswer


@pytest.fixture
async def sick(world: World) -> Process:
    """A lane with a topic that takes nothing."""
    await world.catalog.create_queue(Queue(NAMESPACE, "ns", "sick", QueueKind.KAFKA, "feverish"))
    world.journal.sick_topics = {"feverish"}
    return await world.process()


async def test_a_range_that_comes_back_while_its_rows_were_held_dispatches_them_once(
    world: World, sick: Process
) -> None:
    rows = [world.row(500 + i, queue="sick") for i in range(3)]
    await world.create(*rows)
    other = await world.process("b", range(0))
    await world.pass_ms(9_200)
    for giver, taker in ((sick, other), (other, sick)):
        giving = asyncio.create_task(giver.lane.give_up(0))
        await world.until(giving.done)
        taking = asyncio.create_task(taker.lane.take(0))
        await world.until(taking.done)
        assert 0 in taker.lane.active()
    world.journal.sick_topics = set()
    await world.pass_ms(8_000)
    assert sick.running is not None
    assert not sick.running.done()
    assert sorted(world.dispatched()) == sorted(row.ref for row in rows)
    world.check()


async def test_a_clock_that_steps_back_holds_up_nothing_that_is_due(world: World, sick: Process) -> None:
    await world.pass_ms(30_000, step_ms=100)
    held = world.row(500, queue="sick")
    far = world.row(600_000)
    await world.create(held, hint=sick)
    await world.create(far)
    await world.pass_ms(2_000)
    world.clock.step_ms(-20_000)
    world.journal.sick_topics = set()
    await world.pass_ms(6_000)
    now_due = [world.row(100 * i) for i in range(5)]
    await world.create(*now_due, hint=sick)
    cancel = asyncio.create_task(sick.lane.cancel(NAMESPACE, far.task_id))
    await world.pass_ms(2_000)
    assert world.dispatched() == [row.ref for row in now_due]
    assert cancel.done()
    assert cancel.result() is CancelResult.CANCELLED
    await world.pass_ms(20_000)
    assert world.dispatched()[5:] == [held.ref]
    world.check()


async def test_buckets_that_were_closed_while_the_clock_was_ahead_are_open_again() -> None:
    world = await World(ranges=1, grace_ms=60_000).prepare()
    process = await world.process()
    before = world.row(2_000)
    await world.create(before)
    await world.pass_ms(5_000)
    world.clock.step_ms(1_200_000)
    await world.pass_ms(30_000)
    world.clock.step_ms(-1_200_000)
    await world.pass_ms(100)
    near, far = world.row(20_000), world.row(400_000)
    await world.create(near, far)
    hinting = asyncio.create_task(process.lane.hint([near]))
    await world.pass_ms(19_000)
    assert world.dispatched() == [before.ref]
    await world.pass_ms(500_000, step_ms=200)
    assert hinting.done()
    assert world.dispatched() == [before.ref, near.ref, far.ref]
    assert world.visible[-1][0] - far.due_ms <= 200
    assert process.lane.dispatcher._ranges[0].first_open_bucket > near.bucket
    world.check()
    await world.close()


async def test_a_row_whose_bucket_is_being_closed_ahead_of_time_is_not_sent_early() -> None:
    world = await World(ranges=1).prepare()
    process = await world.process()
    owned = process.lane.dispatcher._ranges[0]
    await world.pass_ms(1_000)
    row = world.row(30_000)
    await world.create(row)
    owned.buckets.first, owned.closing = row.bucket, row.bucket
    assert not owned.reopen(world.clock.now_ms()), "a closing that is under way counts on its place"
    asking = asyncio.create_task(process.lane.admit(row))
    await world.until(asking.done)
    assert asking.result() is HintAnswer.NOT_READY
    assert world.dispatched() == []
    assert owned.first_open_bucket == row.bucket
    owned.closing = None
    await world.pass_ms(60_000)
    assert world.dispatched() == [row.ref]
    world.check()
    await world.close()


async def test_the_present_is_read_before_a_backlog_wherever_in_its_minute_it_is() -> None:
    world = await World(ranges=1).prepare()
    process = await world.process()
    await world.pass_ms(5_000)
    world.clock.step_ms(30 * 86_400_000)
    assert bucket_of(world.clock.now_ms() - REMEMBER_MS) == bucket_of(world.clock.now_ms())
    await world.pass_ms(100)
    rows = [world.row(100 * n) for n in range(5)]
    await world.create(*rows, hint=process)
    await world.pass_ms(3_000)
    assert world.dispatched() == [row.ref for row in rows]
    await world.close()
