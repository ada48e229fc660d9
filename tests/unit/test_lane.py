"""The poller in a world of its own: dispatch, hints, cancel, doubt, takeover, closing."""

from __future__ import annotations

import asyncio

import pytest
from lane_world import NAMESPACE, World

from bucketsched.adapters.memory.journal import Fault, Stage
from bucketsched.core.catalog import Queue, QueueKind
from bucketsched.core.errors import Unavailable
from bucketsched.core.task import Facts, Priority, RowRef, bucket_end_ms
from bucketsched.poller.dispatcher import LaneLost
from bucketsched.poller.limits import REMEMBER_MS
from bucketsched.ports import CancelResult, HintAnswer, Page


async def facts(world: World, row: object) -> Facts:
    stored = await world.store.get(row.due_ms, row.namespace_id, row.task_id)  # type: ignore[attr-defined]
    assert stored is not None
    return stored.facts


async def test_a_loaded_row_goes_out_at_its_due_time_and_is_marked(world: World) -> None:
    row = world.row(3_000)
    await world.create(row)
    await world.process()
    await world.pass_ms(2_999)
    assert world.dispatched() == []
    await world.pass_ms(20)
    assert world.dispatched() == [row.ref]
    await world.pass_ms(2_000)
    assert (await facts(world, row)).dispatched_ms is not None
    world.check()


async def test_a_hinted_row_in_a_loaded_bucket_goes_out_in_time(world: World) -> None:
    process = await world.process()
    await world.pass_ms(1_000)
    row = world.row(500)
    await world.create(row, hint=process)
    await world.pass_ms(520)
    assert world.dispatched() == [row.ref]
    world.check()


async def test_a_repeated_hint_dispatches_nothing_twice_however_late(world: World) -> None:
    process = await world.process()
    await world.pass_ms(1_000)
    row = world.row(100)
    await world.create(row, hint=process)
    for _ in range(8):
        await world.pass_ms(10_000, step_ms=1_000)
        assert await process.lane.hint([row]) == [HintAnswer.TAKEN]
    await world.pass_ms(100)
    assert world.dispatched() == [row.ref]


async def test_a_lost_hint_is_made_good_by_the_rescan(world: World) -> None:
    await world.process()
    await world.pass_ms(1_000)
    row = world.row(2_000)
    await world.create(row)
    await world.until(lambda: world.dispatched() == [row.ref], within_ms=8_000)
    world.check()


async def test_of_every_partition_what_is_due_next_is_read_before_the_rest_of_any(world: World) -> None:
    """Else a taker of many ranges is late by the time that it takes to read minutes of all of them."""
    into_minute = world.clock.now_ms() % 60_000
    await world.pass_ms((60_000 - into_minute) % 60_000 + 20_000, step_ms=1_000)
    rows = [world.row(delay_ms, shard) for shard in range(4) for delay_ms in (300, 30_000)]
    await world.create(*rows)
    reads: list[tuple[int, int, bool]] = []
    read_partition = world.store.read_partition

    async def recording(bucket: int, shard: int, after: bytes | None, until_ms: int, limit: int) -> Page:
        if bucket == world.clock.now_ms() // 60_000:
            reads.append((bucket, shard, until_ms == bucket_end_ms(bucket)))
        return await read_partition(bucket, shard, after, until_ms, limit)

    world.store.read_partition = recording  # type: ignore[method-assign]
    await world.process(reads_in_flight_max=1)
    await world.until(lambda: len(world.dispatched()) == len(rows))
    to_the_end = [whole for _, _, whole in reads]
    assert to_the_end == [False] * 4 + [True] * 4
    world.check()


