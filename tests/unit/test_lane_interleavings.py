"""Sequences of events within one lane that lose or double a task where one of its steps does not look at another's."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from lane_world import World

from bucketsched.core.checkpoint import NO_OFFSET, Checkpoint
from bucketsched.core.errors import OwnershipLost, Unavailable
from bucketsched.core.task import FactKind, TaskRow, bucket_end_ms
from bucketsched.poller.batch import Closing, Mutation
from bucketsched.poller.dispatcher import LaneLost
from bucketsched.poller.owned_range import OwnedRange
from bucketsched.poller.takeover import JournalMismatch
from bucketsched.poller.takings import Taking
from bucketsched.ports import Lease


async def test_a_zombie_that_fences_its_own_former_life_late_commits_nothing(world: World) -> None:
    """It becomes the lane's last producer, and its slot is somebody else's."""
    row = world.row(1_000)
    await world.create(row)
    world.leases.ranges[1].lane, world.leases.ranges[1].released = 0, False
    zombie = await world.process("a", ranges=range(1))
    await world.pass_ms(300)
    init, gate = zombie.journal.init, asyncio.Event()

    async def late() -> None:
        await gate.wait()
        await init()

    zombie.journal.init = late  # type: ignore[method-assign]
    taking = asyncio.ensure_future(zombie.lane.take(1))
    await world.settle()
    zombie.membership.expire()
    heir = await world.process("b")
    assert heir.slot == zombie.slot
    await world.until(lambda: world.dispatched() == [row.ref], 2_000)
    gate.set()
    await world.pass_ms(200)
    world.check()
    assert zombie.running is not None
    assert zombie.running.done()
    with pytest.raises(LaneLost):
        zombie.running.result()
    with pytest.raises(OwnershipLost):
        taking.result()


async def test_a_range_that_stands_still_is_not_tried_again_while_it_is_released(world: World) -> None:
    """It would be served while the release is under way, and what it commits then is seen by no replay."""
    world.journal.plant(0, b"not a record")
    process = await world.process("a")
    assert process.lane.alarmed() == {0, 1}
    await world.pass_ms(100)
    world.leases.hold()
    giving = asyncio.ensure_future(process.lane.give_up(0))
    await world.settle()
    tried: list[int] = []

    async def recover(owned: OwnedRange, taking: Taking, since: Checkpoint | None = None) -> None:
        tried.append(owned.range_id)
        raise JournalMismatch("it is as it was")

    process.lane._takeover.recover = recover  # type: ignore[method-assign]
    process.lane._takeover.orders.clear()  # as if both had other checkpoints now
    await world.pass_ms(3_000)
    assert tried == [1]
    world.leases.go_on()
    await world.until(giving.done)
    assert process.lane.ranges == {1}


async def test_a_bucket_does_not_close_over_a_row_that_moves_into_it() -> None:
    """Both wait for the journal. The row would be in a closed bucket, where nobody looks."""
    world = await World(grace_ms=1_000).prepare()
    process = await world.process("a")
    await world.pass_ms(300)
    home = world.row(20)
    await world.create(home)
    owned = process.lane._ranges[0]
    loop = asyncio.get_running_loop()
    moved = TaskRow(home.due_ms, home.namespace_id, home.task_id, home.body, home.generation + 1, home.attempt)
    change = Mutation(owned, home.ref, FactKind.MOVED, loop.create_future(), moved)
    closing = Closing(owned, home.bucket, loop.create_future())
    assert owned.first_open_bucket == home.bucket
    async with process.lane.dispatcher.turn:
        process.lane.dispatcher.submit(change)
        process.lane.dispatcher.submit(closing)
    await world.until(closing.done.done)
    assert closing.done.result() is False
    await world.pass_ms(1_000)
    assert world.dispatched() == [moved.ref]
    await world.close()


async def test_a_row_does_not_move_into_a_bucket_that_is_closed(world: World) -> None:
    """The move waited for the journal for so long."""
    process = await world.process("a")
    await world.pass_ms(300)
    home = world.row(20)
    await world.create(home)
    owned = process.lane._ranges[0]
    closed_ms = bucket_end_ms(owned.first_open_bucket - 1) - 1
    moved = TaskRow(closed_ms, home.namespace_id, home.task_id, home.body, home.generation + 1, home.attempt)
    change = Mutation(owned, home.ref, FactKind.MOVED, asyncio.get_running_loop().create_future(), moved)
    process.lane.dispatcher.submit(change)
    await world.until(change.done.done)
    assert change.done.exception() is not None


async def test_progress_goes_on_behind_a_loss_that_was_accepted_half_way_through_a_takeover(world: World) -> None:
    """The taker's first checkpoint was stored, then its journal was lost: what is accepted is of the same epoch."""
    process = await world.process("a", ranges=range(0))
    clear, asked = process.leases.clear_predecessors, 0

    async def unreachable(lease: Lease) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            world.journal.recreate(process.slot)
            raise Unavailable("no answer")
        await clear(lease)

    process.leases.clear_predecessors = unreachable  # type: ignore[method-assign]
    taking = asyncio.ensure_future(process.lane.take(0))
    await world.until(taking.done)
    assert process.lane.alarmed() == {0}
    stored = await world.checkpoints.load(0)
    assert stored is not None
    accepted = replace(stored, sequence=stored.sequence + 1_000_000, applied_offset=NO_OFFSET, applied_hash=b"")
    await world.checkpoints.save(0, accepted)
    await world.until(lambda: process.lane.active() == {0})
    await world.pass_ms(6_000, step_ms=100)
    later = await world.checkpoints.load(0)
    assert later is not None
    assert later.order > accepted.order


async def test_a_range_whose_retry_waits_holds_up_no_other_that_stands_still(world: World) -> None:
    world.journal.plant(0, b"not a record")
    process = await world.process("a")
    assert process.lane.alarmed() == {0, 1}
    tried: list[int] = []

    async def recover(owned: OwnedRange, taking: Taking, since: Checkpoint | None = None) -> None:
        tried.append(owned.range_id)
        if owned.range_id == 0:
            await asyncio.Event().wait()
        raise JournalMismatch("it is as it was")

    process.lane._takeover.recover = recover  # type: ignore[method-assign]
    process.lane._takeover.orders[0] = 0  # as if it had another checkpoint now
    await world.pass_ms(3_000)
    assert tried == [0]
    process.lane._takeover.orders[1] = 0
    await world.pass_ms(3_000)
    assert tried[:2] == [0, 1]
