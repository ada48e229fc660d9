"""Late rows, closings and hand-overs: sequences in which an answer from memory would lose a task, or delay it."""

from __future__ import annotations

import asyncio

from lane_world import NAMESPACE, World

from bucketsched.adapters.memory.journal import Stage
from bucketsched.core.errors import OwnershipLost, Unavailable
from bucketsched.core.journal_record import decode
from bucketsched.core.task import StoredTask, bucket_end_ms
from bucketsched.poller.lane import ADMISSIONS_AT_ONCE_MAX
from bucketsched.ports import HintAnswer, Lease


async def test_a_row_that_comes_while_its_bucket_is_being_closed_moves() -> None:
    world = await World(grace_ms=5_000).prepare()
    process = await world.process("a")
    row = world.row(1_000)
    closing, go_on = asyncio.Event(), asyncio.Event()

    async def pause(lane: int, stage: Stage) -> None:
        under_way = world.journal.lane(lane).open
        if under_way and any(row.bucket in s.closed for s in decode(under_way.record).sections if s.range_id == 0):
            closing.set()
            await go_on.wait()

    world.journal.pause = pause
    await world.until(closing.is_set, 200_000)
    await world.create(row)
    admitted = asyncio.create_task(process.lane.admit(row))
    await world.settle()
    go_on.set()
    await world.until(admitted.done)
    assert admitted.result() is HintAnswer.TAKEN
    await world.pass_ms(1_000)
    assert len(world.dispatched()) == 1
    assert process.running is not None
    assert not process.running.done()
    await world.close()


async def test_a_moved_row_is_dispatched_also_if_its_caller_has_gone() -> None:
    world = await World(grace_ms=5_000).prepare()
    process = await world.process("a")
    late = world.row(1_000)
    await world.pass_ms(130_000, step_ms=500)
    await world.create(late)
    world.store.hold("insert")
    moving = asyncio.create_task(process.lane.admit(late))
    await world.pass_ms(500)
    moving.cancel()
    await world.pass_ms(140_000, step_ms=500)
    world.store.let_go("insert")
    await world.pass_ms(5_000)
    assert len(world.dispatched()) == 1
    again = asyncio.create_task(process.lane.admit(late))
    await world.until(again.done)
    assert again.result() is HintAnswer.TAKEN
    assert len(world.dispatched()) == 1
    world.check()
    await world.close()


async def test_a_taker_finds_a_moved_row_before_what_was_done_of_its_bucket() -> None:
    world = await World(grace_ms=600_000).prepare()
    process = await world.process("a")
    owned = process.lane.dispatcher._ranges[0]
    late = world.row(1_000)
    await world.pass_ms(120_000, step_ms=500)
    owned.buckets.first = late.bucket + 1  # as if its grace were over
    await world.create(late)
    world.store.hold("insert")
    journal = process.journal
    commit = journal.commit

    async def dispatch_nothing(messages: list[object], record: bytes) -> int:
        if messages:
            await asyncio.Event().wait()
        return await commit([], record)

    journal.commit = dispatch_nothing  # type: ignore[method-assign,assignment]
    moving = asyncio.create_task(process.lane.admit(late))
    await world.pass_ms(45_000, step_ms=500)
    await process.crash()
    moving.cancel()
    world.store.let_go("insert")
    await world.process("b")
    await world.pass_ms(3_000)
    assert len(world.dispatched()) == 1
    world.check()
    await world.close()


async def test_a_scan_goes_back_to_where_the_last_one_succeeded(world: World) -> None:
    await world.process("a")
    await world.pass_ms(1_000)
    row = world.row(3_000)
    await world.create(row)  # its hint is lost
    world.store.down = True
    await world.pass_ms(45_000, step_ms=100)
    world.store.down = False
    await world.pass_ms(8_000, step_ms=100)
    assert world.dispatched() == [row.ref]


async def test_what_no_scan_has_seen_is_left_to_the_next_owner(world: World) -> None:
    first = await world.process("a")
    await world.pass_ms(1_000)
    row = world.row(3_000)
    await world.create(row)
    world.store.hold("pending_refs")
    await world.pass_ms(60_000, step_ms=100)
    await first.crash()
    world.store.let_go("pending_refs")
    await world.process("b")
    await world.pass_ms(2_000)
    assert world.dispatched() == [row.ref]