async def test_a_hint_while_its_page_is_being_read_is_neither_lost_nor_doubled(world: World) -> None:
    process = await world.process()
    await world.pass_ms(100)
    boundary = bucket_end_ms(world.clock.now_ms() // 60_000) - world.clock.now_ms()
    seen, unseen = world.row(boundary + 120_500), world.row(boundary + 120_600)
    await world.create(seen)
    world.store.hold("read_partition")
    await world.pass_ms(boundary + 1_500, step_ms=1_000)  # the bucket enters the horizon; its read hangs
    hints = asyncio.gather(process.lane.hint([unseen]), process.lane.hint([seen]))
    await world.settle()
    assert await hints == [[HintAnswer.TAKEN]] * 2
    world.store.let_go("read_partition")
    await world.create(unseen)
    await world.pass_ms(125_000, step_ms=1_000)
    assert sorted(world.dispatched()) == sorted([seen.ref, unseen.ref])
    world.check()


async def test_higher_priority_goes_first_and_age_beats_it(world: World) -> None:
    low_old = world.row(-40_000, priority=Priority.NORMAL)
    rows = [world.row(1_000, priority=p) for p in (Priority.LOW, Priority.NORMAL, Priority.HIGH)]
    old = world.row(-100, priority=Priority.LOW)
    await world.create(*rows, old)
    world.store.hold("read_partition")
    await world.process(transaction_tasks_max=1)
    world.clock.advance_ms(2_000)
    world.store.let_go("read_partition")
    await world.pass_ms(1_000)
    assert world.dispatched() == [rows[2].ref, rows[1].ref, old.ref, rows[0].ref]
    assert low_old.ref not in world.dispatched()


async def test_a_cancelled_row_never_goes_and_says_so(world: World) -> None:
    near, far = world.row(2_000), world.row(86_400_000)
    await world.create(near, far)
    process = await world.process()
    await world.pass_ms(200)
    for row in (near, far):
        cancel = asyncio.create_task(process.lane.cancel(NAMESPACE, row.task_id))
        await world.until(cancel.done)
        assert cancel.result() is CancelResult.CANCELLED
        assert (await facts(world, row)).cancelled_ms is not None
        again = asyncio.create_task(process.lane.cancel(NAMESPACE, row.task_id))
        await world.until(again.done)
        assert again.result() is CancelResult.ALREADY_CANCELLED
    await world.pass_ms(5_000)
    assert world.dispatched() == []


async def test_a_cancel_after_the_dispatch_is_too_late_even_before_it_is_marked(world: World) -> None:
    row = world.row(100)
    await world.create(row)
    process = await world.process(mark_interval_ms=5_000)
    await world.pass_ms(300)
    assert world.dispatched() == [row.ref]
    assert not (await facts(world, row)).settled
    assert await process.lane.cancel(NAMESPACE, row.task_id) is CancelResult.ALREADY_DISPATCHED


async def test_a_cancel_is_confirmed_only_by_a_committed_record(world: World) -> None:
    row = world.row(5_000)
    await world.create(row)
    process = await world.process()
    await world.pass_ms(200)
    world.journal.fail_next(process.slot, Fault.REFUSED)
    cancel = asyncio.create_task(process.lane.cancel(NAMESPACE, row.task_id))
    await world.settle()
    assert not cancel.done()
    await world.until(cancel.done)
    assert cancel.result() is CancelResult.CANCELLED
    assert [o.ref for r in world.records() for s in r.sections for o in s.others] == [row.ref]


async def test_a_delayed_hint_of_a_cancelled_row_is_not_believed_after_a_takeover(world: World) -> None:
    """The new owner has read the row with its mark, so it knows better than the hint."""
    row = world.row(90_000)
    await world.create(row)
    first = await world.process("a")
    await world.pass_ms(200)
    cancel = asyncio.create_task(first.lane.cancel(NAMESPACE, row.task_id))
    await world.until(cancel.done)
    await first.crash()
    second = await world.process("b")
    await world.pass_ms(500)
    assert await second.lane.hint([row]) == [HintAnswer.TAKEN]
    await world.pass_ms(95_000, step_ms=500)
    assert world.dispatched() == []


async def test_cancelling_an_unknown_task(world: World) -> None:
    process = await world.process()
    assert await process.lane.cancel(NAMESPACE, world.row(1_000).task_id) is CancelResult.NOT_FOUND


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.COMMITTED, Fault.FENCED, Fault.PENDING, Fault.REFUSED])
async def test_a_transaction_in_doubt_is_resolved_by_the_own_journal(world: World, fault: Fault) -> None:
    rows = [world.row(1_000), world.row(1_000, shard=3)]
    await world.create(*rows)
    process = await world.process()
    world.journal.fail_next(process.slot, fault)
    await world.pass_ms(3_000)
    assert sorted(world.dispatched()) == sorted(row.ref for row in rows)
    world.check()
    assert all([(await facts(world, row)).dispatched_ms for row in rows])


async def test_a_fenced_lane_drops_what_others_took_before_it_goes_on(world: World) -> None:
    rows = [world.row(3_000), world.row(3_000, shard=3)]
    await world.create(*rows)
    first = await world.process("a")
    await world.pass_ms(200)
    state = world.leases.ranges[0]
    state.holder = None  # somebody took it away early
    second = await world.process("b", ranges=range(1))
    await world.pass_ms(4_000)
    assert sorted(world.dispatched()) == sorted(row.ref for row in rows)
    assert first.lane.ranges == {1}
    assert second.lane.ranges == {0}
    world.check()


