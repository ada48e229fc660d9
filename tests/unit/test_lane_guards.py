"""Sequences of events that lose or double a task where one guard of the poller is missing."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from lane_world import NAMESPACE, Process, World
from test_lane import facts

from bucketsched.adapters.memory.journal import Fault
from bucketsched.core.errors import OwnershipLost, Unavailable
from bucketsched.core.task import bucket_end_ms, bucket_of
from bucketsched.core.waiting import Shared
from bucketsched.ports import CancelResult, Lease


async def taken_from(world: World, first: Process) -> Process:
    """Another process in another slot, after `first` was wrongly suspected: its session and its slot live."""
    for state in world.leases.ranges.values():
        state.holder = None
    return await world.process("heir")


async def test_the_former_owner_is_fenced_before_its_journal_is_read(world: World) -> None:
    """Its EndTxn is still on the way while the heir replays; it must not land afterwards."""
    row = world.row(1_000)
    await world.create(row)
    first = await world.process("a")
    await world.pass_ms(500)
    world.journal.fail_next(first.slot, Fault.PENDING)
    first.journal.init = asyncio.Event().wait  # type: ignore[assignment,method-assign]
    await world.until(lambda: world.journal.lane(first.slot).open is not None, 2_000)
    await first.halt()
    await taken_from(world, first)
    world.journal.land(first.slot)
    await world.pass_ms(2_000)
    assert world.dispatched() == [row.ref]
    world.check()


async def test_a_checkpoint_never_passes_what_is_not_marked(world: World) -> None:
    rows = [world.row(1_000, shard=s) for s in range(4)]
    await world.create(*rows)
    first = await world.process("a", mark_interval_ms=100)
    await world.pass_ms(500)
    world.store.hold("mark")
    await world.pass_ms(12_000, step_ms=100)
    assert len(world.dispatched()) == 4
    await first.crash()
    world.store.let_go("mark")
    for row in rows:
        assert not (await facts(world, row)).settled
    await world.process("b")
    await world.pass_ms(3_000)
    assert len(world.dispatched()) == 4
    world.check()


async def test_a_taker_whose_lease_is_taken_meanwhile_never_begins(world: World) -> None:
    first = await world.process("a", ranges=range(0))
    world.checkpoints.hold("load")
    taking = asyncio.create_task(first.lane.take(0))
    await world.settle()
    world.leases.ranges[0].holder = None
    second = await world.process("b", ranges=range(0))
    world.checkpoints.let_go("load")
    await second.lane.take(0)
    await world.until(taking.done)
    assert isinstance(taking.exception(), OwnershipLost)
    assert first.lane.ranges == set()
    assert second.lane.active() == {0}
    assert world.leases.ranges[0].predecessors == ()


async def test_a_takeover_that_has_to_wait_half_way_goes_on(world: World) -> None:
    """Its own checkpoint is stored already when the lease service can't be reached for the last step."""
    rows = [world.row(1_000), world.row(6_000)]
    await world.create(*rows)
    first = await world.process("a", mark_interval_ms=5_000)
    await world.pass_ms(1_500)
    await first.crash()
    second = await world.process("b", ranges=range(0))
    clear, tries = second.leases.clear_predecessors, 0

    async def unreachable_twice(lease: Lease) -> None:
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise Unavailable("not now")
        await clear(lease)

    second.leases.clear_predecessors = unreachable_twice  # type: ignore[method-assign]
    taking = asyncio.create_task(second.lane.take(0))
    await world.until(taking.done)
    assert second.lane.active() == {0}
    await world.pass_ms(6_000)
    assert world.dispatched() == [row.ref for row in rows]
    world.check()


async def test_a_taker_that_finds_a_later_checkpoint_lets_go(world: World) -> None:
    process = await world.process("a", ranges=range(0))
    checkpoint = await world.checkpoints.load(0)
    assert checkpoint is not None
    await world.checkpoints.save(0, dataclasses.replace(checkpoint, epoch=9))
    with pytest.raises(OwnershipLost):
        await process.lane.take(0)
    assert process.lane.ranges == set()


async def test_a_half_way_taker_leaves_its_predecessors_to_the_next_one(world: World) -> None:
    await world.process("a")
    (first,) = world.processes
    for state in world.leases.ranges.values():
        state.holder = None
    second = await world.process("b", ranges=range(0))
    world.checkpoints.hold("load")
    taking = asyncio.create_task(second.lane.take(0))
    await world.settle()
    await second.crash()
    taking.cancel()
    world.checkpoints.let_go("load")
    assert world.leases.ranges[0].predecessors == (first.slot,)
    third = await world.process("c")
    assert third.lane.active() == {0, 1}
    assert world.leases.ranges[0].predecessors == ()


