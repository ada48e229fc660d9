"""Ranges that leave and come back, and clocks that do, while rows wait to be sent."""

from __future__ import annotations

import asyncio

import pytest
from lane_world import NAMESPACE, Process, World

from bucketsched.core.catalog import Queue, QueueKind
from bucketsched.ports import CancelResult


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