async def test_a_lane_without_slot_stops(world: World) -> None:
    await world.create(world.row(1_000))
    process = await world.process()
    process.membership.expire()
    world.journal.take(process.slot)  # its successor's init
    assert process.running is not None
    await world.until(process.running.done)
    with pytest.raises(LaneLost):
        process.running.result()
    assert world.dispatched() == []


async def test_while_the_lease_service_is_down_dispatch_goes_on_but_a_fenced_lane_waits(world: World) -> None:
    first, second = world.row(1_000), world.row(3_000)
    await world.create(first, second)
    process = await world.process()
    await world.pass_ms(200)
    world.leases.cut()
    await world.pass_ms(1_500)
    assert world.dispatched() == [first.ref]
    world.journal.take(process.slot)
    await world.pass_ms(3_000)
    assert world.dispatched() == [first.ref]
    world.leases.restore()
    await world.pass_ms(3_000)
    assert world.dispatched() == [first.ref, second.ref]


@pytest.mark.parametrize("stage", list(Stage))
async def test_a_crash_within_a_commit_loses_and_doubles_nothing(world: World, stage: Stage) -> None:
    rows = [world.row(1_000, shard=s) for s in range(4)]
    await world.create(*rows)
    first = await world.process("a")
    stuck = asyncio.Event()

    async def pause(lane: int, at: Stage) -> None:
        if lane == first.slot and at is stage:
            stuck.set()
            await asyncio.Event().wait()

    await world.pass_ms(500)
    world.journal.pause = pause
    await world.until(stuck.is_set)
    await first.crash()
    world.journal.pause = None
    await world.process("b")
    await world.pass_ms(3_000)
    assert sorted(world.dispatched()) == sorted(row.ref for row in rows)
    world.check()


async def test_a_crash_before_the_marks_dispatches_nothing_twice(world: World) -> None:
    rows = [world.row(1_000, shard=s) for s in range(4)]
    await world.create(*rows)
    first = await world.process("a", mark_interval_ms=5_000)
    await world.pass_ms(1_500)
    assert len(world.dispatched()) == 4
    assert not (await facts(world, rows[0])).settled
    await first.crash()
    await world.process("b")
    await world.pass_ms(3_000)
    assert len(world.dispatched()) == 4
    assert all([(await facts(world, row)).dispatched_ms for row in rows])
    world.check()


async def test_a_zombie_can_neither_dispatch_nor_confirm(world: World) -> None:
    row = world.row(3_000)
    await world.create(row)
    zombie = await world.process("a")
    await world.pass_ms(200)
    zombie.membership.expire()  # it does not know it yet
    heir = await world.process("b")
    cancel = asyncio.create_task(zombie.lane.cancel(NAMESPACE, row.task_id))
    assert zombie.running is not None
    await world.until(lambda: cancel.done() and zombie.running.done())  # type: ignore[union-attr]
    assert cancel.result() in (HintAnswer.NOT_OWNER, HintAnswer.NOT_READY)
    await world.pass_ms(4_000)
    assert world.dispatched() == [row.ref]
    assert heir.lane.active() == {0, 1}
    world.check()


async def test_a_clean_hand_over_needs_no_fence_and_repeats_nothing(world: World) -> None:
    rows = [world.row(1_000), world.row(4_000)]
    await world.create(*rows)
    first = await world.process("a")
    await world.pass_ms(2_000)
    stopping = asyncio.create_task(first.lane.stop())
    await world.until(stopping.done)
    assert all(state.released for state in world.leases.ranges.values())
    second = await world.process("b")
    assert world.leases.ranges[0].predecessors == ()
    await world.pass_ms(4_000)
    assert world.dispatched() == [row.ref for row in rows]
    assert second.lane.active() == {0, 1}
    world.check()


async def test_a_journal_that_is_not_the_checkpoints_stops_the_range(world: World) -> None:
    row = world.row(60_000)
    await world.create(row, world.row(100))
    first = await world.process("a")
    await world.pass_ms(12_000)
    await first.crash()
    lane = world.journal.lane(first.slot)
    lane.records = lane.records[:1]
    lane.records[0].value = lane.records[0].value[:-1] + b"\x01"
    second = await world.process("b", ranges=range(1))
    await world.pass_ms(70_000, step_ms=1_000)
    assert second.lane.active() == set()
    assert row.ref not in world.dispatched()


async def test_a_range_without_checkpoint_is_not_served(world: World) -> None:
    world.checkpoints = type(world.checkpoints)()
    process = await world.process()
    assert process.lane.active() == set()


