"""What a lane does with records and rows that nobody can read."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from lane_world import World

from bucketsched.adapters.memory.journal import Fault
from bucketsched.core.errors import Unavailable


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = await World(ranges=1).prepare()
    yield made
    await made.close()


async def test_a_foreign_record_in_the_own_partition_does_not_end_the_lane(world: World) -> None:
    """A transaction is in doubt, and the search for its record meets one that is none."""
    process = await world.process()
    row = world.row(100)
    await world.create(row, hint=process)
    world.journal.plant(process.slot, b"not a record")
    world.journal.fail_next(process.slot, Fault.COMMITTED)
    await world.until(lambda: world.dispatched() == [row.ref])
    later = world.row(100)
    await world.create(later, hint=process)
    await world.until(lambda: world.dispatched() == [row.ref, later.ref])
    assert process.running is not None
    assert not process.running.done()


async def test_a_queue_that_can_not_be_read_holds_up_its_own_tasks_only(world: World) -> None:
    """They are held, not failed: its kind may be of a later version."""
    get_queue = world.catalog.get_queue

    async def of_later_version(namespace_id: bytes, name: str) -> object:
        if name == "later":
            raise Unavailable("of a kind that is not known here")
        return await get_queue(namespace_id, name)

    world.catalog.get_queue = of_later_version  # type: ignore[method-assign,assignment]
    process = await world.process()
    held, good = world.row(200, queue="later"), [world.row(100 + 50 * i) for i in range(20)]
    await world.create(held, *good, hint=process)
    await world.until(lambda: len(world.dispatched()) == len(good))
    assert max(at_ms for at_ms, _ in world.visible) <= good[-1].due_ms + 50
    await world.pass_ms(3_000)
    stored = await world.store.get(held.due_ms, held.namespace_id, held.task_id)
    assert stored is not None
    assert not stored.facts.settled
