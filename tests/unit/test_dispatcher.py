"""Choosing and committing, one batch at a time, without the loops around it."""

from __future__ import annotations

import asyncio

from lane_world import NAMESPACE, World

from bucketsched.adapters.memory.journal import Fault
from bucketsched.core.task import FactKind, StoredTask, TaskRow
from bucketsched.poller.batch import Closing, Mutation
from bucketsched.poller.dispatcher import Dispatcher
from bucketsched.poller.owned_range import OwnedRange


async def still(world: World) -> tuple[Dispatcher, OwnedRange]:
    """A lane whose loops have stopped and whose ranges are active: the test makes every step."""
    process = await world.process()
    await world.pass_ms(100)
    assert process.running is not None
    dispatcher = process.lane.dispatcher
    owned = dispatcher._ranges[0]
    phase = owned.phase
    process.running.cancel()
    await asyncio.gather(process.running, return_exceptions=True)
    owned.phase, dispatcher._ended = phase, False
    await dispatcher._queues.fetch(NAMESPACE, "q")
    return dispatcher, owned


async def step(dispatcher: Dispatcher) -> None:
    batch = dispatcher._collect()
    if batch:
        await dispatcher._commit(batch)


def cancel_of(owned: OwnedRange, row: TaskRow) -> Mutation:
    return Mutation(owned, row.ref, FactKind.CANCELLED, asyncio.get_running_loop().create_future())


async def test_a_refused_cancel_and_its_withheld_row_leave_everything_as_it_was(world: World) -> None:
    dispatcher, owned = await still(world)
    row = world.row(0)
    owned.admit(StoredTask(row))
    change = cancel_of(owned, row)
    dispatcher.submit(change)
    world.journal.fail_next(0, Fault.REFUSED)
    refused = asyncio.create_task(step(dispatcher))
    await world.until(refused.done)
    assert not change.done.done()
    dispatcher._mutations.clear()  # the caller has gone; the row must not have gone with it
    await step(dispatcher)
    assert world.dispatched() == [row.ref]
    assert owned.resident_rows == 0


async def test_two_cancels_of_one_row_agree(world: World) -> None:
    dispatcher, owned = await still(world)
    row = world.row(0)
    owned.admit(StoredTask(row))
    first, second = cancel_of(owned, row), cancel_of(owned, row)
    dispatcher.submit(first)
    dispatcher.submit(second)
    await step(dispatcher)
    await step(dispatcher)
    assert first.done.result()[1] >= 0
    assert second.done.result() == (FactKind.CANCELLED, -1)
    assert world.dispatched() == []


async def test_a_bucket_is_not_closed_under_a_row_that_came_after_its_last_read(world: World) -> None:
    dispatcher, owned = await still(world)
    row = world.row(10_000)
    owned.admit(StoredTask(row))
    closing = Closing(owned, owned.first_open_bucket, asyncio.get_running_loop().create_future())
    dispatcher.submit(closing)
    await step(dispatcher)
    assert closing.done.result() is False
    assert owned.first_open_bucket == row.bucket


async def test_a_transaction_holds_no_more_than_its_limits(world: World) -> None:
    dispatcher, owned = await still(world)
    for _ in range(2_500):
        owned.admit(StoredTask(world.row(0)))
    for _ in range(50):
        owned.admit(StoredTask(world.row(0, shard=1, payload=bytes(500_000))))
    while len(world.dispatched()) < 2_550:
        await step(dispatcher)
    sizes = [sum(len(s.dispatched) for s in record.sections) for record in world.records()]
    assert max(sizes) == 2_000
    assert all(size <= 9 + 2_000 for size in sizes)
    heavy = [c.message.size for c in world.journal.committed if len(c.message.value) > 1]
    assert len(heavy) == 50
    assert dispatcher.counters.transactions["committed"] >= 2_550 // 2_000 + 50 // 9
