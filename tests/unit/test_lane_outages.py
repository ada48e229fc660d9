"""A lane whose journal or store is away: what goes on, what waits, and in which order it comes afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from lane_world import NAMESPACE, Process, World

from bucketsched.core.errors import OutcomeUnknown, Unavailable
from bucketsched.core.message import Message
from bucketsched.core.task import Priority, RowRef, TaskRow
from bucketsched.ports import CancelResult, HintAnswer, Page

AWAY_MS = 60_000


class Away:
    """Kafka is away for one process's journal: a commit is in doubt, and no new epoch is to be had."""

    def __init__(self, process: Process) -> None:
        self._journal = process.journal
        self.asked = 0

    def begin(self) -> None:
        self._journal.commit = self._commit  # type: ignore[method-assign]
        self._journal.init = self._init  # type: ignore[method-assign]

    def end(self) -> None:
        del self._journal.commit, self._journal.init

    async def _commit(self, messages: Sequence[Message], record: bytes) -> int:
        self.asked += 1
        raise OutcomeUnknown("no broker answers")

    async def _init(self) -> None:
        self.asked += 1
        raise Unavailable("no broker answers")


async def created(world: World, process: Process, dues_ms: Sequence[int], **more: object) -> list[TaskRow]:
    """Rows that are due so much from now, over all shards, in all priorities."""
    ranks = (Priority.NORMAL, Priority.LOW, Priority.HIGH)
    rows = [world.row(due, i % world.constants.shards, priority=ranks[i % 3], **more) for i, due in enumerate(dues_ms)]
    await world.create(*rows, hint=process)
    return rows


async def test_after_kafka_was_away_the_backlog_goes_by_priority_and_due_time(world: World) -> None:
    """Over all ranges, although more is due than one turn brings from the heaps."""
    process = await world.process(transaction_tasks_max=500)
    await world.pass_ms(100)
    away = Away(process)
    rows = await created(world, process, range(1_000, 56_000, 5))
    away.begin()
    await world.pass_ms(AWAY_MS, step_ms=500)
    assert world.dispatched() == []
    away.end()
    await world.until(lambda: len(world.dispatched()) == len(rows))
    order = {row.ref: row.due_ms + process.limits.ageing_ms * row.body.priority for row in rows}
    keys = [order[ref] for ref in world.dispatched()]
    assert keys == sorted(keys)
    world.check()