async def test_a_range_is_released_only_after_its_marks(world: World) -> None:
    row = world.row(500)
    await world.create(row)
    process = await world.process(mark_interval_ms=5_000)
    await world.pass_ms(600)
    world.store.hold("mark")
    stopping = asyncio.create_task(process.lane.stop())
    await world.pass_ms(10_000)
    assert not world.leases.ranges[0].released
    world.store.let_go("mark")
    await world.until(stopping.done)
    assert world.leases.ranges[0].released
    assert (await facts(world, row)).settled


async def test_a_row_that_a_refused_cancel_held_back_goes_out(world: World) -> None:
    """Cancel and dispatch meet in one transaction, which is refused; then the range's row must still be there."""
    row, other = world.row(1_000), world.row(1_000)
    await world.create(row, other)
    process = await world.process(transaction_interval_ms=0)
    await world.pass_ms(999)
    world.journal.fail_next(process.slot, Fault.REFUSED)
    cancel = asyncio.create_task(process.lane.cancel(NAMESPACE, row.task_id))
    world.clock.advance_ms(1)
    await world.until(cancel.done)
    await world.pass_ms(1_000)
    assert cancel.result() is CancelResult.CANCELLED
    assert world.dispatched() == [other.ref]
    assert process.lane.dispatcher._ranges[0].resident_rows == 0


async def test_a_row_that_nobody_knew_is_found_before_its_bucket_closes(world: World) -> None:
    """Written late, its writer dead before it could tell: the last read finds it."""
    world = await World(grace_ms=5_000).prepare()
    await world.process()
    await world.pass_ms(bucket_end_ms(bucket_of(world.clock.now_ms())) - world.clock.now_ms(), step_ms=500)
    row = world.row(1_000)
    await world.pass_ms(45_000, step_ms=500)
    await world.create(row)
    await world.pass_ms(bucket_end_ms(row.bucket) - world.clock.now_ms() + 4_000, step_ms=500)
    assert world.dispatched() == []
    await world.pass_ms(10_000, step_ms=500)
    assert world.dispatched() == [row.ref]
    closed = [b for r in world.records() for s in r.sections for b in s.closed if s.range_id == 0]
    assert closed == [row.bucket - 1, row.bucket]
    await world.close()


async def test_a_clock_that_steps_back_within_a_turn_stops_the_batch(world: World) -> None:
    row = world.row(500)
    await world.create(row)
    process = await world.process()
    await world.pass_ms(100)
    dispatcher = process.lane.dispatcher
    collect = dispatcher._collect

    def step_back_after() -> object:
        batch = collect()
        if batch.sent:
            dispatcher._collect = collect  # type: ignore[method-assign]
            world.clock.step_ms(-1_000)
        return batch

    dispatcher._collect = step_back_after  # type: ignore[method-assign,assignment]
    await world.pass_ms(3_000)
    assert world.dispatched() == [row.ref]
    world.check()


async def test_replay_begins_behind_the_checkpoint_and_shares_reads(world: World) -> None:
    rows = [world.row(1_000 + 500 * i, shard=i % 4) for i in range(40)]
    await world.create(*rows)
    first = await world.process("a", mark_interval_ms=5_000)
    await world.pass_ms(14_000)
    await first.crash()
    await world.process("b")
    await world.pass_ms(10_000)
    assert sorted(world.dispatched()) == sorted(row.ref for row in rows)
    world.check()


async def test_shared_work_serves_only_those_who_asked_before_it_began() -> None:
    served: list[list[int]] = []
    gate = asyncio.Event()

    async def work(arguments: list[int]) -> int:
        served.append(arguments)
        await gate.wait()
        return len(served)

    shared = Shared(work)
    first = asyncio.create_task(shared.ask(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    later = [asyncio.create_task(shared.ask(n)) for n in (2, 3)]
    await asyncio.sleep(0)
    gate.set()
    assert await first == 1
    assert await asyncio.gather(*later) == [2, 2]
    assert served == [[1], [2, 3]]


async def test_shared_work_that_fails_fails_for_all_who_asked() -> None:
    async def work(arguments: list[int]) -> int:
        raise OwnershipLost("gone")

    shared = Shared(work)
    answers = await asyncio.gather(shared.ask(1), shared.ask(2), return_exceptions=True)
    assert [type(a) for a in answers] == [OwnershipLost, OwnershipLost]
    with pytest.raises(OwnershipLost):
        await shared.ask(3)
