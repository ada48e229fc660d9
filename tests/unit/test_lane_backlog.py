"""After an outage of all pollers: everything since goes, oldest first, and the present does not wait for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest
from lane_world import NAMESPACE, World

from bucketsched.core import task_id as ids
from bucketsched.core.catalog import Queue, QueueKind
from bucketsched.core.task import Priority, RowRef, TaskBody, TaskRow, bucket_of
from bucketsched.poller.open_buckets import BACKLOG_BUCKETS_MAX

MINUTE_MS = 60_000
HOURS_3_MS = 180 * MINUTE_MS


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = await World(grace_ms=1_000).prepare()
    yield made
    await made.close()


def due_at(world: World, due_ms: int, shard: int, priority: Priority = Priority.NORMAL, queue: str = "q") -> TaskRow:
    """A row that was created an hour before it was due."""
    body = TaskBody("ns", queue, "t", b"x", {}, priority, due_ms, due_ms - 60 * MINUTE_MS)
    return TaskRow(due_ms, NAMESPACE, ids.mint(due_ms, shard, world.random.getrandbits(62)), body)


async def outage(world: World, minutes: int, rows_a_minute: int) -> list[TaskRow]:
    """So long no poller runs; what was due meanwhile."""
    start_ms, rows = world.clock.now_ms(), []
    for minute in range(minutes):
        for number in range(rows_a_minute):
            due_ms = start_ms + minute * MINUTE_MS + number * (MINUTE_MS // rows_a_minute)
            rows.append(due_at(world, due_ms, number % 4, Priority(number % 3)))
    await world.create(*rows)
    world.clock.advance_ms(minutes * MINUTE_MS)
    return rows


def reasons(world: World) -> dict[bytes, str]:
    """Why each dispatched row was late, as its message says."""
    return {
        committed.message.ref: dict(committed.message.headers).get("ce_latereason", b"").decode()
        for committed in world.journal.committed
    }


async def test_three_hours_of_buckets_are_drained_and_closed_oldest_first(world: World) -> None:
    rows = await outage(world, 180, 4)
    process = await world.process(checkpoint_interval_ms=500)
    await world.until(lambda: len(world.dispatched()) == len(rows))
    world.check()
    assert {row.ref for row in rows} == set(world.dispatched())
    behind, furthest = bucket_of(world.clock.now_ms()) - 2, 0
    for ref in world.dispatched():
        bucket = bucket_of(RowRef.unpack(ref).due_ms)
        if bucket > behind:
            continue  # the present goes beside it
        assert bucket >= furthest - BACKLOG_BUCKETS_MAX, "a few buckets at a time, in their order"
        furthest = max(furthest, bucket)
    present = bucket_of(world.clock.now_ms())
    await world.until(lambda: all(o.first_open_bucket >= present - 1 for o in process.lane._ranges.values()))
    await world.pass_ms(1_000)
    checkpoint = await world.checkpoints.load(0)
    assert checkpoint is not None
    assert checkpoint.first_open_bucket >= present - 1
    assert process.lane.state().retention_used < 0.001


async def test_within_a_bucket_the_highest_priority_goes_first(world: World) -> None:
    """Of what is loaded and due about the same time."""
    first = world.clock.now_ms()
    rows = [due_at(world, first + n, n % 4, Priority(n % 3)) for n in range(30)]
    await world.create(*rows)
    world.clock.advance_ms(HOURS_3_MS)
    await world.process(transaction_tasks_max=1)
    await world.until(lambda: len(world.dispatched()) == len(rows))
    priority = {row.ref: row.body.priority for row in rows}
    order = [priority[ref] for ref in world.dispatched()]
    assert order == sorted(order)


async def test_late_messages_say_that_nobody_was_there(world: World) -> None:
    rows = await outage(world, 30, 2)
    soon = due_at(world, world.clock.now_ms() + 500, 0)
    await world.create(soon)
    await world.process()
    await world.until(lambda: len(world.dispatched()) == len(rows) + 1)
    counts = Counter(reasons(world)[row.ref] for row in rows)
    assert counts["outage"] >= len(rows) - 1, "the last one was hardly late"
    assert reasons(world)[soon.ref] == ""


async def test_the_present_does_not_wait_for_a_backlog(world: World) -> None:
    """500 a second can be dispatched, and 1,500 wait: that takes three seconds, but what is due now goes now."""
    rows = await outage(world, 15, 100)
    present = [due_at(world, world.clock.now_ms() + 200 + 50 * n, n % 4) for n in range(40)]
    await world.create(*present)
    await world.process(transaction_tasks_max=5)
    await world.until(lambda: len(world.dispatched()) == len(rows) + len(present))
    world.check()
    seen = {ref: at_ms for at_ms, ref in world.visible}
    late = [seen[row.ref] - row.due_ms for row in present]
    assert max(late) <= 40, late
    assert not any(reasons(world)[row.ref] for row in present)
    last = max(seen[row.ref] for row in rows)
    assert last > max(seen[row.ref] for row in present), "there was a backlog all the time"


async def two_queues(world: World) -> None:
    await world.catalog.create_queue(Queue(NAMESPACE, "ns", "other", QueueKind.KAFKA, "other-topic"))


async def test_the_backlogs_of_queues_take_turns(world: World) -> None:
    """One has 900 rows, all of them older than the 30 of the other, which has its half while it has anything."""
    await two_queues(world)
    start_ms = world.clock.now_ms()
    huge = [due_at(world, start_ms + n, n % 4) for n in range(900)]
    small = [due_at(world, start_ms + 10_000 + n, n % 4, Priority(n % 3), queue="other") for n in range(30)]
    await world.create(*huge, *small)
    world.clock.advance_ms(10 * MINUTE_MS)
    await world.process(transaction_tasks_max=10)
    await world.until(lambda: len(world.dispatched()) == len(huge) + len(small))
    world.check()
    order = {ref: place for place, ref in enumerate(world.dispatched())}
    assert max(order[row.ref] for row in small) < 200
    assert {reasons(world)[row.ref] for row in small} == {"outage"}


async def test_a_backlog_delays_fresh_tasks_of_no_queue(world: World) -> None:
    await two_queues(world)
    rows = await outage(world, 15, 100)
    now_ms = world.clock.now_ms()
    present = [due_at(world, now_ms + 200 + 50 * n, n % 4, queue=("q", "other")[n % 2]) for n in range(40)]
    await world.create(*present)
    await world.process(transaction_tasks_max=5)
    await world.until(lambda: len(world.dispatched()) == len(rows) + len(present))
    seen = {ref: at_ms for at_ms, ref in world.visible}
    assert max(seen[row.ref] - row.due_ms for row in present) <= 40
    assert max(seen[row.ref] for row in rows) > max(seen[row.ref] for row in present)


async def test_a_backlog_takes_half_of_the_memory_and_leaves_the_present_its_room(world: World) -> None:
    rows = await outage(world, 10, 400)
    world.clock.advance_ms(3 * MINUTE_MS)  # nothing of the present
    process = await world.process(ranges=range(0), heap_rows_max=100, transaction_tasks_max=2)
    await process.lane.take(0)
    of_range = [row for row in rows if ids.shard_in(row.task_id) in world.constants.shards_of(0)]
    (owned,) = process.lane._ranges.values()
    most = 0
    while len(world.dispatched()) < 300:
        await world.pass_ms(20)
        most = max(most, owned.resident_rows)
    assert len(of_range) > 300
    assert most <= 60, "half of the budget, and what is due within the next seconds has the rest"


async def test_a_backlog_that_is_about_to_expire_raises_the_alarm(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the retention is over: there is as much time left to do something about it."""
    world.constants = type(world.constants)(
        world.constants.cluster_id, shards=4, ranges=2, lanes=4, grace_ms=1_000, retention_ms=2 * HOURS_3_MS
    )
    await outage(world, 200, 1)
    world.journal.sick_topics.add("topic")
    process = await world.process()
    await world.pass_ms(5_000)
    assert 0.5 < process.lane.state().retention_used < 0.6
    assert "a backlog is older than half of the retention" in capsys.readouterr().out
