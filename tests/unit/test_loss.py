"""Ranges whose journal is not what their checkpoint says: they stand still, and go on once the loss is accepted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

import pytest
from lane_world import Process, World

from bucketsched.adapters.memory.journal import MemoryJournal
from bucketsched.core.checkpoint import Checkpoint
from bucketsched.core.errors import FailedPrecondition, InvalidArgument, Unavailable
from bucketsched.core.journal_record import JournalRecord, Other, Section, encode
from bucketsched.core.task import FactKind, TaskRow
from bucketsched.recovery.loss import Finding, LossReview

WATCH_S = 0.7
CHECKPOINT_MS = 200
Result = TypeVar("Result")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = await World(ranges=1).prepare()
    yield made
    await made.close()


def review(world: World) -> LossReview:
    journal = MemoryJournal(world.journal, 3)
    return LossReview(journal, world.store, world.checkpoints, world.constants, world.clock, WATCH_S)


async def meanwhile(world: World, work: Awaitable[Result]) -> Result:
    """The result of work that waits for time to pass."""
    task = asyncio.ensure_future(work)
    await world.until(task.done)
    return task.result()


async def examined(world: World, since_ms: int | None = None) -> Finding:
    (found,) = await meanwhile(world, review(world).examine([0], since_ms, lambda line: None))
    return found


async def worked(world: World, count: int = 3) -> list[TaskRow]:
    """Tasks that a process dispatched and marked before it crashed."""
    process = await world.process("first", checkpoint_interval_ms=CHECKPOINT_MS)
    rows = [world.row(100) for _ in range(count)]
    await world.create(*rows, hint=process)
    await world.pass_ms(2_000)
    await process.crash()
    assert len(world.dispatched()) == count
    return rows


async def taker(world: World) -> Process:
    """It takes the range that the crash has left."""
    process = await world.process("second", ranges=range(0))
    await process.lane.take(0)
    return process


async def waiting(world: World) -> TaskRow:
    """A task that is due, and not done."""
    row = world.row(100)
    await world.create(row)
    await world.pass_ms(200)
    return row


async def stored(world: World) -> Checkpoint:
    checkpoint = await world.checkpoints.load(0)
    assert checkpoint is not None
    return checkpoint


async def settled(world: World, row: TaskRow) -> bool:
    found = await world.store.get(row.due_ms, row.namespace_id, row.task_id)
    assert found is not None
    return found.facts.settled


async def goes_on(world: World, process: Process, *rows: TaskRow) -> None:
    await world.until(lambda: process.lane.active() == {0})
    await world.until(lambda: {row.ref for row in rows} <= set(world.dispatched()))
    assert max(Counter(world.dispatched()).values()) == 1


# ---------------------------------------------------------------- what is found


async def test_nothing_is_accepted_where_nothing_is_wrong(world: World) -> None:
    await worked(world)
    with pytest.raises(FailedPrecondition, match="matches its journal"):
        await examined(world)


async def test_nothing_is_accepted_of_a_range_whose_owner_goes_on(world: World) -> None:
    """Its journal was made anew under its feet, and it has not noticed: its own checkpoints are of the new one."""
    process = await world.process(checkpoint_interval_ms=CHECKPOINT_MS)
    rows = [world.row(100) for _ in range(3)]
    await world.create(*rows, hint=process)
    await world.pass_ms(2_000)
    world.journal.recreate(process.slot)
    with pytest.raises(FailedPrecondition, match="moved on"):
        await examined(world)


async def test_a_range_without_checkpoint_is_for_migrate(world: World) -> None:
    world.checkpoints._stored.clear()
    with pytest.raises(FailedPrecondition, match="admin migrate"):
        await examined(world)


async def test_the_finding_says_what_is_left(world: World) -> None:
    await worked(world)
    world.journal.recreate(0)
    late = await waiting(world)
    finding = await examined(world)
    assert "record" in finding.problem
    assert (finding.records, finding.facts, finding.unreadable, finding.overdue) == (0, 0, 0, 1)
    assert not await settled(world, late)
    assert (await stored(world)).order == finding.order, "looking changes nothing"


# ---------------------------------------------------------------- a journal that is gone


async def test_a_range_stands_still_until_the_loss_is_accepted_and_then_goes_on(world: World) -> None:
    await worked(world)
    world.journal.recreate(0)
    process = await taker(world)
    assert process.lane.alarmed() == {0}
    late, fences = await waiting(world), world.journal.lane(0).producer
    await world.pass_ms(5_000)
    assert late.ref not in world.dispatched()
    assert world.journal.lane(0).producer == fences, "nobody is fenced in vain, again and again"
    checkpoint = await review(world).accept(await examined(world))
    assert checkpoint.order == (await stored(world)).order
    await goes_on(world, process, late)


async def test_what_is_done_up_to_is_kept(world: World) -> None:
    await worked(world)
    before = await stored(world)
    world.journal.recreate(0)
    accepted = await review(world).accept(await examined(world))
    assert (accepted.first_open_bucket, accepted.low_due_ms) == (before.first_open_bucket, before.low_due_ms)
    assert accepted.epoch == before.epoch
    assert accepted.sequence > before.sequence + 100_000, "a zombie of this epoch must not come that far"


async def test_what_is_left_of_the_journal_is_not_done_again(world: World) -> None:
    """Its beginning was cut off behind the checkpoint's record. What comes after says what must not go twice."""
    await worked(world)
    row = await waiting(world)
    world.journal.recreate(0)
    world.journal.plant(0, encode(JournalRecord(0, bytes(16), 1, [])))
    world.journal.plant(0, encode(JournalRecord(0, bytes(16), 5, [Section(0, 1, dispatched=[row.ref])])))
    finding = await examined(world)
    assert (finding.records, finding.facts, finding.overdue) == (1, 1, 1)
    process = await taker(world)
    await review(world).accept(finding)
    await world.until(lambda: process.lane.active() == {0})
    await world.pass_ms(6_000)
    assert await settled(world, row)
    assert row.ref not in world.dispatched()


