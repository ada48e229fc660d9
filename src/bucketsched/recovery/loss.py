"""A range stands still because the journal is not what its checkpoint says. What is left, and how it goes on.

The taker of a range replays the journal from the record that the checkpoint ends with. If that record is not there any
more (the topic was made anew, cut off, or is another cluster's), or one behind it can't be read, nobody knows which
tasks were dispatched since. A row that is settled twice is as bad: no owner does that, somebody else has written there.
Marks are written within a second or so of a dispatch, so it is about few tasks; but whether they may go twice is for a
person to decide.

`accept` lets the range go on:

1. What is left of its partition is read once more from its beginning, and what it says of the range is stored. So
   everything that any record that is left proves is not done again.
2. A checkpoint is written that ends with the last of these records. It has the epoch of the one before and a sequence
   far behind it: the owner's retry, which holds a later epoch, takes it for its predecessor's. What is done up to
   (`low_due`) stays as it was.

The owner sees the new checkpoint, fences the range's predecessors again, replays what came behind, and goes on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from ..core.checkpoint import NO_OFFSET, Checkpoint, CheckpointCorrupt, epoch_of, record_hash, sequence_of
from ..core.cluster import ClusterConstants
from ..core.errors import FailedPrecondition, InvalidArgument
from ..core.execution import Attempt
from ..core.journal_record import JournalCorrupt, JournalRecord, decode
from ..core.task import Mark, bucket_end_ms, bucket_of, bucket_start_ms
from ..poller.marker import write_consequences
from ..poller.successors import Moved, attempts_of, marks_of, moves_of, successors
from ..ports import CheckpointStore, Clock, Journal, JournalEntry, TaskStore

SEQUENCES_SKIPPED = 1_000_000
"""A zombie that still writes checkpoints of the same epoch does not come that far: it writes one every few seconds."""
MARKS_AT_ONCE_MAX = 2_000
"""Facts that are held in memory before they are stored."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """What there is to see of a range. Counts are of this range alone, but `unreadable`, which is of its partition."""

    range_id: int
    problem: str
    order: int
    """Of the stored checkpoint."""
    lane: int
    """In whose partition it ends."""
    first_open_bucket: int
    low_due_ms: dict[int, int]
    replay_from: int
    records: int
    """Transactions left in the partition that say something of the range."""
    facts: int
    """Rows that these settle."""
    unreadable: int
    overdue: int
    """Rows that are due and have no fact. Without facts from what is left, they will be dispatched."""


@dataclass(slots=True)
class Left:
    """What is left of a partition, of one range. `twice`: facts of rows that an earlier record settles already."""

    records: int = 0
    facts: int = 0
    unreadable: int = 0
    twice: int = 0

    @property
    def problem(self) -> str:
        """Why nobody can replay it; "" if it can be."""
        if self.unreadable:
            return f"{self.unreadable} records of the journal behind its checkpoint can't be read"
        return f"{self.twice} rows are settled twice behind its checkpoint" if self.twice else ""


class LossReview:
    """`journal` is only read. `watch_s`: how long a range must write no checkpoint to count as standing still."""

    def __init__(
        self,
        journal: Journal,
        store: TaskStore,
        checkpoints: CheckpointStore,
        constants: ClusterConstants,
        clock: Clock,
        watch_s: float,
    ) -> None:
        self._journal, self._store, self._checkpoints = journal, store, checkpoints
        self._constants, self._clock, self._watch_s = constants, clock, watch_s

    async def examine(self, range_ids: Sequence[int], since_ms: int | None, say: Say) -> list[Finding]:
        """What is wrong with ranges. `since_ms`: from which due time on they are read where no checkpoint can tell.

        Raises InvalidArgument where `since_ms` is missing, FailedPrecondition where nothing is wrong with one of them,
        Unavailable.
        """
        findings = [await self._examine(range_id, since_ms) for range_id in range_ids]
        say(f"watching for {self._watch_s:.0f} s whether they really stand still")
        await self._clock.sleep(self._watch_s)
        for finding in findings:
            await self._check_still(finding)
        return findings

    async def _check_still(self, finding: Finding) -> None:
        """Whoever goes on writing its checkpoints is an owner that has seen no fault. Raises FailedPrecondition."""
        if await self._order(finding.range_id) != finding.order:
            raise FailedPrecondition("range", f"{finding.range_id} has moved on: its owner goes on writing checkpoints")

    async def _examine(self, range_id: int, since_ms: int | None) -> Finding:
        try:
            checkpoint = await self._checkpoints.load(range_id)
        except CheckpointCorrupt as error:
            if since_ms is None:
                raise InvalidArgument("since", f"is needed: {error}, so it is not known what is done") from error
            checkpoint, problem, order = self._unknown(bucket_of(since_ms)), str(error), error.order
        else:
            if checkpoint is None:
                raise FailedPrecondition("range", f"{range_id} has no checkpoint: run `bucketsched admin migrate`")
            problem, order = await self._mismatch(checkpoint), checkpoint.order
        replay_from = await self._journal.start(checkpoint.lane) if problem else max(checkpoint.applied_offset, 0)
        left = await self._what_is_left(range_id, checkpoint.lane, replay_from)
        problem = problem or left.problem
        if not problem:
            raise FailedPrecondition("range", f"{range_id}: its checkpoint matches its journal, nothing is lost")
        first, low = checkpoint.first_open_bucket, dict(checkpoint.low_due_ms)
        overdue = await self._overdue(range_id, first, low)
        return Finding(
            range_id,
            problem,
            order,
            checkpoint.lane,
            first,
            low,
            replay_from,
            left.records,
            left.facts,
            left.unreadable,
            overdue,
        )

    async def _what_is_left(self, range_id: int, lane: int, start: int) -> Left:
        left, settled = Left(), set[bytes]()
        async for _, found in self._records(lane, start):
            if found is None:
                left.unreadable += 1
                continue
            of_range = [section for section in found.sections if section.range_id == range_id]
            left.records += bool(of_range)
            for section in of_range:
                refs = [*section.dispatched, *(other.ref for other in section.others)]
                left.facts += len(refs)
                left.twice += sum(ref in settled for ref in refs)
                settled.update(refs)
        return left

    def _unknown(self, first_open_bucket: int) -> Checkpoint:
        return Checkpoint(0, 0, self._journal.name, 0, NO_OFFSET, b"", first_open_bucket)

    async def _mismatch(self, checkpoint: Checkpoint) -> str:
        """Why the journal is not the checkpoint's; "" if it is."""
        if checkpoint.journal != self._journal.name:
            return f"its checkpoint is for journal {checkpoint.journal}, this is {self._journal.name}"
        if checkpoint.applied_offset == NO_OFFSET:
            return ""
        lane, offset = checkpoint.lane, checkpoint.applied_offset
        start, end = await self._journal.start(lane), await self._journal.end(lane)
        where = f"lane {lane}, which holds offsets {start} to {end}"
        if start <= offset < end:
            async with aclosing(self._entries(lane, offset)) as entries:
                async for entry in entries:
                    if entry.offset == offset and record_hash(entry.value) == checkpoint.applied_hash:
                        return ""
                    break
            return f"record {offset} of {where}, is not the one that its checkpoint ends with"
        return f"its checkpoint ends with record {offset} of {where}"

    async def _order(self, range_id: int) -> int:
        try:
            checkpoint = await self._checkpoints.load(range_id)
        except CheckpointCorrupt as error:
            return error.order
        return checkpoint.order if checkpoint else 0

    async def _overdue(self, range_id: int, first: int, low_due_ms: dict[int, int]) -> int:
        shards, now_ms, count = list(self._constants.shards_of(range_id)), self._clock.now_ms(), 0
        for bucket in range(first, bucket_of(now_ms) + 1):
            from_ms = max(bucket_start_ms(bucket), low_due_ms.get(bucket, 0))
            count += len(
                await self._store.pending_refs(bucket, shards, from_ms, min(bucket_end_ms(bucket), now_ms + 1))
            )
        return count

    # ---- accepting

    async def accept(self, finding: Finding) -> Checkpoint:
        """Stores what is left, then the checkpoint from which the range goes on. May be repeated. Raises Unavailable,
        FailedPrecondition where the checkpoint has changed since the finding."""
        last = await self._store_what_is_left(finding)
        await self._check_still(finding)
        offset, value_hash, closed = last
        first = max(finding.first_open_bucket, closed)
        checkpoint = Checkpoint(
            epoch_of(finding.order),
            sequence_of(finding.order) + SEQUENCES_SKIPPED,
            self._journal.name,
            finding.lane,
            offset,
            value_hash,
            first,
            {bucket: due for bucket, due in finding.low_due_ms.items() if bucket >= first},
        )
        await self._checkpoints.save(finding.range_id, checkpoint)
        return checkpoint

    async def _store_what_is_left(self, finding: Finding) -> tuple[int, bytes, int]:
        """Offset and hash of the last record, and the first bucket that none of them says is closed."""
        offset, value_hash, first_open = NO_OFFSET, b"", 0
        marks: list[Mark] = []
        moved: list[Moved] = []
        attempts: list[Attempt] = []
        async for entry, record in self._records(finding.lane, finding.replay_from):
            offset, value_hash = entry.offset, record_hash(entry.value)
            for section in record.sections if record is not None else ():
                if record is not None and section.range_id == finding.range_id:
                    marks += marks_of(record, section)
                    moved += moves_of(section)
                    attempts += attempts_of(section)
                    first_open = max(first_open, *(bucket + 1 for bucket in section.closed), 0)
            if len(marks) >= MARKS_AT_ONCE_MAX:
                await self._apply(marks, moved, attempts)
                marks, moved, attempts = [], [], []
        await self._apply(marks, moved, attempts)
        return offset, value_hash, first_open

    async def _apply(self, marks: list[Mark], moved: list[Moved], attempts: list[Attempt]) -> None:
        await write_consequences(self._store, await successors(self._store, moved), attempts, marks)

    # ---- reading

    async def _entries(self, lane: int, start: int) -> AsyncGenerator[JournalEntry, None]:
        async for entries in self._journal.read(lane, start):
            for entry in entries:
                yield entry

    async def _records(self, lane: int, start: int) -> AsyncIterator[tuple[JournalEntry, JournalRecord | None]]:
        """What the partition holds now from an offset on; None for what can't be read."""
        async for entry in self._entries(lane, start):
            try:
                yield entry, decode(entry.value)
            except JournalCorrupt:
                yield entry, None
