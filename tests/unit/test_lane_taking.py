"""Taking a range from a lane that is gone: rows are read while the journal is still replayed."""

from __future__ import annotations

import asyncio
from typing import Any

from lane_world import Process, World
from test_lane import facts

from bucketsched.core.errors import Unavailable


async def orphaned(world: World, **limits: Any) -> tuple[Process, Process]:
    """An owner whose session has ended without its knowledge, so that it goes on until it is fenced; and its heir."""
    owner = await world.process("a", **limits)
    heir = await world.process("b", ranges=range(0))
    await world.pass_ms(300)
    owner.membership.expire()
    return owner, heir


async def test_rows_are_read_while_the_marks_of_the_former_owner_are_stored(world: World) -> None:
    done, rows = world.row(100), [world.row(2_000 + 100 * i) for i in range(3)]
    await world.create(done, *rows)
    owner = await world.process("a", mark_interval_ms=60_000)
    await world.pass_ms(300)
    assert world.dispatched() == [done.ref]
    await owner.crash()
    heir = await world.process("b", ranges=range(0))
    world.store.hold("mark")
    taking = asyncio.ensure_future(heir.lane.take(0))
    await world.until(lambda: heir.lane.state().heap_rows == 4)
    assert heir.lane.active() == set()
    world.store.hold("read_partition")
    world.store.hold("pending_refs")
    world.store.let_go("mark")
    await world.pass_ms(2_500)
    assert world.dispatched() == [done.ref, *(row.ref for row in rows)]
    world.store.let_go("read_partition")
    world.store.let_go("pending_refs")
    await world.until(taking.done)
    world.check()


async def test_what_was_read_during_a_try_that_failed_is_not_used_by_the_next_one(world: World) -> None:
    """Its owner dispatches, marks and passes a row that was read by then: the next try begins behind it."""
    row, later = world.row(2_000), world.row(8_000)
    await world.create(row, later)
    _, heir = await orphaned(world, mark_interval_ms=100, checkpoint_interval_ms=200)
    fence = heir.journal.fence

    async def away(lane: int) -> None:
        while not (await facts(world, row)).settled:
            await world.clock.sleep(0.1)
        await world.clock.sleep(1.0)  # and a checkpoint is stored
        heir.journal.fence = fence  # type: ignore[method-assign]
        raise Unavailable("the coordinator is away")

    heir.journal.fence = away  # type: ignore[method-assign]
    taking = asyncio.ensure_future(heir.lane.take(0))
    await world.until(taking.done)
    taking.result()
    assert (await facts(world, row)).settled
    assert world.dispatched() == [row.ref]
    assert heir.lane.active() == {0}
    await world.pass_ms(10_000)
    assert world.dispatched() == [row.ref, later.ref]
    world.check()


async def test_a_range_that_was_dropped_while_it_was_taken_is_not_served(world: World) -> None:
    owner, heir = await orphaned(world)
    await owner.halt()
    world.checkpoints.hold("save")
    taking = asyncio.ensure_future(heir.lane.take(0))
    await world.pass_ms(500)
    heir.lane.dispatcher.drop(heir.lane._ranges[0])
    world.checkpoints.let_go("save")
    await world.until(taking.done)
    assert heir.lane.active() == set()
    assert heir.lane.ranges == set()
    assert taking.exception() is not None


async def test_what_the_former_owner_was_late_with_is_found_at_once(world: World) -> None:
    """Its checkpoint says nothing of it: it is older than what an owner has most likely done."""
    await world.pass_ms(60_000, step_ms=500)
    owner = await world.process("a", checkpoint_interval_ms=500)
    await world.pass_ms(2_000)
    owner.journal.commit = asyncio.Event().wait  # type: ignore[method-assign,assignment]
    row = world.row(200)
    await world.create(row, hint=owner)
    await world.pass_ms(6_000)
    await owner.crash()
    heir = await world.process("b")
    await world.pass_ms(200)
    assert world.dispatched() == [row.ref]
    assert heir.lane.active() == {0, 1}
    world.check()
