"""What of the journal is forgotten, and what must not be."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from bucketsched.adapters.memory.clock import ManualClock
from bucketsched.adapters.memory.journal import MemoryJournal, MemoryJournalWorld
from bucketsched.adapters.memory.store import MemoryCheckpointStore
from bucketsched.coordinator.trimmer import INTERVAL_S, JournalTrimmer
from bucketsched.core.checkpoint import NO_OFFSET, Checkpoint, record_hash
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.errors import Unavailable
from bucketsched.core.journal_record import JournalRecord, encode

HOUR_MS = 3_600_000
RETENTION_MS = 24 * HOUR_MS


class TrimmedWorld:
    """Lanes that commit a record an hour, and ranges whose checkpoints are set by hand."""

    def __init__(self, constants: ClusterConstants) -> None:
        self.constants = constants
        self.clock = ManualClock()
        self.journal = MemoryJournalWorld(constants.lanes)
        self.checkpoints = MemoryCheckpointStore()
        self._sequence = 0
        self.trimmer = JournalTrimmer(
            MemoryJournal(self.journal, 0), self.checkpoints, constants, self.clock, RETENTION_MS
        )

    async def commit(self, lane: int) -> int:
        """The offset of a record of now."""
        writer = MemoryJournal(self.journal, lane)
        await writer.init()
        return await writer.commit([], encode(JournalRecord(lane, bytes(16), self.clock.now_ms(), [])))

    async def hours(self, lane: int, count: int) -> list[int]:
        """A record an hour; their offsets."""
        offsets = []
        for _ in range(count):
            offsets.append(await self.commit(lane))
            self.clock.advance_ms(HOUR_MS)
        return offsets

    async def point(self, range_id: int, lane: int, offset: int, name: str = "") -> None:
        """Stores a checkpoint that ends with this record."""
        self._sequence += 1
        value = next((e.value for e in self.journal.lane(lane).records if e.offset == offset), b"")
        checkpoint = Checkpoint(
            1, self._sequence, name or self.journal.name, lane, offset, record_hash(value) if value else b"", 0
        )
        await self.checkpoints.save(range_id, checkpoint)

    def kept(self, lane: int) -> list[int]:
        return [entry.offset for entry in self.journal.lane(lane).records]


@pytest.fixture
def world() -> TrimmedWorld:
    return TrimmedWorld(ClusterConstants(UUID(int=7), shards=2, ranges=2, lanes=3))


async def test_what_is_old_and_behind_every_checkpoint_is_forgotten(world: TrimmedWorld) -> None:
    offsets = await world.hours(0, 40)
    await world.point(0, 0, offsets[38])
    await world.point(1, 0, offsets[39])
    assert await world.trimmer.trim_once() == 1
    assert world.kept(0) == offsets[-24:]
    assert await world.trimmer.trim_once() == 0


async def test_the_record_that_a_checkpoint_ends_with_stays(world: TrimmedWorld) -> None:
    offsets = await world.hours(0, 40)
    await world.point(0, 0, offsets[5])
    await world.point(1, 0, offsets[39])
    await world.trimmer.trim_once()
    assert world.kept(0) == offsets[5:]


async def test_a_range_that_was_never_taken_needs_everything(world: TrimmedWorld) -> None:
    offsets = await world.hours(0, 40)
    await world.point(0, 0, NO_OFFSET)
    await world.point(1, 0, offsets[39])
    assert await world.trimmer.trim_once() == 0
    assert world.kept(0) == offsets


async def test_the_lane_of_the_dead_is_trimmed_too(world: TrimmedWorld) -> None:
    """Nothing points to it any more. What is left in the end is what it wrote last."""
    dead = await world.hours(1, 30)
    living = await world.hours(0, 12)
    await world.point(0, 0, living[-1])
    await world.point(1, 0, living[-1])
    await world.trimmer.trim_once()
    assert world.kept(1) == dead[-12:]


async def test_a_lane_that_lives_idly_may_still_point_to_its_last_record(world: TrimmedWorld) -> None:
    """It takes a range while checkpoints are being read: its own, which this pass did not see, ends there."""
    idle = await world.commit(2)
    busy = await world.hours(0, 40)
    await world.point(0, 0, busy[-1])
    await world.point(1, 0, busy[-1])
    load = world.checkpoints.load

    async def take_behind(range_id: int) -> Checkpoint | None:
        found = await load(range_id)
        await world.point(range_id, 2, idle)
        return found

    world.checkpoints.load = take_behind  # type: ignore[method-assign]
    await world.trimmer.trim_once()
    assert world.kept(2) == [idle]


async def test_a_lane_that_commits_while_checkpoints_are_read_keeps_what_it_wrote_before(world: TrimmedWorld) -> None:
    """The first record to be kept is looked up before: a later one may be behind a checkpoint that was not seen."""
    offsets = await world.hours(2, 25)
    await world.point(0, 0, await world.commit(0))
    await world.point(1, 0, await world.commit(0))
    load, taken = world.checkpoints.load, offsets[-1]

    async def take_behind(range_id: int) -> Checkpoint | None:
        """Range 0 moves to lane 2 behind the reader's back; then lane 2 stands still for a day and goes on."""
        found = await load(range_id)
        if range_id == 0:
            await world.point(0, 2, taken)
            world.clock.advance_ms(25 * HOUR_MS)
            await world.commit(2)
        return found

    world.checkpoints.load = take_behind  # type: ignore[method-assign]
    await world.trimmer.trim_once()
    assert taken in world.kept(2)


@pytest.mark.parametrize("what", ["of another cluster", "none", "corrupt"])
async def test_nothing_is_forgotten_while_a_range_has_no_checkpoint_in_this_journal(
    world: TrimmedWorld, what: str
) -> None:
    """It stands still with an alarm, and what is there may be all that says what was dispatched."""
    offsets = await world.hours(0, 40)
    await world.point(1, 0, offsets[-1])
    if what == "of another cluster":
        await world.point(0, 0, offsets[-1], "another-journal")
    if what == "corrupt":
        world.checkpoints.plant(0, 5, b"\xff")
    assert await world.trimmer.trim_once() == 0
    assert world.kept(0) == offsets


async def test_it_goes_on_after_an_outage(world: TrimmedWorld) -> None:
    offsets = await world.hours(0, 40)
    await world.point(0, 0, offsets[-1])
    await world.point(1, 0, offsets[-1])
    world.checkpoints.fail_next("load", Unavailable("away"))
    running = asyncio.create_task(world.trimmer.run())
    for _ in range(20):
        await asyncio.sleep(0)
    assert world.kept(0) == offsets
    world.clock.advance_ms(int(INTERVAL_S * 1000))
    for _ in range(200):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert world.kept(0) == offsets[-23:]
