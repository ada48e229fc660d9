"""Writes what the journal says beside the rows: lazily, gathered over records, until it succeeds.

A partition that can't be written to holds up nobody else. Everything that waits is written together; where that fails,
its partitions are under suspicion, and each of them is tried alone until it succeeds. So the progress of a range waits
for its own rows only: the records of the journal that its checkpoint must not pass yet are those with an unwritten
consequence in this range.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from ..core import failpoints
from ..core import task_id as ids
from ..core.errors import Unavailable
from ..core.execution import Attempt
from ..core.task import Mark, TaskRow, bucket_of
from ..core.waiting import first_of
from ..ports import Clock, TaskStore
from .consequence import Consequence
from .limits import LaneLimits
from .owned_range import OwnedRange, ref_due_ms

log = structlog.get_logger(__name__)
RETRY_S_MIN, RETRY_S_MAX = 0.05, 2.0
BATCH_MARKS_MAX = 20_000
SUSPECTS_IN_FLIGHT_MAX = 8
SUSPECT_MARKS_MAX = 500
"""With what a partition is tried that failed: it may fail again."""

Place = tuple[int, bytes]
"""A record of the journal: offset and hash."""
Partition = tuple[int, int]
"""Bucket and shard."""


@dataclass(slots=True, eq=False)
class _Record:
    """One record as far as it concerns one range. `before`: the record before it, which a checkpoint may end at."""

    offset: int
    before: Place
    left: int = 0


class _Entry(NamedTuple):
    consequence: Consequence
    record: _Record


@dataclass(slots=True)
class _Suspect:
    """A partition that failed: when it is tried again."""

    next_at: float
    pause_s: float = RETRY_S_MIN
    busy: bool = False


class Marker:
    """One per lane."""

    def __init__(self, store: TaskStore, clock: Clock, limits: LaneLimits) -> None:
        self._store, self._clock, self._limits = store, clock, limits
        self._waiting: dict[Partition, deque[_Entry]] = {}
        self._suspects: dict[Partition, _Suspect] = {}
        self._records: dict[OwnedRange, deque[_Record]] = {}
        self._waiters: defaultdict[OwnedRange, list[tuple[int, asyncio.Future[None]]]] = defaultdict(list)
        self._retries: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self._last: Place = (-1, b"")
        self._fresh = 0
        self._wake = asyncio.Event()
        self.marks_waiting = 0
        """Facts that are journaled and not stored yet."""

    def restart(self, offset: int, value_hash: bytes) -> None:
        """The lane begins anew behind this record of its own journal."""
        assert not self._records
        self._last = (offset, value_hash)

    def add(self, offset: int, value_hash: bytes, consequences: Sequence[Consequence]) -> None:
        """Takes the consequences of the next committed record."""
        before, self._last = self._last, (offset, value_hash)
        records: dict[OwnedRange, _Record] = {}
        for consequence in consequences:
            record = records.get(consequence.owned)
            if record is None:
                record = records[consequence.owned] = _Record(offset, before)
                self._records.setdefault(consequence.owned, deque()).append(record)
            record.left += 1
            partition = _partition_of(consequence.mark.ref)
            self._waiting.setdefault(partition, deque()).append(_Entry(consequence, record))
        self.marks_waiting += len(consequences)
        self._fresh += len(consequences)
        if self._fresh >= BATCH_MARKS_MAX:
            self.hurry()

    @property
    def full(self) -> bool:
        """True if so much is unwritten that the lane must wait."""
        return self.marks_waiting >= self._limits.marks_waiting_max

    def hurry(self) -> None:
        """Somebody waits: write now."""
        self._wake.set()

    def applied(self, owned: OwnedRange) -> Place:
        """The last record up to which all consequences for this range are stored."""
        records = self._records.get(owned)
        return records[0].before if records else self._last

    async def reached(self, owned: OwnedRange, offset: int) -> None:
        """Returns when the consequences for this range of all records up to `offset` are stored."""
        if self._applied_up_to(owned, offset):
            return
        self.hurry()
        waiter = offset, asyncio.get_running_loop().create_future()
        self._waiters[owned].append(waiter)
        try:
            await waiter[1]
        finally:
            self._waiters[owned].remove(waiter)
            if not self._waiters[owned]:
                del self._waiters[owned]

    def _applied_up_to(self, owned: OwnedRange, offset: int) -> bool:
        records = self._records.get(owned)
        return not records or records[0].offset > offset

    # ---- writing

    async def run(self) -> None:
        """Writes until cancelled. Raises what the store raises that is not just its absence."""
        try:
            while True:
                await first_of(self._wake, self._clock, self._seconds_to_next())
                self._wake.clear()
                if self._error is not None:
                    raise self._error
                self._fresh = 0
                self._try_suspects()
                await self._write_the_others()
        finally:
            for retry in self._retries:
                retry.cancel()

    def _seconds_to_next(self) -> float:
        interval = self._limits.mark_interval_ms / 1000
        retries = [suspect.next_at for suspect in self._suspects.values() if not suspect.busy]
        return max(0.0, min(interval, min(retries, default=float("inf")) - self._clock.monotonic()))

    async def _write_the_others(self) -> None:
        """All that waits now for partitions that are not under suspicion."""
        partitions = [partition for partition in self._waiting if partition not in self._suspects]
        while partitions:
            entries: list[_Entry] = []
            while partitions and len(entries) < BATCH_MARKS_MAX:
                entries += self._taken(partitions[-1], BATCH_MARKS_MAX - len(entries))
                if partitions[-1] not in self._waiting:
                    partitions.pop()
            if not await self._write(entries):
                return

    def _taken(self, partition: Partition, limit: int) -> list[_Entry]:
        waiting = self._waiting[partition]
        taken = [waiting.popleft() for _ in range(min(limit, len(waiting)))]
        if not waiting:
            del self._waiting[partition]
        return taken

    def _try_suspects(self) -> None:
        now = self._clock.monotonic()
        for partition, suspect in self._suspects.items():
            if len(self._retries) >= SUSPECTS_IN_FLIGHT_MAX:
                return
            if not suspect.busy and now >= suspect.next_at:
                suspect.busy = True
                retry = asyncio.create_task(self._try(partition, suspect))
                self._retries.add(retry)
                retry.add_done_callback(self._tried)

    async def _try(self, partition: Partition, suspect: _Suspect) -> None:
        entries = self._taken(partition, SUSPECT_MARKS_MAX)
        if await self._write(entries):
            del self._suspects[partition]
            return
        suspect.next_at, suspect.busy = self._clock.monotonic() + suspect.pause_s, False
        suspect.pause_s = min(2 * suspect.pause_s, RETRY_S_MAX)
        self._suspects[partition] = self._suspects.pop(partition)  # behind all others: each has its turn

    def _tried(self, retry: asyncio.Task[None]) -> None:
        self._retries.discard(retry)
        if not retry.cancelled() and retry.exception() is not None:
            self._error = retry.exception()
        self._wake.set()

    async def _write(self, entries: list[_Entry]) -> bool:
        """False: the store did not take them, or not all; they wait as before, and their partitions are suspects."""
        try:
            await write_consequences(
                self._store,
                [row for entry in entries for row in entry.consequence.made],
                [entry.consequence.attempt for entry in entries if entry.consequence.attempt],
                [entry.consequence.mark for entry in entries],
            )
        except Unavailable as error:
            waiting = self.marks_waiting
            log.warning("marks wait for the store", error=str(error), waiting=waiting, recurring=True)
            self._put_back(entries)
            return False
        failpoints.reach("dispatch.marked")
        self._stored(entries)
        return True

    def _put_back(self, entries: list[_Entry]) -> None:
        next_at = self._clock.monotonic() + RETRY_S_MIN
        for entry in reversed(entries):
            partition = _partition_of(entry.consequence.mark.ref)
            self._waiting.setdefault(partition, deque()).appendleft(entry)
            self._suspects.setdefault(partition, _Suspect(next_at))

    def _stored(self, entries: Iterable[_Entry]) -> None:
        ranges: dict[OwnedRange, None] = {}  # in this order, whatever their addresses are: a simulation replays
        for (mark, owned, made, _), record in entries:
            owned.marked(mark.ref)
            for row in made:
                owned.arrived(row)
            record.left -= 1
            self.marks_waiting -= 1
            if not record.left:
                ranges[owned] = None
        for owned in ranges:
            self._advance(owned)

    def _advance(self, owned: OwnedRange) -> None:
        records = self._records[owned]
        while records and not records[0].left:
            records.popleft()
        if not records:
            del self._records[owned]
        for offset, waiter in self._waiters.get(owned, ()):
            if not waiter.done() and self._applied_up_to(owned, offset):
                waiter.set_result(None)


def _partition_of(ref: bytes) -> Partition:
    return bucket_of(ref_due_ms(ref)), ids.shard_in(ref[24:40])


async def write_consequences(
    store: TaskStore, successors: Sequence[TaskRow], attempts: Sequence[Attempt], marks: Sequence[Mark]
) -> None:
    """Writes successors and entries of the execution log, then marks. Idempotent. Raises Unavailable."""
    if successors:
        for answer in await store.insert(successors):
            if answer is not None:
                raise Unavailable(f"a moved row could not be written: {answer}")
        failpoints.reach("move.row-written")
    if attempts:
        await store.record_attempts(attempts)
    if marks:
        await store.mark(marks)
