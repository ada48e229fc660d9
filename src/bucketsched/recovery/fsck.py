"""Compares the rows of closed buckets with the journal, while the cluster works.

    checkpoints ─▶ which buckets are closed     everything in those was journaled before the checkpoint was written
    journal     ─▶ spilled by bucket            from the beginning of the window to the end as it stands
    rows        ─▶ compared, bucket by bucket
    again       ─▶ whatever differs is looked at once more, some seconds later, with what the journal got meanwhile

The order matters: what is closed is known before the journal's end is, so a record that is missing is missing. What
moves in closed buckets while they are read (a late create that its owner is about to move, marks that are being
written) differs for a moment only, and is what the second look is for. A row that was created in the last minutes is
nobody's loss yet: its creator may still be asking its owner.

Memory is bounded by SAID_AT_ONCE_MAX facts and READS_IN_FLIGHT_MAX pages of rows; on disk the spill takes about 60
bytes a dispatch of the window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..core.checkpoint import CheckpointCorrupt
from ..core.cluster import ClusterConstants
from ..core.journal_record import JournalCorrupt, decode
from ..core.task import FactKind, RowRef, Stage, StoredTask, at_stage, bucket_end_ms, bucket_of
from ..core.task_id import shard_in
from ..poller.successors import marks_of, moves_of
from ..ports import CheckpointStore, Clock, Journal, TaskStore
from .differences import Difference, Kind, compare, facts_in, kinds_told, without_row
from .spill import Said, Spill

SAID_AT_ONCE_MAX = 500_000
"""Facts of the journal in memory; of a bucket with more, the shards are taken in several groups."""
READS_IN_FLIGHT_MAX = 16
PAGE_ROWS_MAX = 1_000
DIFFERENCES_MAX = 100_000
"""That are named; of more, the first."""
SECOND_LOOK_S = 10.0
"""Marks are written within a second or so, if the store takes them."""
CREATED_MS_MIN = 180_000
"""Rows younger than this may not be acknowledged yet: a create is tried for two minutes at most."""
CLOCK_SKEW_MS = 5_000
"""By which the times of records may be off from those of the journal's index, and from this process's clock."""
PROGRESS_S = 5.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Window:
    """Due times to be compared, and the ranges."""

    from_ms: int
    to_ms: int
    ranges: Sequence[int]


@dataclass(slots=True)
class Report:
    """What came out. `unreadable`: places (lane, offset) of records that can't be decoded."""

    from_ms: int
    to_ms: int
    rows: int = 0
    facts: int = 0
    buckets: int = 0
    unreadable: list[tuple[int, int]] = field(default_factory=list)
    skipped_ranges: list[int] = field(default_factory=list)
    """Their checkpoints can't be read."""
    differences: list[Difference] = field(default_factory=list)
    more: bool = False

    @property
    def clean(self) -> bool:
        """True if nothing is wrong."""
        return not (self.differences or self.more or self.unreadable or self.skipped_ranges)


