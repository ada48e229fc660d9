"""Planned moves between two living lanes: read ahead, released, taken; and what may happen in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest
from lane_world import NAMESPACE, Process, World
from test_lane import facts

from bucketsched.adapters.memory.journal import Stage
from bucketsched.core import failpoints
from bucketsched.core.errors import OwnershipLost, Unavailable
from bucketsched.core.task import bucket_end_ms, bucket_of
from bucketsched.poller.hand_over import STANDING_STILL_MAX
from bucketsched.poller.owned_range import Phase
from bucketsched.ports import CancelResult, HintAnswer, Lease, Page


async def done(world: World, work: Awaitable[object]) -> object:
    """Its result, after as much time as it takes."""
    task = asyncio.ensure_future(work)
    await world.until(task.done)
    return task.result()


async def pair(world: World, **limits: float) -> tuple[Process, Process]:
    """An owner of everything that has been at work for a moment, and another process that owns nothing."""
    owner = await world.process("a", **limits)
    other = await world.process("b", ranges=range(0))
    await world.pass_ms(300)
    return owner, other


async def preload(world: World, taker: Process, range_id: int = 0) -> None:
    assert await done(world, taker.lane.preload(range_id)) is True


async def hand_over(world: World, giver: Process, taker: Process, range_id: int = 0) -> None:
    await done(world, giver.lane.give_up(range_id))
    await done(world, taker.lane.take(range_id))
    assert range_id in taker.lane.active()
    assert range_id not in giver.lane.ranges


async def test_a_warm_move_needs_no_reading_of_rows_before_it_dispatches(world: World) -> None:
    rows = [world.row(1_000 + 500 * i) for i in range(8)]
    await world.create(*rows)
    owner, other = await pair(world)
    await preload(world, other)
    await world.pass_ms(2_000)
    assert 0 < len(world.dispatched()) < 8
    world.store.hold("read_partition")
    world.store.hold("pending_refs")
    await done(world, owner.lane.give_up(0))
    asyncio.ensure_future(other.lane.take(0))
    await world.pass_ms(4_000)
    assert world.dispatched() == [row.ref for row in rows]
    assert max(at_ms - row.due_ms for row, (at_ms, _) in zip(rows, world.visible, strict=True)) < 50
    world.store.let_go("read_partition")
    world.store.let_go("pending_refs")
    await world.pass_ms(1_000)
    world.check()


async def test_what_was_marked_since_the_preload_is_not_sent_again(world: World) -> None:
    """The later checkpoint passes its record: only a replay from the earlier one knows of it."""
    row, later = world.row(2_000), world.row(20_000)
    await world.create(row, later)
    owner, other = await pair(world, mark_interval_ms=100, checkpoint_interval_ms=500)
    await preload(world, other)
    await world.pass_ms(5_000)
    assert world.dispatched() == [row.ref]
    assert (await facts(world, row)).settled
    await hand_over(world, owner, other)
    await world.pass_ms(20_000)
    assert world.dispatched() == [row.ref, later.ref]
    world.check()


async def test_the_checkpoint_is_read_before_the_rows(world: World) -> None:
    """A row that is dispatched, marked and passed by a checkpoint after it was read."""
    row = world.row(2_000)
    await world.create(row)
    owner, other = await pair(world, mark_interval_ms=100, checkpoint_interval_ms=500)
    world.checkpoints.hold("load")
    loading = asyncio.ensure_future(other.lane.preload(0))
    await world.pass_ms(300)
    assert other.lane.preloaded == set()
    world.checkpoints.let_go("load")
    await world.until(loading.done)
    await world.pass_ms(4_000)
    await hand_over(world, owner, other)
    await world.pass_ms(1_000)
    assert world.dispatched() == [row.ref]


async def test_a_read_from_before_the_lease_that_ends_after_it_doubles_nothing(world: World) -> None:
    rows = [world.row(2_000, shard=1), world.row(40_000, shard=1)]
    await world.create(*rows)
    owner, other = await pair(world, mark_interval_ms=100)
    read, gate = world.store.read_partition, asyncio.Event()

    async def late(*arguments: object) -> Page:
        page = await read(*arguments)  # type: ignore[arg-type]
        await gate.wait()
        return page

    world.store.read_partition = late  # type: ignore[method-assign,assignment]
    loading = asyncio.ensure_future(other.lane.preload(0))
    await world.pass_ms(3_000)
    world.store.read_partition = read  # type: ignore[method-assign]
    assert world.dispatched() == [rows[0].ref]
    assert loading.done(), "it does not wait for ever"
    await hand_over(world, owner, other)
    await world.pass_ms(36_000, step_ms=100)  # long enough for the first to be forgotten, if nothing held it
    gate.set()
    await world.pass_ms(5_000)
    assert world.dispatched() == [row.ref for row in rows]
    world.check()


@pytest.mark.parametrize("delay_ms", [700, 4_000, 9_000, 14_000, 70_000])
async def test_what_is_created_between_preload_and_lease_is_found_in_time(world: World, delay_ms: int) -> None:
    owner, other = await pair(world)
    await preload(world, other)
    row = world.row(delay_ms)
    await world.create(row, hint=owner)
    await hand_over(world, owner, other)
    assert world.dispatched() == []
    await world.pass_ms(delay_ms, step_ms=20)
    assert world.dispatched() == [row.ref]
    assert world.visible[0][0] - row.due_ms < 50
    world.check()


async def test_what_the_owner_holds_back_is_found_by_the_taker_however_long_ago_it_was_due(world: World) -> None:
    """Hinted to the owner after the preload had read its place, and not sent: its topic took nothing."""
    owner, other = await pair(world)
    world.journal.sick_topics = {"topic"}
    await preload(world, other)
    row = world.row(300)
    await world.create(row, hint=owner)
    await world.pass_ms(9_000)
    world.journal.sick_topics = set()
    await done(world, owner.lane.give_up(0))
    await world.pass_ms(40_000, step_ms=500)
    await done(world, other.lane.take(0))
    await world.pass_ms(1_000)
    assert world.dispatched() == [row.ref]


async def test_a_preload_is_thrown_away_if_another_owned_the_range_since(world: World) -> None:
    rows = [world.row(3_000), world.row(9_000)]
    await world.create(*rows)
    owner, other = await pair(world, mark_interval_ms=100)
    third = await world.process("c", ranges=range(0), mark_interval_ms=100)
    await preload(world, other)
    await hand_over(world, owner, third)
    await world.pass_ms(4_000)
    assert world.dispatched() == [rows[0].ref]
    await hand_over(world, third, other)
    await world.pass_ms(6_000)
    assert world.dispatched() == [row.ref for row in rows]
    world.check()


async def test_a_taker_that_died_half_way_in_between_makes_no_preload_stale_or_wrong(world: World) -> None:
    rows = [world.row(3_000), world.row(9_000)]
    await world.create(*rows)
    owner, other = await pair(world)
    third = await world.process("c", ranges=range(0))
    await preload(world, other)
    await world.pass_ms(3_000)
    await done(world, owner.lane.give_up(0))
    world.checkpoints.hold("load")
    taking = asyncio.ensure_future(third.lane.take(0))
    await world.settle()
    await third.crash()
    taking.cancel()
    world.checkpoints.let_go("load")
    await done(world, other.lane.take(0))
    await world.pass_ms(6_000)
    assert world.dispatched() == [row.ref for row in rows]
    world.check()


async def test_a_taker_that_lost_its_lease_on_the_way_never_begins(world: World) -> None:
    """The next one has read the checkpoint before this one's, and does not replay this one's journal."""
    row = world.row(3_000)
    await world.create(row)
    owner, other = await pair(world)
    third = await world.process("c", ranges=range(0))
    await preload(world, other)
    await done(world, owner.lane.give_up(0))
    world.checkpoints.hold("save")
    taking = asyncio.ensure_future(other.lane.take(0))
    await world.settle()
    world.leases.ranges[0].holder = None
    fence, gate = third.journal.fence, asyncio.Event()

    async def late(lane: int) -> None:
        await gate.wait()
        await fence(lane)

    third.journal.fence = late  # type: ignore[method-assign]
    heir = asyncio.ensure_future(third.lane.take(0))
    await world.settle()
    world.checkpoints.let_go("save")
    await world.pass_ms(4_000)
    assert isinstance(taking.exception(), OwnershipLost)
    assert world.dispatched() == []
    gate.set()
    await world.until(heir.done)
    await world.pass_ms(500)
    assert world.dispatched() == [row.ref]
    world.check()


async def test_an_owner_that_dies_after_the_preload_is_fenced_and_replayed(world: World) -> None:
    rows = [world.row(2_000 + 100 * i, shard=i % 4) for i in range(8)]
    await world.create(*rows)
    owner, other = await pair(world, mark_interval_ms=5_000)
    await preload(world, other)
    await world.until(lambda: len(world.dispatched()) == 4)
    await owner.crash()
    for range_id in (0, 1):
        await done(world, other.lane.take(range_id))
    await world.pass_ms(2_000)
    assert sorted(world.dispatched()) == sorted(row.ref for row in rows)
    world.check()


async def test_buckets_that_were_closed_since_the_preload_stay_closed() -> None:
    world = await World(ranges=1, grace_ms=1_000).prepare()
    owner, other = await pair(world)
    boundary = bucket_end_ms(bucket_of(world.clock.now_ms()))
    row = world.row(boundary - world.clock.now_ms() - 500)
    await world.create(row, hint=owner)
    await world.pass_ms(boundary - world.clock.now_ms() - 2_000, step_ms=500)
    await preload(world, other)
    await world.pass_ms(6_000)
    late = world.row(boundary - world.clock.now_ms() - 300)
    giver = owner.lane.dispatcher._ranges[0]
    assert giver.first_open_bucket > row.bucket
    await world.create(late)
    await hand_over(world, owner, other)
    taken = other.lane.dispatcher._ranges[0]
    assert taken.first_open_bucket == giver.first_open_bucket
    assert not taken.queued[row.bucket]
    await world.pass_ms(3_000)
    assert world.dispatched() == [row.ref]
    assert await done(world, other.lane.admit(late)) is HintAnswer.TAKEN
    await world.pass_ms(500)
    assert len(world.dispatched()) == 2
    await world.close()


async def test_a_cancelled_row_that_was_read_before_stays_cancelled(world: World) -> None:
    row = world.row(8_000)
    await world.create(row)
    owner, other = await pair(world)
    await preload(world, other)
    assert await done(world, owner.lane.cancel(NAMESPACE, row.task_id)) is CancelResult.CANCELLED
    await hand_over(world, owner, other)
    assert await other.lane.hint([row]) == [HintAnswer.TAKEN]
    await world.pass_ms(9_000)
    assert world.dispatched() == []
    assert await done(world, other.lane.cancel(NAMESPACE, row.task_id)) is CancelResult.ALREADY_CANCELLED


async def test_an_old_preload_is_read_anew_and_one_that_is_not_wanted_is_dropped(world: World) -> None:
    await world.create(world.row(60_000))
    _, other = await pair(world)
    await preload(world, other)
    reads = world.store.calls["read_partition"]
    await preload(world, other)
    assert world.store.calls["read_partition"] == reads
    await world.pass_ms(11_000, step_ms=100)
    await preload(world, other)
    assert world.store.calls["read_partition"] > reads
    other.lane.discard(0)
    assert other.lane.preloaded == set()


async def test_without_a_store_nothing_is_preloaded_and_nobody_waits_for_ever(world: World) -> None:
    _, other = await pair(world)
    world.checkpoints.down = True
    assert await done(world, other.lane.preload(0)) is False
    world.checkpoints.down = False
    world.store.hold("read_partition")
    assert await done(world, other.lane.preload(0)) is False
    world.store.let_go("read_partition")


async def test_while_it_stores_its_progress_an_owner_goes_on(world: World) -> None:
    rows = [world.row(500), world.row(1_500)]
    await world.create(*rows)
    owner, _ = await pair(world, mark_interval_ms=5_000)
    await world.pass_ms(300)
    world.store.hold("mark")
    giving = asyncio.ensure_future(owner.lane.give_up(0))
    await world.pass_ms(1_000)
    assert not giving.done()
    assert world.dispatched() == [row.ref for row in rows]
    world.store.let_go("mark")
    await world.until(giving.done)
    assert world.leases.ranges[0].released


async def test_a_release_without_an_answer_ends_the_ownership(world: World) -> None:
    """It may have been carried out: the next owner begins without a fence."""
    rows = [world.row(2_000), world.row(3_000)]
    await world.create(*rows)
    owner, other = await pair(world)
    release, answers = owner.leases.release, [Unavailable("no answer")] * 2

    async def unanswered(lease: object) -> None:
        if answers:
            answer = answers.pop()
            if answers:
                await release(lease)  # type: ignore[arg-type]
            raise answer
        await release(lease)  # type: ignore[arg-type]

    owner.leases.release = unanswered  # type: ignore[method-assign,assignment]
    giving = asyncio.ensure_future(owner.lane.give_up(0))
    await world.until(lambda: world.leases.ranges[0].released)
    assert owner.lane.active() == {1}
    await done(world, other.lane.take(0))
    await world.pass_ms(4_000)
    assert giving.done()
    assert owner.lane.ranges == {1}
    assert world.dispatched() == [row.ref for row in rows]
    world.check()


async def test_where_the_lease_service_is_away_a_range_does_not_stop(world: World) -> None:
    rows = [world.row(1_000)]
    await world.create(*rows)
    owner, _ = await pair(world)
    world.leases.cut()
    await done(world, owner.lane.give_up(0))
    assert owner.lane.active() == {0, 1}
    await world.pass_ms(1_000)
    assert world.dispatched() == [row.ref for row in rows]
    world.leases.restore()


async def test_a_stop_gives_up_what_stands_still_too(world: World) -> None:
    owner, _ = await pair(world)
    owned = owner.lane.dispatcher._ranges[1]
    owned.phase = Phase.ALARMED
    await done(world, owner.lane.stop())
    assert all(state.released for state in world.leases.ranges.values())
    assert owner.lane.ranges == set()


async def test_a_release_waits_for_the_end_of_a_transaction(world: World) -> None:
    """Begun after the progress was stored, while the range still is dispatched."""
    row = world.row(1_000)
    await world.create(row)
    owner, other = await pair(world)
    stuck, go_on = asyncio.Event(), asyncio.Event()

    async def pause(lane: int, at: Stage) -> None:
        if lane == owner.slot and at is Stage.PRODUCED:
            stuck.set()
            await go_on.wait()

    world.checkpoints.hold("save")
    giving = asyncio.ensure_future(owner.lane.give_up(0))
    await world.pass_ms(100)
    world.journal.pause = pause
    await world.until(stuck.is_set)
    world.checkpoints.let_go("save")
    await world.pass_ms(500)
    assert not world.leases.ranges[0].released
    world.journal.pause = None
    go_on.set()
    await world.until(giving.done)
    await done(world, other.lane.take(0))
    await world.pass_ms(1_000)
    assert world.dispatched() == [row.ref]
    world.check()


async def test_a_hand_over_that_is_cancelled_before_its_release_leaves_the_range_served(world: World) -> None:
    rows = [world.row(500), world.row(1_500)]
    await world.create(*rows)
    owner, _ = await pair(world)
    await owner.lane.dispatcher.turn.acquire()
    stopping = asyncio.ensure_future(owner.lane._hand_over._stop(owner.lane.dispatcher._ranges[0]))
    await world.pass_ms(100)
    assert owner.lane.active() == {1}
    stopping.cancel()
    await world.settle()
    owner.lane.dispatcher.turn.release()
    assert owner.lane.active() == {0, 1}
    await world.pass_ms(2_000)
    assert world.dispatched() == [row.ref for row in rows]


async def test_a_hint_of_what_was_due_long_ago_is_answered_by_a_record_only(world: World) -> None:
    owner, _ = await pair(world)
    late = world.row(200)
    await world.pass_ms(21_000, step_ms=200)
    world.journal.sick_topics = {"topic"}
    await world.create(late)
    assert await done(world, owner.lane.hint([late])) == [HintAnswer.NOT_READY]
    world.journal.sick_topics = set()
    await world.pass_ms(5_000)
    assert world.dispatched() == [late.ref]
    assert await done(world, owner.lane.hint([late])) == [HintAnswer.TAKEN]


async def test_buckets_close_after_a_warm_move() -> None:
    world = await World(ranges=1, grace_ms=1_000).prepare()
    owner, other = await pair(world)
    rows = [world.row(1_000 + 100 * i) for i in range(5)]
    await world.create(*rows, hint=owner)
    await preload(world, other)
    await world.pass_ms(1_200)
    await hand_over(world, owner, other)
    await world.pass_ms(bucket_end_ms(rows[0].bucket) - world.clock.now_ms() + 5_000, step_ms=200)
    assert world.dispatched() == [row.ref for row in rows]
    assert other.lane.dispatcher._ranges[0].first_open_bucket > rows[0].bucket
    world.check()
    await world.close()


class Crash(BaseException):
    """As by kill -9."""


GIVING = ("hand-over.stored", "hand-over.stopped", "hand-over.released")
TAKING = (
    "preload.checkpoint-read",
    "preload.loaded",
    "takeover.leased",
    "takeover.checkpoint-read",
    "takeover.fenced",
    "takeover.replayed",
    "takeover.checkpoint-written",
    "takeover.cleared",
)


@pytest.mark.parametrize("place", [*GIVING, *TAKING])
async def test_a_crash_anywhere_in_a_warm_move_loses_and_doubles_nothing(world: World, place: str) -> None:
    rows = [world.row(400 + 300 * i, shard=i % 2) for i in range(12)]
    await world.create(*rows)
    owner, other = await pair(world)
    third = await world.process("c", ranges=range(0))

    def crash(reached: str) -> None:
        if reached == place:
            failpoints.install(None)
            raise Crash

    async def move() -> None:
        await other.lane.preload(0)
        await owner.lane.give_up(0)
        await other.lane.take(0)

    failpoints.install(crash)
    try:
        moving = asyncio.ensure_future(move())
        moving.add_done_callback(lambda task: task.cancelled() or task.exception())
        await world.until(moving.done)
        assert isinstance(moving.exception(), Crash)
    finally:
        failpoints.install(None)
    await (owner if place in GIVING else other).crash()
    if place == "preload.checkpoint-read" or place == "preload.loaded":
        await done(world, owner.lane.give_up(0))
    await done(world, third.lane.take(0))
    await world.pass_ms(6_000)
    assert sorted(world.dispatched()) == sorted(row.ref for row in rows)
    world.check()


async def test_of_many_ranges_that_move_at_once_only_a_few_stand_still_at_a_time() -> None:
    world = await World(shards=16, ranges=16).prepare()
    owner, gate = await world.process("a"), asyncio.Event()
    release = owner.leases.release

    async def slow(lease: Lease) -> None:
        await gate.wait()
        await release(lease)

    owner.leases.release = slow  # type: ignore[method-assign]
    giving = asyncio.gather(*(owner.lane.give_up(range_id) for range_id in range(16)))
    await world.pass_ms(1_500)
    assert owner.lane.state().ranges == {"stopping": STANDING_STILL_MAX, "active": 16 - STANDING_STILL_MAX}
    gate.set()
    await world.until(giving.done)
    assert owner.lane.ranges == set()
    await world.close()