async def test_a_former_owner_can_not_answer_for_a_late_row() -> None:
    """It is fenced and can't reach the lease service; the heir has closed the bucket meanwhile."""
    world = await World(grace_ms=5_000).prepare()
    first = await world.process("a")
    row = world.row(1_000)
    end_ms = bucket_end_ms(row.bucket) - world.clock.now_ms()
    last = world.row(end_ms + 3_500)  # with it the first finds itself fenced, before it would close the bucket
    await world.create(last, hint=first)
    await world.pass_ms(end_ms + 3_000, step_ms=500)

    async def unreachable(leases: list[Lease]) -> set[int]:
        raise Unavailable("cut off")

    first.leases.validate = unreachable  # type: ignore[method-assign,assignment]
    for state in world.leases.ranges.values():
        state.holder = None
    second = await world.process("b")
    await world.pass_ms(6_000, step_ms=100)
    assert first.lane.dispatcher._ranges[0].closing is None
    assert second.lane.dispatcher._ranges[0].first_open_bucket > row.bucket
    await world.create(row)
    asked = asyncio.create_task(first.lane.admit(row))
    await world.until(asked.done)
    assert asked.result() is HintAnswer.NOT_READY
    asked = asyncio.create_task(second.lane.admit(row))
    await world.until(asked.done)
    assert asked.result() is HintAnswer.TAKEN
    await world.pass_ms(1_000)
    assert len(world.dispatched()) == 2
    await world.close()


async def test_nobody_waits_for_a_change_whose_lane_ended_within_its_commit(world: World) -> None:
    process = await world.process("a")
    row = world.row(60_000)
    await world.create(row)
    await world.pass_ms(100)
    stuck = asyncio.Event()

    async def pause(lane: int, stage: Stage) -> None:
        stuck.set()
        await asyncio.Event().wait()

    world.journal.pause = pause
    cancel = asyncio.create_task(process.lane.cancel(NAMESPACE, row.task_id))
    await world.until(stuck.is_set)
    await process.halt()
    await world.until(cancel.done)
    assert cancel.result() is HintAnswer.NOT_OWNER


async def test_a_hand_over_waits_for_the_store_but_dispatch_does_not(world: World) -> None:
    rows = [world.row(2_000 + 1_000 * i) for i in range(30)]
    await world.create(*rows)
    process = await world.process("a")
    await world.pass_ms(2_500)
    world.store.down = world.checkpoints.down = True
    for _ in range(4):
        giving = asyncio.create_task(process.lane.give_up(0))
        await world.pass_ms(5_000, step_ms=100)
        assert giving.done()
    assert len(world.dispatched()) == 21
    assert process.lane.active() == {0, 1}
    world.store.down = world.checkpoints.down = False
    await world.pass_ms(3_000, step_ms=100)
    giving = asyncio.create_task(process.lane.give_up(0))
    await world.until(giving.done)
    assert process.lane.active() == {1}
    await world.process("b", ranges=range(1))
    await world.pass_ms(12_000, step_ms=100)
    assert world.dispatched() == [row.ref for row in rows]
    world.check()


async def test_rows_that_were_ready_when_a_hand_over_failed_still_go(world: World) -> None:
    row = world.row(1_000)
    await world.create(row)
    process = await world.process("a")
    await world.pass_ms(990)
    world.store.hold("mark")
    owned = process.lane.dispatcher._ranges[0]
    world.leases.cut()
    giving = asyncio.create_task(process.lane.give_up(0))
    await world.pass_ms(5_000)
    world.store.let_go("mark")
    await world.until(giving.done)
    await world.pass_ms(200)
    assert world.dispatched() == [row.ref]
    assert owned.resident_rows == 0


async def test_an_admission_into_a_range_that_was_given_up_meanwhile_is_not_ours_to_answer(world: World) -> None:
    process = await world.process("a")
    row = world.row(0)
    await world.pass_ms(50_000, step_ms=500)
    await world.create(row)
    world.store.hold("get")
    asked = asyncio.create_task(process.lane.admit(row))
    await world.settle()
    giving = asyncio.create_task(process.lane.give_up(0))
    await world.until(giving.done)
    world.store.let_go("get")
    await world.until(asked.done)
    assert asked.result() is HintAnswer.NOT_READY


