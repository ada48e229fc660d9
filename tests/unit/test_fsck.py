"""The comparison of rows and journal: what is found, what is not, and what is done about it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from tempfile import mkdtemp
from uuid import UUID

import pytest

from bucketsched.adapters.memory.clock import ManualClock
from bucketsched.adapters.memory.journal import MemoryJournal, MemoryJournalWorld
from bucketsched.adapters.memory.store import MemoryCheckpointStore, MemoryTaskStore
from bucketsched.core import task_id as ids
from bucketsched.core.checkpoint import Checkpoint
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.errors import Unavailable
from bucketsched.core.journal_record import JournalRecord, Other, Section, encode
from bucketsched.core.task import FactKind, Mark, RowRef, TaskBody, TaskRow, bucket_of
from bucketsched.ports import CancelResult, HintAnswer
from bucketsched.recovery import fsck as module
from bucketsched.recovery.differences import Kind
from bucketsched.recovery.fsck import CREATED_MS_MIN, SECOND_LOOK_S, Fsck, Report, Window
from bucketsched.recovery.repair import Repair
from bucketsched.recovery.spill import Said, Spill

NAMESPACE = bytes(range(16))
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


class FsckWorld:
    """A cluster that stands still: two ranges, two lanes, its buckets are closed but for the last 10 minutes."""

    def __init__(self, folder: Path) -> None:
        self.constants = ClusterConstants(UUID(int=7), shards=4, ranges=2, lanes=2)
        self.clock = ManualClock()
        self.journal = MemoryJournalWorld(2)
        self.store, self.checkpoints = MemoryTaskStore(), MemoryCheckpointStore()
        self.random = random.Random(1)
        self._folder = folder
        self.now_ms = self.clock.now_ms()
        self.first_open = bucket_of(self.now_ms - 10 * MINUTE_MS)

    async def prepare(self) -> FsckWorld:
        for lane in range(2):
            await self.record(lane, at_ms=self.now_ms - 2 * HOUR_MS)
        for range_id in range(2):
            await self.checkpoints.save(range_id, Checkpoint(1, 1, self.journal.name, 0, 0, b"", self.first_open))
        return self

    async def row(self, age_ms: int = HOUR_MS, shard: int = 0, created_ms: int | None = None) -> TaskRow:
        """A stored row that was due so long ago."""
        due = self.now_ms - age_ms
        created = due - MINUTE_MS if created_ms is None else created_ms
        body = TaskBody("ns", "q", "t", b"x", created_ms=created)
        row = TaskRow(due, NAMESPACE, ids.mint(due, shard, self.random.getrandbits(62)), body)
        await self.store.insert([row])
        return row

    async def record(
        self, lane: int, *refs: bytes, at_ms: int | None = None, range_id: int = 0, **others: object
    ) -> int:
        """A committed record; its offset. `at_ms`: by default when the first was due."""
        if at_ms is None:
            at_ms = RowRef.unpack(refs[0]).due_ms
        section = Section(range_id, 1, list(refs), **others)  # type: ignore[arg-type]
        value = encode(JournalRecord(lane, self.random.randbytes(16), at_ms, [section]))
        writer = MemoryJournal(self.journal, lane)
        await writer.init()
        return await writer.commit([], value)

    async def mark(self, row: TaskRow, kind: FactKind = FactKind.DISPATCHED, at_ms: int | None = None) -> None:
        await self.store.mark([Mark(row.ref, kind, row.due_ms if at_ms is None else at_ms)])

    async def done(self, **given: int) -> TaskRow:
        """A row that went as it should."""
        row = await self.row(**given)
        await self.record(0, row.ref, range_id=self.constants.range_of(ids.shard_in(row.task_id)))
        await self.mark(row)
        return row

    def fsck(self) -> Fsck:
        journal = MemoryJournal(self.journal, 0)
        folder = Path(mkdtemp(dir=self._folder))
        return Fsck(journal, self.store, self.checkpoints, self.constants, self.clock, folder, lambda line: None)

    async def check(self, from_ms: int = 0, ranges: tuple[int, ...] = (0, 1)) -> Report:
        running = asyncio.create_task(self.fsck().run(Window(from_ms, self.now_ms, ranges)))
        while not running.done():
            await asyncio.sleep(0)
            if self.clock.next_wake_ms() is not None:
                await self.meanwhile()
                self.clock.advance_ms(int(SECOND_LOOK_S * 1000))
        return running.result()

    async def meanwhile(self) -> None:
        """What happens before the second look."""

    async def found(self) -> list[tuple[Kind, bytes]]:
        return sorted((difference.kind, difference.ref) for difference in (await self.check()).differences)


@pytest.fixture
async def world(tmp_path: Path) -> FsckWorld:
    return await FsckWorld(tmp_path).prepare()


# ---------------------------------------------------------------- what is found


async def test_what_went_as_it_should_is_clean(world: FsckWorld) -> None:
    for shard in range(4):
        for age_ms in (11 * MINUTE_MS, 30 * MINUTE_MS, 90 * MINUTE_MS):
            await world.done(age_ms=age_ms, shard=shard)
    report = await world.check()
    assert report.clean
    assert (report.rows, report.facts) == (12, 12)


async def test_a_row_that_nobody_dispatched_is_lost(world: FsckWorld) -> None:
    await world.done()
    lost = await world.row()
    assert await world.found() == [(Kind.LOST, lost.ref)]


async def test_a_dispatch_without_its_mark(world: FsckWorld) -> None:
    row = await world.row()
    await world.record(1, row.ref)
    assert await world.found() == [(Kind.UNMARKED, row.ref)]


async def test_a_mark_without_its_dispatch(world: FsckWorld) -> None:
    row = await world.row()
    await world.mark(row)
    assert await world.found() == [(Kind.NOT_JOURNALED, row.ref)]


async def test_a_dispatch_of_a_row_that_is_not_there(world: FsckWorld) -> None:
    row = await world.done()
    ghost = RowRef(row.due_ms + 1, NAMESPACE, row.task_id, 0, 1).pack()
    await world.record(0, ghost)
    assert await world.found() == [(Kind.NO_ROW, ghost)]


@pytest.mark.parametrize("lane", [0, 1])
async def test_one_that_went_twice(world: FsckWorld, lane: int) -> None:
    row = await world.done()
    await world.record(lane, row.ref, at_ms=row.due_ms + 5)
    assert await world.found() == [(Kind.TWICE, row.ref)]


async def test_a_fact_that_the_journal_says_otherwise(world: FsckWorld) -> None:
    row = await world.row()
    await world.record(0, at_ms=row.due_ms, others=[Other(FactKind.CANCELLED, row.ref)])
    await world.mark(row)
    assert await world.found() == [(Kind.CONTRADICTION, row.ref)]


async def test_a_moved_row_without_its_successor(world: FsckWorld) -> None:
    row, kept = await world.row(), await world.row()
    for home in (row, kept):
        to_ms = home.due_ms + MINUTE_MS
        await world.record(0, at_ms=to_ms, others=[Other(FactKind.MOVED, home.ref, new_due_ms=to_ms)])
        await world.mark(home, FactKind.MOVED, to_ms)
    moved = TaskRow(kept.due_ms + MINUTE_MS, NAMESPACE, kept.task_id, kept.body, 1)
    await world.store.insert([moved])
    await world.record(0, moved.ref)
    await world.mark(moved)
    assert await world.found() == [(Kind.NO_SUCCESSOR, row.ref)]


async def test_a_failed_row_has_its_reason(world: FsckWorld) -> None:
    row = await world.row()
    await world.record(0, at_ms=row.due_ms, others=[Other(FactKind.FAILED, row.ref, reason="tøo large")])
    report = await world.check()
    assert [difference.said for difference in report.differences] == [
        (Said(row.ref, FactKind.FAILED, row.due_ms, "tøo large"),)
    ]


async def test_a_record_that_can_not_be_read_is_named(world: FsckWorld) -> None:
    offset = world.journal.plant(1, b"BJ?")
    report = await world.check()
    assert (report.unreadable, report.clean) == ([(1, offset)], False)


async def test_a_range_without_checkpoint_is_named(world: FsckWorld) -> None:
    world.checkpoints.plant(1, 5, b"\xff")
    await world.row(shard=3)
    report = await world.check()
    assert (report.skipped_ranges, report.differences, report.clean) == ([1], [], False)


async def test_only_the_ranges_that_were_asked_for(world: FsckWorld) -> None:
    await world.row(shard=0)
    other = await world.row(shard=3)
    report = await world.check(ranges=(1,))
    assert [(d.kind, d.range_id, d.ref) for d in report.differences] == [(Kind.LOST, 1, other.ref)]


# ---------------------------------------------------------------- what is not


async def test_a_bucket_that_is_open_is_nobodys_loss(world: FsckWorld) -> None:
    await world.row(age_ms=9 * MINUTE_MS)
    await world.checkpoints.save(1, Checkpoint(1, 2, world.journal.name, 0, 0, b"", world.first_open - 5))
    await world.row(age_ms=13 * MINUTE_MS, shard=3)
    report = await world.check()
    assert report.clean


async def test_a_cancel_long_before_it_was_due_was_journaled_then(world: FsckWorld) -> None:
    """The record is behind the beginning of the window, or was trimmed: the fact is older than what is compared."""
    row = await world.row()
    await world.mark(row, FactKind.CANCELLED, world.now_ms - 3 * HOUR_MS)
    assert await world.found() == []


async def test_what_is_older_than_the_journal_is_not_compared(world: FsckWorld) -> None:
    old = await world.row(age_ms=100 * MINUTE_MS)
    later = await world.done(age_ms=80 * MINUTE_MS)
    offset = await world.record(1, at_ms=world.now_ms - 90 * MINUTE_MS)
    world.journal.trim(1, offset)
    report = await world.check()
    assert report.clean, "lane 1 may have dispatched it"
    assert RowRef.unpack(old.ref).due_ms < report.from_ms <= later.due_ms


async def test_a_journal_that_was_made_anew_knows_nothing_of_before(world: FsckWorld) -> None:
    await world.row(age_ms=100 * MINUTE_MS)
    for lane in range(2):
        world.journal.recreate(lane)
        await world.record(lane, at_ms=world.now_ms - 90 * MINUTE_MS)
    assert (await world.check()).clean


async def test_an_empty_journal_says_nothing_about_anything(world: FsckWorld) -> None:
    await world.row()
    for lane in range(2):
        world.journal.recreate(lane)
    assert (await world.check()).clean


async def test_a_create_that_may_not_be_acknowledged_yet(world: FsckWorld) -> None:
    await world.row(created_ms=world.now_ms - CREATED_MS_MIN // 2)
    assert await world.found() == []


async def test_what_is_settled_before_the_second_look(world: FsckWorld) -> None:
    """A late create that its owner is about to move; a mark that is being written; a dispatch behind the snapshot."""
    late, unmarked, journaled, lost = [await world.row() for _ in range(4)]
    await world.record(0, unmarked.ref)
    await world.mark(journaled)

    async def meanwhile() -> None:
        to_ms = world.clock.now_ms()
        await world.record(0, at_ms=to_ms, others=[Other(FactKind.MOVED, late.ref, new_due_ms=to_ms)])
        await world.mark(unmarked)
        await world.record(1, journaled.ref)

    world.meanwhile = meanwhile  # type: ignore[method-assign]
    assert await world.found() == [(Kind.LOST, lost.ref)]


# ---------------------------------------------------------------- bounds


async def test_a_bucket_with_more_than_fits_is_compared_in_parts(
    world: FsckWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAID_AT_ONCE_MAX", 3)
    held: list[int] = []
    read = Spill.read

    def noted(self: Spill, bucket: int, shards: set[int]) -> dict[bytes, list[Said]]:
        found = read(self, bucket, shards)
        held.append(len(found))
        return found

    monkeypatch.setattr(Spill, "read", noted)
    for shard in range(4):
        for _ in range(3):
            await world.done(shard=shard)
    lost = await world.row(shard=2)
    assert await world.found() == [(Kind.LOST, lost.ref)]
    assert (max(held), sum(held)) == (3, 12)


async def test_there_may_be_more_differences_than_are_named(world: FsckWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DIFFERENCES_MAX", 2)
    for _ in range(3):
        await world.row()
    report = await world.check()
    assert (len(report.differences), report.more, report.clean) == (2, True, False)


async def test_rows_are_read_in_pages(world: FsckWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_ROWS_MAX", 2)
    for _ in range(5):
        await world.done()
    lost = await world.row()
    assert await world.found() == [(Kind.LOST, lost.ref)]


def test_a_spill_gives_back_what_it_got_however_often_it_was_written_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bucketsched.recovery.spill.BUFFERED_BYTES_MAX", 200)
    spill, rng = Spill(tmp_path), random.Random(3)
    put: dict[int, list[Said]] = {}
    for i in range(50):
        due = 1_740_000_000_000 + (i % 3) * MINUTE_MS
        ref = RowRef(due, NAMESPACE, ids.mint(due, i % 4, rng.getrandbits(62)), 0, 1).pack()
        kind = FactKind(1 + i % 4)
        rest = ("", b"body \xff" * (i % 3)) if kind is FactKind.MOVED else ("reason ä" * (i % 2), b"")
        said = Said(ref, kind, due + i, *rest)
        put.setdefault(bucket_of(due), []).append(said)
        spill.add(said)
    for bucket, all_of_it in put.items():
        found = spill.read(bucket, range(4))
        assert [said for of_ref in found.values() for said in of_ref] == all_of_it
        assert spill.counts[bucket] == len(all_of_it)
        assert set(spill.read(bucket, {1})) == {s.ref for s in all_of_it if ids.shard_in(s.ref[24:40]) == 1}
    assert spill.read(1, range(4)) == {}


# ---------------------------------------------------------------- repair


class RecordingOwners:
    """Owners that settle what they are asked to admit."""

    def __init__(self, world: FsckWorld, answer: HintAnswer | Exception = HintAnswer.TAKEN) -> None:
        self._world, self._answer = world, answer
        self.admitted: list[TaskRow] = []

    async def hint(self, rows: object) -> list[HintAnswer | None]:
        raise AssertionError("nothing is hinted")

    async def cancel(self, namespace_id: bytes, task_id: bytes) -> CancelResult:
        raise AssertionError("nothing is cancelled")

    async def admit(self, row: TaskRow) -> HintAnswer:
        if isinstance(self._answer, Exception):
            raise self._answer
        self.admitted.append(row)
        await self._world.record(0, row.ref)
        await self._world.mark(row)
        return self._answer


async def repaired(world: FsckWorld, owners: RecordingOwners) -> list[tuple[Kind, str]]:
    report = await world.check()
    done = await Repair(world.store, owners, world.clock).run(report.differences)
    return [(difference.kind, what) for difference, what in zip(report.differences, done, strict=True)]


async def test_repair_has_lost_tasks_dispatched_by_their_owner_once(world: FsckWorld) -> None:
    lost, owners = await world.row(), RecordingOwners(world)
    assert await repaired(world, owners) == [(Kind.LOST, "dispatched by its owner")]
    assert [row.ref for row in owners.admitted] == [lost.ref]
    assert await repaired(world, owners) == []
    assert len(owners.admitted) == 1


async def test_repair_leaves_alone_what_was_settled_since(world: FsckWorld) -> None:
    lost, owners = await world.row(), RecordingOwners(world)
    report = await world.check()
    await world.mark(lost)
    assert await Repair(world.store, owners, world.clock).run(report.differences) == ["settled meanwhile"]
    assert owners.admitted == []


async def test_repair_stores_missing_facts_as_the_journal_has_them(world: FsckWorld) -> None:
    row, owners = await world.row(), RecordingOwners(world)
    await world.record(0, at_ms=row.due_ms + 7, others=[Other(FactKind.FAILED, row.ref, reason="too large")])
    assert await repaired(world, owners) == [(Kind.UNMARKED, "fact stored")]
    stored = await world.store.get(row.due_ms, NAMESPACE, row.task_id)
    assert stored is not None
    assert (stored.facts.failed_ms, stored.facts.failed_reason) == (row.due_ms + 7, "too large")
    assert (await world.check()).clean
    assert owners.admitted == []


async def test_repair_writes_a_successor_that_is_missing(world: FsckWorld) -> None:
    row, owners = await world.row(), RecordingOwners(world)
    to_ms = row.due_ms + MINUTE_MS
    await world.record(0, at_ms=to_ms, others=[Other(FactKind.MOVED, row.ref, new_due_ms=to_ms)])
    await world.mark(row, FactKind.MOVED, to_ms)
    assert await repaired(world, owners) == [(Kind.NO_SUCCESSOR, "dispatched by its owner")]
    assert [(r.due_ms, r.generation, r.body) for r in owners.admitted] == [(to_ms, 1, row.body)]
    assert (await world.check()).clean


async def test_repair_goes_on_where_an_owner_can_not_be_reached(world: FsckWorld) -> None:
    await world.row()
    unmarked = await world.row(age_ms=30 * MINUTE_MS)
    await world.record(0, unmarked.ref)
    done = await repaired(world, RecordingOwners(world, Unavailable("nobody")))
    assert done == [(Kind.LOST, "not repaired, try again: nobody"), (Kind.UNMARKED, "fact stored")]


async def test_repair_does_nothing_that_only_a_person_can_decide(world: FsckWorld) -> None:
    row, owners = await world.done(), RecordingOwners(world)
    await world.record(1, row.ref)
    before = await world.store.get(row.due_ms, NAMESPACE, row.task_id)
    assert await repaired(world, owners) == [(Kind.TWICE, "")]
    assert await world.store.get(row.due_ms, NAMESPACE, row.task_id) == before
    assert owners.admitted == []