class Fsck:
    """One comparison. `folder` is for the spill; `journal` is only read."""

    def __init__(
        self,
        journal: Journal,
        store: TaskStore,
        checkpoints: CheckpointStore,
        constants: ClusterConstants,
        clock: Clock,
        folder: Path,
        say: Say,
    ) -> None:
        self._journal, self._store, self._checkpoints = journal, store, checkpoints
        self._constants, self._clock, self._say = constants, clock, say
        self._spill = Spill(folder)
        self._first_open: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._kept_from_ms = 0
        self._said_at = float("-inf")

    async def run(self, window: Window) -> Report:
        """Raises Unavailable."""
        report = Report(window.from_ms, window.to_ms)
        await self._read_checkpoints(window, report)
        birth_ms = await self._journal_from_ms()
        if birth_ms > window.from_ms:
            self._say(f"the journal is kept from {birth_ms} on: rows due before are not compared")
        report.from_ms = max(window.from_ms, birth_ms)
        self._kept_from_ms = report.from_ms + CLOCK_SKEW_MS
        await self._read_journal(report)
        taken_at = self._clock.monotonic()
        await self._compare_all(report)
        await self._clock.sleep(max(0.0, taken_at + SECOND_LOOK_S - self._clock.monotonic()))
        report.differences = await self._second_look(report.differences)
        return report

    # ---- what there is

    async def _read_checkpoints(self, window: Window, report: Report) -> None:
        for range_id in window.ranges:
            try:
                checkpoint = await self._checkpoints.load(range_id)
            except CheckpointCorrupt:
                checkpoint = None
            if checkpoint is None:
                report.skipped_ranges.append(range_id)
            else:
                self._first_open[range_id] = checkpoint.first_open_bucket

    async def _journal_from_ms(self) -> int:
        """From when on every record of every lane is there: behind the youngest trimming, and the journal's birth."""
        trimmed_ms, births = 0, []
        for lane in range(self._constants.lanes):
            first = await self._first_record_ms(lane)
            if first is not None:
                births.append(first)
            if await self._journal.start(lane) > 0:
                trimmed_ms = max(trimmed_ms, first if first is not None else self._clock.now_ms())
        return max(trimmed_ms, min(births, default=self._clock.now_ms()))

    async def _first_record_ms(self, lane: int) -> int | None:
        async for entries in self._journal.read(lane, await self._journal.start(lane)):
            for entry in entries:
                try:
                    return decode(entry.value).at_ms
                except JournalCorrupt:
                    continue
        return None

    # ---- the journal

    async def _read_journal(self, report: Report) -> None:
        for lane in range(self._constants.lanes):
            self._ends[lane] = await self._journal.end(lane)
            start = await self._journal.find(lane, report.from_ms - CLOCK_SKEW_MS)
            if start is not None:
                await self._read_lane(lane, start, report)

    async def _read_lane(self, lane: int, start: int, report: Report) -> None:
        async for entries in self._journal.read(lane, start):
            for entry in entries:
                self._ends[lane] = max(self._ends[lane], entry.offset + 1)
                for range_id, said in self._said(lane, entry.offset, entry.value, report):
                    if self._concerns(range_id, said.ref, report):
                        self._spill.add(said)
                        report.facts += 1
            self._progress(f"journal: lane {lane}, {report.facts} facts of the window so far")

    def _said(self, lane: int, offset: int, value: bytes, report: Report | None) -> list[tuple[int, Said]]:
        try:
            record = decode(value)
        except JournalCorrupt:
            if report is not None:
                report.unreadable.append((lane, offset))
            return []
        found = []
        for section in record.sections:
            bodies = {moved.ref: moved.body for moved in moves_of(section) if not moved.spawned}
            for mark in marks_of(record, section):
                said = Said(mark.ref, mark.kind, mark.at_ms, mark.reason, bodies.get(mark.ref, b""))
                found.append((section.range_id, said))
        return found

    def _concerns(self, range_id: int, ref: bytes, report: Report) -> bool:
        due_ms = RowRef.unpack(ref).due_ms
        closed = bucket_of(due_ms) < self._first_open.get(range_id, 0)
        return closed and report.from_ms <= due_ms < report.to_ms

    # ---- the rows

    async def _compare_all(self, report: Report) -> None:
        last = min(bucket_of(report.to_ms - 1), max(self._first_open.values(), default=0) - 1)
        buckets = range(bucket_of(report.from_ms), last + 1)
        for bucket in buckets:
            report.buckets += 1
            ranges = [range_id for range_id, first in self._first_open.items() if bucket < first]
            shards = [shard for range_id in ranges for shard in self._constants.shards_of(range_id)]
            groups = max(1, min(len(shards), -(-self._spill.counts[bucket] // SAID_AT_ONCE_MAX)))
            for group in range(groups):
                await self._compare_shards(bucket, shards[group::groups], report)
            self._progress(f"rows: bucket {report.buckets} of {len(buckets)}, {report.rows} rows so far")

    async def _compare_shards(self, bucket: int, shards: list[int], report: Report) -> None:
        said = self._spill.read(bucket, set(shards))
        gate = asyncio.Semaphore(READS_IN_FLIGHT_MAX)

        async def compare_shard(shard: int) -> None:
            async with gate:
                await self._compare_shard(bucket, shard, said, report)

        await asyncio.gather(*(compare_shard(shard) for shard in shards))
        for ref, left in said.items():
            self._note(without_row(self._range_of(ref), ref, left), report)

    async def _compare_shard(self, bucket: int, shard: int, said: dict[bytes, list[Said]], report: Report) -> None:
        after, complete = None, False
        range_id = self._constants.range_of(shard)
        until_ms = min(bucket_end_ms(bucket), report.to_ms)
        while not complete:
            page = await self._store.read_partition(bucket, shard, after, until_ms, PAGE_ROWS_MAX)
            for task in page.tasks:
                if task.row.due_ms >= report.from_ms:
                    report.rows += 1
                    stages = [said.pop(at_stage(task.row.ref, stage), []) for stage in Stage]
                    await self._compare(range_id, task, [one for stage in stages for one in stage], report)
            complete, after = page.complete, page.tasks[-1].row.ref if page.tasks else after

    async def _compare(self, range_id: int, task: StoredTask, said: list[Said], report: Report) -> None:
        for difference in compare(range_id, task.row.ref, task.facts, said, self._kept_from_ms):
            self._note(difference, report)
        moved = task.facts.moved_to_ms
        if moved is not None and not await self._has_successor(task.row.ref, moved):
            self._note(_without_successor(range_id, task.row.ref, moved, said), report)

    async def _lacks_successor(self, ref: RowRef) -> bool:
        stored = await self._store.get(ref.due_ms, ref.namespace_id, ref.task_id)
        moved = stored.facts.moved_to_ms if stored is not None else None
        return moved is not None and not await self._has_successor(ref.pack(), moved)

    async def _has_successor(self, ref: bytes, new_due_ms: int) -> bool:
        _, namespace_id, task_id, _, _ = RowRef.unpack(ref)
        return await self._store.get(new_due_ms, namespace_id, task_id) is not None

    def _note(self, difference: Difference, report: Report) -> None:
        if len(report.differences) < DIFFERENCES_MAX:
            report.differences.append(difference)
        else:
            report.more = True

    def _range_of(self, ref: bytes) -> int:
        return self._constants.range_of(shard_in(ref[24:40]))

    # ---- again

    async def _second_look(self, found: list[Difference]) -> list[Difference]:
        if not found:
            return []
        self._say(f"{len(found)} differences are looked at once more")
        refs = {difference.ref for difference in found}
        later: set[bytes] = set()
        for lane, end in self._ends.items():
            async for entries in self._journal.read(lane, end):
                for entry in entries:
                    said = self._said(lane, entry.offset, entry.value, None)
                    later |= {at_stage(one.ref, Stage.DISPATCH) for _, one in said} & refs
        return [difference for difference in found if await self._stands(difference, later)]

    async def _stands(self, difference: Difference, later: set[bytes]) -> bool:
        ref = RowRef.unpack(difference.ref)
        if difference.kind is Kind.NOT_JOURNALED:
            return difference.ref not in later
        if difference.kind is Kind.NO_SUCCESSOR:
            return await self._lacks_successor(ref)
        if difference.kind in (Kind.TWICE, Kind.CONTRADICTION):
            return True
        stored = await self._store.get(ref.due_ms, ref.namespace_id, ref.task_id)
        if difference.kind is Kind.NO_ROW:
            return stored is None
        if stored is None:
            return False
        if difference.kind is Kind.UNMARKED:
            return not kinds_told(difference.said) <= set(facts_in(stored.facts))
        if stored.facts.settled:
            return False
        young = stored.row.body.created_ms > self._clock.now_ms() - CREATED_MS_MIN
        return not (young or difference.ref in later)

    def _progress(self, line: str) -> None:
        now = self._clock.monotonic()
        if now - self._said_at >= PROGRESS_S:
            self._said_at = now
            self._say(line)


def _without_successor(range_id: int, ref: bytes, new_due_ms: int, said: list[Said]) -> Difference:
    """The record of exactly this move has what the row was; a home row may name a later place of the task than its
    own record does, and without a record it is not known whether the body was changed.
    """
    moves = tuple(one for one in said if one.kind in (FactKind.MOVED, FactKind.RETRIED) and one.at_ms == new_due_ms)
    return Difference(Kind.NO_SUCCESSOR, ref, range_id, f"moved to {new_due_ms}", moves)