async def test_buckets_close_in_order_once_they_are_drained(world: World) -> None:
    world = await World(grace_ms=5_000, retention_ms=90_000_000).prepare()
    rows = [world.row(1_000), world.row(61_000)]
    await world.create(*rows)
    await world.process()
    await world.pass_ms(200_000, step_ms=500)
    closed = [b for r in world.records() for s in r.sections for b in s.closed if s.range_id == 0]
    first = rows[0].bucket
    assert closed[:3] == [first, first + 1, first + 2]
    for checkpoint in [await world.checkpoints.load(0)]:
        assert checkpoint is not None
        assert checkpoint.first_open_bucket > first + 1
    await world.close()


async def test_a_row_written_into_a_closed_bucket_moves_to_now(world: World) -> None:
    world = await World(grace_ms=5_000).prepare()
    process = await world.process()
    late = world.row(1_000)
    await world.pass_ms(130_000, step_ms=500)
    await world.create(late)
    admitted = asyncio.create_task(process.lane.admit(late))
    await world.until(admitted.done)
    assert admitted.result() is HintAnswer.TAKEN
    await world.pass_ms(1_000)
    moved_to = (await facts(world, late)).moved_to_ms
    assert moved_to is not None
    assert [RowRef.unpack(ref)[:4] for ref in world.dispatched()] == [(moved_to, NAMESPACE, late.task_id, 1)]
    again = asyncio.create_task(process.lane.admit(late))
    await world.until(again.done)
    await world.pass_ms(1_000)
    assert len(world.dispatched()) == 1
    too_late = asyncio.create_task(process.lane.cancel(NAMESPACE, late.task_id))
    await world.until(too_late.done)
    assert too_late.result() is CancelResult.ALREADY_DISPATCHED
    await world.close()


async def test_a_moved_row_is_written_again_by_a_taker(world: World) -> None:
    """The move is journaled, its owner dies before the new row is stored."""
    world = await World(grace_ms=5_000).prepare()
    first = await world.process("a")
    late = world.row(1_000)
    await world.pass_ms(130_000, step_ms=500)
    await world.create(late)
    world.store.hold("insert")
    moving = asyncio.create_task(first.lane.admit(late))
    await world.pass_ms(200)
    await first.crash()
    moving.cancel()
    world.store.let_go("insert")
    await world.process("b")
    await world.pass_ms(2_000)
    assert [RowRef.unpack(ref).generation for ref in world.dispatched()] == [1]
    world.check()
    await world.close()


async def test_an_undecodable_row_and_one_of_no_queue_are_failed_and_block_nothing(world: World) -> None:
    poison, lost, good = world.row(500), world.row(500, queue="nowhere"), world.row(500)
    world.store.plant(poison, b"\xff\xff\xff")
    await world.create(lost, good)
    await world.process()
    await world.pass_ms(3_000)
    assert world.dispatched() == [good.ref]
    assert (await facts(world, poison)).failed_reason == "its body can't be decoded"
    assert "nowhere" in (await facts(world, lost)).failed_reason


async def test_a_message_that_can_never_be_sent_does_not_take_its_neighbours_with_it(world: World) -> None:
    world.journal.message_bytes_max = 2_000
    big, small = world.row(500, payload=b"x" * 3_000), world.row(500)
    await world.create(big, small)
    await world.process()
    await world.pass_ms(3_000)
    assert world.dispatched() == [small.ref]
    assert "larger" in (await facts(world, big)).failed_reason
    world.check()


async def test_a_sick_topic_holds_up_nothing_but_its_own(world: World) -> None:
    await world.catalog.create_queue(Queue(NAMESPACE, "ns", "sick", QueueKind.KAFKA, "feverish"))
    world.journal.sick_topics = {"feverish"}
    ill = [world.row(500 + i, queue="sick") for i in range(3)]
    good = [world.row(500 + 100 * i) for i in range(30)]
    await world.create(*ill, *good)
    process = await world.process()
    await world.pass_ms(4_000)
    assert world.dispatched() == [row.ref for row in good]
    assert max(at_ms - RowRef.unpack(ref).due_ms for at_ms, ref in world.visible) <= 50
    cancel = asyncio.create_task(process.lane.cancel(NAMESPACE, ill[0].task_id))
    await world.until(cancel.done)
    world.journal.sick_topics = set()
    await world.pass_ms(6_000)
    assert sorted(world.dispatched()[30:]) == [row.ref for row in ill[1:]]
    assert process.lane.dispatcher._ranges[0].resident_rows == 0
    world.check()


async def test_a_stepped_back_clock_dispatches_nothing_early(world: World) -> None:
    row = world.row(2_000)
    await world.create(row)
    await world.process()
    await world.pass_ms(1_900)
    world.clock.step_ms(-5_000)
    await world.pass_ms(4_000)
    assert world.dispatched() == []
    await world.pass_ms(1_200)
    assert world.dispatched() == [row.ref]
    world.check()