async def test_records_of_other_ranges_are_left_alone(world: World) -> None:
    await worked(world)
    row = await waiting(world)
    world.journal.recreate(0)
    world.journal.plant(0, encode(JournalRecord(0, bytes(16), 5, [Section(1, 1, dispatched=[row.ref])])))
    finding = await examined(world)
    assert (finding.records, finding.facts) == (0, 0)
    await review(world).accept(finding)
    assert not await settled(world, row)


async def test_another_clusters_journal(world: World) -> None:
    await worked(world)
    world.journal.name = "of-another-cluster"
    process = await taker(world)
    assert process.lane.alarmed() == {0}
    late = await waiting(world)
    finding = await examined(world)
    assert "memory-journal" in finding.problem
    await review(world).accept(finding)
    await goes_on(world, process, late)


async def test_a_record_that_can_not_be_read_is_passed_over(world: World) -> None:
    await worked(world)
    late = await waiting(world)
    world.journal.plant(0, b"BJ?")
    process = await taker(world)
    assert process.lane.alarmed() == {0}
    finding = await examined(world)
    assert finding.unreadable == 1
    await review(world).accept(finding)
    await goes_on(world, process, late)


@pytest.mark.parametrize("kind", [FactKind.DISPATCHED, FactKind.CANCELLED])
async def test_a_journal_that_settles_a_row_twice_stops_the_range_alone(world: World, kind: FactKind) -> None:
    """The lane, and whatever else it owns, goes on; the range does so when somebody has looked."""
    await worked(world)
    twice, late = await waiting(world), await waiting(world)
    dispatched = Section(0, 1, dispatched=[twice.ref])
    again = dispatched if kind is FactKind.DISPATCHED else Section(0, 1, others=[Other(kind, twice.ref)])
    for section in (dispatched, again):
        world.journal.plant(0, encode(JournalRecord(0, bytes(16), 5, [section])))
    process = await taker(world)
    assert process.lane.alarmed() == {0}
    await world.pass_ms(5_000)
    assert process.running is not None
    assert not process.running.done()
    assert late.ref not in world.dispatched()
    finding = await examined(world)
    assert "twice" in finding.problem
    await review(world).accept(finding)
    await goes_on(world, process, late)
    assert await settled(world, twice)
    assert twice.ref not in world.dispatched()


# ---------------------------------------------------------------- a checkpoint that is gone


async def test_a_checkpoint_that_can_not_be_read_needs_to_be_told_what_is_done(world: World) -> None:
    await worked(world)
    order = (await stored(world)).order
    world.checkpoints.plant(0, order, b"\xff\xff")
    process = await taker(world)
    assert process.lane.alarmed() == {0}
    with pytest.raises(InvalidArgument, match="since"):
        await examined(world)
    late = await waiting(world)
    finding = await examined(world, since_ms=world.clock.now_ms() - 60_000)
    await review(world).accept(finding)
    await goes_on(world, process, late)


# ---------------------------------------------------------------- races


async def test_a_finding_is_of_one_checkpoint(world: World) -> None:
    await worked(world)
    world.journal.recreate(0)
    finding = await examined(world)
    await review(world).accept(finding)
    with pytest.raises(FailedPrecondition, match="moved on"):
        await review(world).accept(finding)


async def test_an_alarmed_range_can_be_given_up_and_taken_by_another(world: World) -> None:
    await worked(world)
    world.journal.recreate(0)
    process = await taker(world)
    await process.lane.give_up(0)
    assert process.lane.ranges == set()
    other = await world.process("third", ranges=range(0))
    await other.lane.take(0)
    assert other.lane.alarmed() == {0}, "whoever takes it sees the same"
    await review(world).accept(await examined(world))
    await goes_on(world, other)


async def test_a_retry_waits_for_the_store(world: World) -> None:
    await worked(world)
    world.journal.recreate(0)
    process = await taker(world)
    await review(world).accept(await examined(world))
    world.checkpoints.fail_next("load", Unavailable("away"), times=3)
    late = await waiting(world)
    await goes_on(world, process, late)