async def test_while_kafka_is_away_memory_stays_within_its_budget(world: World) -> None:
    rows_max, bytes_max = 400, 2 * 1024 * 1024
    process = await world.process(heap_rows_max=rows_max, heap_bytes_max=bytes_max, page_rows_max=50)
    await world.pass_ms(100)
    away = Away(process)
    away.begin()
    rows = [world.row(due, due % 4, payload=bytes(1_000)) for due in range(1_000, AWAY_MS, 20)]
    await world.create(*rows)
    worst_rows = worst_bytes = 0
    for _ in range(AWAY_MS // 1_000):
        await process.lane.hint([row for row in rows if 0 <= row.due_ms - world.clock.now_ms() < 1_000])
        await world.pass_ms(1_000, step_ms=250)
        ranges = process.lane.dispatcher._ranges
        worst_rows = max(worst_rows, *(owned.resident_rows for owned in ranges.values()))
        worst_bytes = max(worst_bytes, sum(owned.resident_bytes for owned in ranges.values()))
    assert 0 < worst_rows <= 2 * rows_max
    assert worst_bytes <= 2 * bytes_max
    away.end()
    await world.until(lambda: len(world.dispatched()) == len(rows), 120_000)
    world.check()


async def test_a_broker_that_is_away_is_asked_about_once_a_second(world: World) -> None:
    process = await world.process()
    await world.pass_ms(100)
    await created(world, process, [1_000])
    away = Away(process)
    away.begin()
    await world.pass_ms(AWAY_MS, step_ms=100)
    assert 10 < away.asked < 1.5 * AWAY_MS / 1_000
    away.end()
    await world.until(lambda: len(world.dispatched()) == 1, 2_000)


async def test_a_cancel_that_was_given_up_changes_nothing_afterwards(world: World) -> None:
    """Its caller was told that nothing came of it."""
    process = await world.process()
    await world.pass_ms(100)
    (row,) = await created(world, process, [5_000])
    away = Away(process)
    (trigger,) = await created(world, process, [100])
    away.begin()
    await world.pass_ms(1_000)
    asking = asyncio.create_task(process.lane.cancel(NAMESPACE, row.task_id))
    await world.pass_ms(1_000)
    assert not asking.done()
    asking.cancel()
    await world.pass_ms(1_000)
    away.end()
    await world.until(lambda: len(world.dispatched()) == 2)
    assert set(world.dispatched()) == {row.ref, trigger.ref}
    world.check()


async def test_a_cancel_that_is_still_waited_for_is_answered_when_kafka_is_back(world: World) -> None:
    process = await world.process()
    await world.pass_ms(100)
    (row,) = await created(world, process, [20_000])
    await created(world, process, [100])
    away = Away(process)
    away.begin()
    await world.pass_ms(1_000)
    asking = asyncio.create_task(process.lane.cancel(NAMESPACE, row.task_id))
    await world.pass_ms(2_000)
    away.end()
    await world.until(asking.done)
    assert asking.result() is CancelResult.CANCELLED
    await world.pass_ms(30_000)
    assert row.ref not in world.dispatched()


async def test_without_the_store_what_is_loaded_is_on_time(world: World) -> None:
    process = await world.process()
    await world.pass_ms(100)
    rows = await created(world, process, range(1_000, 41_000, 500))
    await world.pass_ms(100)
    world.store.down = world.checkpoints.down = world.catalog.down = True
    await world.pass_ms(42_000, step_ms=50)
    assert len(world.dispatched()) == len(rows)
    assert max(at_ms - RowRef.unpack(ref).due_ms for at_ms, ref in world.visible) < 200
    world.store.down = world.checkpoints.down = world.catalog.down = False
    late = await created(world, process, [100])
    await world.until(lambda: late[0].ref in world.dispatched())
    await world.pass_ms(10_000)
    found = [await world.store.get(row.due_ms, NAMESPACE, row.task_id) for row in rows]
    assert all(stored and stored.facts.dispatched_ms for stored in found), "the marks came afterwards"
    world.check()


async def test_hints_are_taken_while_kafka_is_away(world: World) -> None:
    process = await world.process()
    await world.pass_ms(100)
    away = Away(process)
    await created(world, process, [100])
    away.begin()
    await world.pass_ms(5_000)
    row = world.row(1_000)
    await world.create(row)
    assert await process.lane.hint([row]) == [HintAnswer.TAKEN]
    away.end()
    await world.until(lambda: row.ref in world.dispatched())


async def test_partitions_that_can_not_be_read_hold_up_no_others() -> None:
    """There are more of them than are read at once, and each attempt takes its time to fail."""
    world = await World(shards=16, ranges=1).prepare()
    row = world.row(8_000, shard=15)
    await world.create(row)
    read_partition = world.store.read_partition

    async def partly(bucket: int, shard: int, after: bytes | None, until_ms: int, limit: int) -> Page:
        if shard < 8:
            await world.clock.sleep(2)
            raise Unavailable("no quorum")
        return await read_partition(bucket, shard, after, until_ms, limit)

    world.store.read_partition = partly  # type: ignore[method-assign]
    await world.process(reads_in_flight_max=4)
    await world.pass_ms(9_000, step_ms=100)
    assert world.dispatched() == [row.ref]
    await world.close()


async def test_a_range_that_can_not_be_taken_is_given_back_when_others_are_to_have_it(world: World) -> None:
    """Whoever takes it next fences its former owner all the same."""
    first = await world.process("first")
    await world.pass_ms(100)
    [row] = await created(world, first, [60_000])
    await first.crash()
    second = await world.process("second", range(0))
    world.checkpoints.down = True
    taking = asyncio.create_task(second.lane.take(0))
    await world.pass_ms(3_000)
    assert second.lane.ranges == {0}
    second.lane.forgo(0)
    await world.until(taking.done)
    assert taking.exception() is None
    assert second.lane.ranges == set()
    world.checkpoints.down = False
    state = world.leases.ranges[0]
    assert (state.holder, state.released, state.unfenced()) == (None, True, (first.slot,))
    third = await world.process("third")
    assert third.lane.active() == {0, 1}
    await world.until(lambda: row.ref in world.dispatched(), within_ms=70_000)
    world.check()


async def test_a_range_that_is_wanted_again_goes_on_being_taken(world: World) -> None:
    await (await world.process("first")).crash()
    second = await world.process("second", range(0))
    world.checkpoints.down = True
    taking = asyncio.create_task(second.lane.take(0))
    await world.pass_ms(300)
    await second.lane.give_up(0)
    second.lane.want(0)
    await world.pass_ms(5_000)
    assert not taking.done()
    world.checkpoints.down = False
    await world.until(taking.done)
    assert second.lane.active() == {0}