async def test_the_heap_stays_within_its_budget_and_nothing_is_late(world: World) -> None:
    rows = [world.row(1_000 + i * 20, shard=i % 2) for i in range(2_000)]
    await world.create(*rows)
    process = await world.process(heap_rows_max=100, page_rows_max=20)
    owned = process.lane.dispatcher._ranges[0]
    most = 0
    for _ in range(860):
        await world.pass_ms(50)
        most = max(most, owned.resident_rows)
    assert len(world.dispatched()) == 2_000
    assert most <= 200
    assert max(at_ms - RowRef.unpack(ref).due_ms for at_ms, ref in world.visible) <= 50
    world.check()


async def test_a_flood_of_hints_beyond_the_budget_is_left_to_the_loader(world: World) -> None:
    process = await world.process(heap_rows_max=100, page_rows_max=20)
    await world.pass_ms(500)
    rows = [world.row(5_000 + i) for i in range(1_000)]
    await world.create(*rows, hint=process)
    assert process.lane.dispatcher._ranges[0].resident_rows <= 150
    await world.pass_ms(12_000)
    assert sorted(world.dispatched()) == sorted(row.ref for row in rows)
    world.check()


async def test_dispatch_goes_on_while_the_store_is_down(world: World) -> None:
    rows = [world.row(1_000 * i) for i in range(1, 100)]
    await world.create(*rows)
    process = await world.process()
    await world.pass_ms(500)
    world.store.down = world.catalog.down = True
    await world.pass_ms(90_000, step_ms=100)
    assert len(world.dispatched()) == 90
    with pytest.raises(Unavailable):
        await world.store.get(rows[0].due_ms, NAMESPACE, rows[0].task_id)
    world.store.down = world.catalog.down = False
    await world.pass_ms(20_000, step_ms=100)
    assert len(world.dispatched()) == 99
    assert (await facts(world, rows[0])).dispatched_ms is not None
    assert process.lane.active() == {0, 1}
    world.check()


async def test_what_is_done_is_forgotten(world: World) -> None:
    rows = [world.row(1_000 + i) for i in range(100)]
    await world.create(*rows)
    process = await world.process()
    await world.pass_ms(2_000 + REMEMBER_MS + 10_000, step_ms=100)
    owned = process.lane.dispatcher._ranges[0]
    assert [owned.status(row.ref) for row in rows] == [None] * 100
    assert await process.lane.hint([rows[0]]) == [HintAnswer.TAKEN]
    await world.pass_ms(1_000)
    assert len(world.dispatched()) == 100


async def test_many_lost_hints_are_left_to_the_loader_and_its_budget(world: World) -> None:
    """As when an api dies with thousands of rows stored: they are read page by page, not one by one."""
    process = await world.process(heap_rows_max=200, page_rows_max=50)
    known = [world.row(2_500 + i, shard=i % 4) for i in range(40)]
    await world.create(*known, hint=process)
    await world.pass_ms(1_000)
    rows = [world.row(1_000 + 3 * i, shard=i % 4) for i in range(1_000)]
    await world.create(*rows)
    gets: list[object] = []
    get = world.store.get

    async def counted(*place: object) -> object:
        gets.append(place)
        return await get(*place)  # type: ignore[arg-type]

    world.store.get = counted  # type: ignore[method-assign, assignment]
    resident = 0
    while len(world.dispatched()) < 1_040:
        await world.pass_ms(50)
        resident = max(resident, *(owned.resident_rows for owned in process.lane._ranges.values()))
        assert world.clock.now_ms() < rows[-1].due_ms + 10_000, len(world.dispatched())
    assert len(gets) < 100
    assert resident <= 500
    world.check()


async def test_hints_that_are_under_way_during_a_scan_need_no_reading(world: World) -> None:
    """A burst of creates is stored, and about to be hinted, when a scan comes by."""
    process = await world.process(rescan_interval_ms=1_000)
    await world.pass_ms(990)
    rows = [world.row(2_000 + i, shard=i % 4) for i in range(400)]
    await world.create(*rows)
    reads: list[object] = []
    read = world.store.read_partition

    async def counted(*place: object) -> object:
        reads.append(place)
        return await read(*place)  # type: ignore[arg-type]

    world.store.read_partition = counted  # type: ignore[method-assign, assignment]
    await world.pass_ms(20)
    assert await process.lane.hint(rows) == [HintAnswer.TAKEN] * len(rows)
    await world.pass_ms(2_500)
    assert len(world.dispatched()) == len(rows)
    assert not reads
    world.check()