async def test_an_admission_that_was_answered_survives_a_crash(world: World) -> None:
    process = await world.process("a")
    row = world.row(0)
    await world.pass_ms(50_000, step_ms=500)
    await world.create(row)
    asked = asyncio.create_task(process.lane.admit(row))
    await world.until(asked.done)
    assert asked.result() is HintAnswer.TAKEN
    await process.crash()
    await world.process("b")
    await world.pass_ms(2_000)
    assert world.dispatched() == [row.ref]
    world.check()


async def test_epochs_that_are_given_a_second_time_double_nothing(world: World) -> None:
    """The lease service was restored from a copy of before; the owner that it does not know any more is fenced."""
    row = world.row(20_000)
    await world.create(row)
    first = await world.process("a", ranges=range(0))
    for _ in range(3):
        await first.lane.take(0)
        giving = asyncio.create_task(first.lane.give_up(0))
        await world.until(giving.done)
    await first.lane.take(0)
    await world.pass_ms(500)
    state = world.leases.ranges[0]
    state.epoch, state.lane, state.released, state.predecessors, state.holder = 1, -1, True, (), None
    second = await world.process("b", ranges=range(0))
    tries = 0
    while second.lane.ranges != {0}:
        tries += 1
        try:
            await second.lane.take(0)
        except OwnershipLost:
            assert tries < 10
    assert tries > 1
    await world.pass_ms(25_000)
    assert world.dispatched() == [row.ref]
    world.check()


async def test_an_error_that_nobody_expects_ends_the_lane_for_all_to_see(world: World) -> None:
    read = world.store.read_partition

    async def once(*arguments: object) -> object:
        world.store.read_partition = read  # type: ignore[method-assign]
        raise ValueError("a bug")

    process = await world.process(ranges=range(0))
    world.store.read_partition = once  # type: ignore[method-assign,assignment]
    taken = await asyncio.gather(process.lane.take(0), return_exceptions=True)
    assert isinstance(taken[0], OwnershipLost | None)  # its last step may come before the read
    assert process.running is not None
    await world.until(process.running.done)
    assert process.lane.active() == set()
    assert isinstance(process.running.exception(), ValueError)


async def test_a_takeover_that_fails_unexpectedly_leaves_no_range_behind(world: World) -> None:
    load = world.checkpoints.load

    async def once(range_id: int) -> object:
        world.checkpoints.load = load  # type: ignore[method-assign]
        raise ValueError("a bug")

    process = await world.process(ranges=range(0))
    world.checkpoints.load = once  # type: ignore[method-assign,assignment]
    result = await asyncio.gather(process.lane.take(0), return_exceptions=True)
    assert isinstance(result[0], ValueError)
    assert process.lane.ranges == set()
    await process.lane.take(0)
    assert process.lane.active() == {0}


async def test_a_day_without_pollers_is_caught_up_with_while_the_present_goes_on() -> None:
    world = await World(grace_ms=5_000).prepare()
    old = [world.row(60_000 * i, shard=i % 2) for i in range(1, 1_000, 111)]
    await world.create(*old)
    world.clock.advance_ms(86_400_000)
    fresh = [world.row(1_000 * i) for i in range(1, 10)]
    await world.create(*fresh)
    process = await world.process("a", ranges=range(1))
    await world.pass_ms(10_000)
    due = {at_ms - row.due_ms for row in fresh for at_ms, ref in world.visible if ref == row.ref}
    assert len(due) >= 1
    assert max(due) < 100
    await world.until(lambda: len(world.dispatched()) == len(old) + len(fresh), 120_000)
    await world.until(lambda: process.lane.dispatcher._ranges[0].first_open_bucket > old[-1].bucket, 120_000)
    world.check()
    await world.close()


async def test_many_late_hints_are_read_a_bounded_number_at_a_time(world: World) -> None:
    process = await world.process("a")
    rows = [world.row(1_000, shard=i % 4) for i in range(2 * ADMISSIONS_AT_ONCE_MAX)]
    await world.create(*rows)
    await world.pass_ms(25_000, step_ms=500)
    get, reading, most = world.store.get, 0, 0

    async def counting(due_ms: int, namespace_id: bytes, task_id: bytes) -> StoredTask | None:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        await asyncio.sleep(0)
        reading -= 1
        return await get(due_ms, namespace_id, task_id)

    world.store.get = counting  # type: ignore[method-assign]
    assert set(await process.lane.hint(rows)) == {HintAnswer.TAKEN}
    assert most == ADMISSIONS_AT_ONCE_MAX
