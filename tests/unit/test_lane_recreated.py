"""The journal is made anew, or cut short, under a running lane: no lane waits for ever, and its ranges say so."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from lane_world import World
from poller_world import Pollers, some_pollers

from bucketsched.adapters.memory.journal import Fault
from bucketsched.poller import dispatcher
from bucketsched.poller.dispatcher import LaneLost


@pytest.fixture
async def pollers() -> AsyncIterator[Pollers]:
    async with some_pollers() as made:
        yield made


async def test_with_a_transaction_in_doubt_its_ranges_get_the_alarm(pollers: Pollers) -> None:
    world, role = pollers.world, pollers.start("one")
    await world.until(lambda: pollers.active(role) == 2)
    lane = role.lane
    assert lane is not None
    world.journal.fail_next(0, Fault.LOST)
    world.journal.recreate(0)
    await world.create(row := world.row(500))
    await role.hint([row])
    await world.until(lambda: role.lane is not None and role.lane is not lane and role.lane.alarmed() == {0, 1})
    await world.pass_ms(5_000)
    assert pollers.active(role) == 0
    assert world.dispatched() == []


async def test_a_replica_that_has_just_come_to_lead_is_given_time(world: World) -> None:
    """It may not know yet how far the journal goes."""
    process = await world.process()
    await world.create(row := world.row(500), hint=process)
    state = world.journal.lane(process.slot)
    kept, state.records = state.records, []
    world.journal.fail_next(process.slot, Fault.LOST)
    await world.pass_ms(500 + 1_000)
    assert world.dispatched() == []
    state.records = kept
    await world.until(lambda: world.dispatched() == [row.ref])
    world.check()


async def test_where_the_last_record_was_trimmed_away_the_lane_goes_on(world: World) -> None:
    process = await world.process()
    await world.create(row := world.row(500), hint=process)
    world.journal.trim(process.slot, process.lane.dispatcher.last[0] + 1)
    world.journal.fail_next(process.slot, Fault.LOST)
    await world.until(lambda: world.dispatched() == [row.ref])


@pytest.mark.parametrize("other", [b"", b"another"], ids=["cut short", "made anew, and longer"])
async def test_a_lane_that_finds_another_journal_ends(world: World, other: bytes) -> None:
    process = await world.process()
    await world.create(row := world.row(500), hint=process)
    world.journal.recreate(process.slot)
    for _ in range(10 if other else 0):
        world.journal.plant(process.slot, other)
    world.journal.fail_next(process.slot, Fault.LOST)
    assert process.running is not None
    await world.until(process.running.done, within_ms=int(2_000 * dispatcher.MISMATCHES_MAX))
    assert isinstance(process.running.exception(), LaneLost)
    assert row.ref not in world.dispatched()
