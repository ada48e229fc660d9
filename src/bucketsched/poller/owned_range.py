"""What the owner of a range knows. Synchronous: nothing can come between two lines of it.

Every row that the range has met has a status under its reference:

    QUEUED --dispatch, cancel, fail, move committed--> settled, unmarked --mark stored--> settled, marked --> forgotten

A settled row is forgotten only when its mark is stored, no read that began before that is in flight (it may bring the
row without its mark), and nobody can bring it back from memory: hints are trusted for rows due at or after
`remembered_from_ms` only, and behind the edge of a cursor not at all.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from enum import Enum
from heapq import heappop, heappush

from ..core import task_id as ids
from ..core.due_heap import DueHeap
from ..core.task import (
    FactKind,
    Facts,
    Stage,
    StoredTask,
    TaskRow,
    bucket_end_ms,
    bucket_of,
    bucket_start_ms,
    stage_of,
)
from ..ports import HintAnswer, Lease, Page
from .cursor import Cursor
from .limits import LIKELY_LATE_MS, RECENT_MS, REMEMBER_MS, REOPEN_MS
from .open_buckets import OpenBuckets

QUEUED = 0
MARKED = 16
"""Added to a FactKind once its mark is stored."""
ROW_OVERHEAD_BYTES = 600
"""What a row takes in memory beside its payload, about."""
HELD_HINTS_MAX = 10_000
"""Hints of one range that wait for the end of a read; more are asked to come again."""


class Phase(Enum):
    """RECOVERING answers nothing; ACTIVE dispatches; STOPPING finishes; GONE is somebody else's."""

    PRELOADING = "preloading"
    """Read ahead of its lease, while somebody else still owns it."""
    RECOVERING = "recovering"
    ACTIVE = "active"
    STOPPING = "stopping"
    GONE = "gone"
    ALARMED = "alarmed"
    """Its journal doesn't match its checkpoint: it stands still until somebody looks."""


def kind_of(facts: Facts) -> FactKind:
    """The last fact about a settled row."""
    if facts.moved_to_ms is not None:
        return FactKind.MOVED
    last = facts.last
    assert last is not None, facts
    return last


def ref_due_ms(ref: bytes) -> int:
    """The due time in a packed reference."""
    return int.from_bytes(ref[:8], "big")


def _most_likely_done(low_due_ms: dict[int, int], until_ms: int) -> dict[int, int]:
    """The same, with everything due from the last of them until then taken as done."""
    last = bucket_of(max(low_due_ms.values()))
    return low_due_ms | {b: max(low_due_ms.get(b, 0), until_ms) for b in range(last, bucket_of(until_ms) + 1)}


class OwnedRange:
    """One range of this lane under one epoch."""

    def __init__(
        self,
        lease: Lease,
        shards: Iterable[int],
        heap_rows_max: int,
        crowded: Callable[[], bool] = lambda: False,
        expect: Callable[[bytes, str], None] = lambda namespace_id, queue: None,
    ) -> None:
        """`crowded`: True while the lane has no memory for rows that the store keeps anyway. `expect` is called with
        the namespace id and the queue of every row that is loaded.
        """
        self.lease = lease
        self.range_id = lease.range_id
        self.epoch = lease.epoch
        self.shards = list(shards)
        self.phase = Phase.RECOVERING
        self.heap = DueHeap()
        self.buckets = OpenBuckets(self.shards)
        self.closing: int | None = None
        """The bucket whose closing is under way: nothing is admitted to it any more."""
        self.scanned_ms = 0
        """When the last scan of the present began that succeeded."""
        self.remembered_from_ms = 0
        self.served_from_ms = 0
        """Since when this lane serves it."""
        self.sequence = 0
        self.resident_rows = 0
        self.resident_bytes = 0
        self.reading_rows = 0
        self.queued: Counter[int] = Counter()
        self._rows_max, self._crowded, self._expect = heap_rows_max, crowded, expect
        self._held = 0
        self._arriving: dict[int, dict[bytes, TaskRow]] = {}
        """By bucket that was not begun then: rows that moves have made and that may not be stored yet."""
        self._known: dict[bytes, int] = {}
        self._undone: dict[int, list[bytes]] = {}
        self._watchers: dict[bytes, list[Callable[[], None]]] = {}
        self._reads: set[int] = set()
        self._read_number = 0
        self._fading: deque[tuple[int, bytes]] = deque()
        self._remembered: list[tuple[bytes, int]] = []

    @property
    def first_open_bucket(self) -> int:
        """Every bucket before it is closed."""
        return self.buckets.first

    def begun(self, bucket: int) -> bool:
        """True if its rows are being read, or were."""
        return self.buckets.read_up_to_ms(bucket) is not None

    @property
    def opened(self) -> bool:
        """True if it is known from where its rows are to be read: some may be here."""
        return self.served_from_ms > 0

    def is_open(self, bucket: int) -> bool:
        """True if rows may be admitted to the bucket."""
        return bucket >= self.buckets.first and bucket != self.closing

    # ---- reads

    def begin_read(self) -> int:
        """A read of this range's rows begins. While it is in flight nothing is forgotten that it may bring."""
        self._read_number += 1
        self._reads.add(self._read_number)
        return self._read_number

    def end_read(self, number: int) -> None:
        """Its rows are taken in, or it failed."""
        self._reads.discard(number)

    # ---- loading

    def open(self, first_open_bucket: int, low_due_ms: dict[int, int], now_ms: int) -> None:
        """Begins at what a checkpoint says; nobody has settled a row unmarked that is due after `now_ms`.

        What its owner has most likely done is not loaded, but left to the next scan, which no checkpoint passes.
        """
        assert self.phase in (Phase.RECOVERING, Phase.PRELOADING), self.phase
        self.remembered_from_ms = self.scanned_ms = self.served_from_ms = now_ms
        written_ms = max(low_due_ms.values(), default=0) + REMEMBER_MS
        if 0 <= now_ms - written_ms <= RECENT_MS:
            self.scanned_ms = written_ms
            low_due_ms = _most_likely_done(low_due_ms, written_ms - LIKELY_LATE_MS)
        self.buckets.begin_at(first_open_bucket, low_due_ms)

    def adopt(self, lease: Lease) -> None:
        """The lease is here; whether what was read before it may be kept, the checkpoint will say."""
        assert self.phase is Phase.PRELOADING, self.phase
        assert lease.range_id == self.range_id
        assert lease.epoch > self.epoch, (lease.epoch, self.epoch)
        self.lease, self.epoch, self.phase = lease, lease.epoch, Phase.RECOVERING

    def resume(self, first_open_bucket: int, now_ms: int) -> None:
        """What was read before this lane served the range is kept. `now_ms`: as for `open`.

        `scanned_ms` stays what it was at the beginning of that reading: what was created since is yet to be found, and
        no checkpoint may pass it. In a bucket that was closed meanwhile everything is settled but what came late to it,
        and that is admitted by nobody but its creator's question.
        """
        assert self.phase is Phase.RECOVERING, self.phase
        while self.buckets.first < first_open_bucket:
            for ref in self._undone.pop(self.buckets.first, ()):
                if self._known.get(ref) == QUEUED:
                    del self._known[ref]
            self.queued.pop(self.buckets.first, None)
            self.buckets.close_first()
        self.remembered_from_ms = self.served_from_ms = now_ms

    def reopen(self, now_ms: int) -> bool:
        """Opens buckets again that were closed while the clock was ahead; True if there are any.

        What is settled in them has its fact stored, so reading them once more brings nothing twice.
        """
        if self.closing is not None or bucket_of(now_ms) >= self.buckets.first:
            return False
        self.buckets.reopen(bucket_of(max(0, now_ms - REOPEN_MS)))
        return True

    def covered(self, due_ms: int, shard: int) -> bool:
        """True if a row at this place has been read if it was stored, so that only its hint can bring it in."""
        return self.buckets.covered(due_ms, shard)

    def absorb(self, cursor: Cursor, page: Page, until_ms: int) -> int:
        """Takes a page in; how many rows were new."""
        new = sum(self.admit(task) for task in page.tasks)
        cursor.advance(page.tasks[-1].row if page.tasks else None, until_ms, page.complete)
        self.end_page(cursor)
        return new

    def end_page(self, cursor: Cursor) -> None:
        """The read of a page has ended, well or not: now it can be said what of the hints that came meanwhile.

        They were answered, so each of them is known now, or will be read.
        """
        held, cursor.held = cursor.held, []
        self._held -= len(held)
        cursor.reading = False
        self.buckets.finish(cursor.bucket)
        for row in held:
            if self.hint(row) is None:
                self.buckets.rewind(row.due_ms, cursor.shard)

    def admit(self, task: StoredTask) -> bool:
        """Takes in a row that was read. True if it is now queued and was not known."""
        row = task.row
        if row.ref in self._known:
            return False
        if task.facts.settled:
            if row.due_ms >= self.remembered_from_ms:
                self._known[row.ref] = kind_of(task.facts) + MARKED
                heappush(self._remembered, (row.ref, 0))
            return False
        if not self.is_open(row.bucket):
            return False  # it came after the last read: its creator has to ask, and then it moves
        self._queue(row)
        return True

    def _queue(self, row: TaskRow) -> None:
        self._known[row.ref] = QUEUED
        self._expect(row.namespace_id, row.body.queue)
        heappush(self._undone.setdefault(row.bucket, []), row.ref)
        self.queued[row.bucket] += 1
        self.heap.push(row)
        self.resident_rows += 1
        self.resident_bytes += len(row.body.payload) + ROW_OVERHEAD_BYTES

    def move_in(self, row: TaskRow) -> None:
        """A committed record has made this row, and the store may not have it yet.

        A bucket that is not begun will be read after it is stored, which `arrived` sees to.
        """
        assert self.is_open(row.bucket), row
        if row.ref in self._known:
            return
        if not self.begun(row.bucket):
            self._arriving.setdefault(row.bucket, {})[row.ref] = row
        else:
            self._queue(row)

    def arrived(self, row: TaskRow) -> None:
        """It is stored: a read that began before may have missed it."""
        arriving = self._arriving.get(row.bucket, {})
        if arriving.pop(row.ref, None) is None:
            return
        if not arriving:
            del self._arriving[row.bucket]
        cursor = self.buckets.cursor(row.bucket, ids.shard_in(row.task_id))
        if cursor is not None and cursor.reading:
            self._held += 1
            cursor.held.append(row)
        else:
            self.buckets.rewind(row.due_ms, ids.shard_in(row.task_id))

    def awaits(self, bucket: int) -> bool:
        """True if a row of this bucket is yet to be stored."""
        return bucket in self._arriving

    def leave(self, row: TaskRow) -> None:
        """The row is no longer in heap or ready queue."""
        self.resident_rows -= 1
        self.resident_bytes -= len(row.body.payload) + ROW_OVERHEAD_BYTES

    def hint(self, row: TaskRow) -> HintAnswer | None:
        """Takes a hint. None: this memory can't tell; the row's place has to be read first."""
        if self.phase is not Phase.ACTIVE:
            return HintAnswer.NOT_READY
        if row.ref in self._known:
            return HintAnswer.TAKEN
        if not self.is_open(row.bucket) or row.due_ms < self.remembered_from_ms:
            return None
        cursor = self.buckets.cursor(row.bucket, ids.shard_in(row.task_id))
        if cursor is not None and cursor.reading:
            return self._hold(row, cursor)
        if cursor is not None and cursor.partial and row.due_ms == cursor.edge_ms:
            return None
        if self.covered(row.due_ms, ids.shard_in(row.task_id)):
            self._take_or_rewind(row)
        return HintAnswer.TAKEN  # else it will be read

    def _hold(self, row: TaskRow, cursor: Cursor) -> HintAnswer:
        if self._held >= HELD_HINTS_MAX:
            return HintAnswer.NOT_READY
        self._held += 1
        cursor.held.append(row)
        return HintAnswer.TAKEN

    @property
    def spare_rows(self) -> int:
        """How many rows may be taken in besides those that the loader reads."""
        return 0 if self._crowded() else max(0, (3 * self._rows_max + 1) // 2 - self.resident_rows)

    def _take_or_rewind(self, row: TaskRow) -> None:
        if self.spare_rows:
            self._queue(row)
        else:  # memory is full: the store keeps it, and the loader comes back for it
            self.buckets.rewind(row.due_ms, ids.shard_in(row.task_id))

    # ---- settling

    def status(self, ref: bytes) -> int | None:
        """QUEUED, a FactKind (+ MARKED), or None: not known here."""
        return self._known.get(ref)

    def settle(self, ref: bytes, kind: FactKind) -> None:
        """A committed record says what became of the row."""
        was = self._known.get(ref)
        assert was is None or was == QUEUED, (ref, was, kind)
        if was == QUEUED:
            self.queued[bucket_of(ref_due_ms(ref))] -= 1
        self._known[ref] = kind
        for watcher in self._watchers.pop(ref, ()):
            watcher()

    def watch(self, ref: bytes, settled: Callable[[], None]) -> None:
        """Calls `settled` once a committed record says what became of this queued row."""
        self._watchers.setdefault(ref, []).append(settled)

    def unwatch(self, ref: bytes, settled: Callable[[], None]) -> None:
        """Ends `watch`."""
        if settled in (watchers := self._watchers.get(ref, [])):
            watchers.remove(settled)
        if not watchers:
            self._watchers.pop(ref, None)

    def replayed(self, ref: bytes, kind: FactKind) -> None:
        """A predecessor's record says so, and its mark is stored. A read from before the lease may have brought it, or
        may still."""
        if self._known.get(ref) == QUEUED:
            self.queued[bucket_of(ref_due_ms(ref))] -= 1
        self._known[ref] = kind + MARKED
        heappush(self._remembered, (ref, self._read_number))

    def marked(self, ref: bytes) -> None:
        """The mark of a settled row is stored."""
        status = self._known.get(ref)
        if status is None or status == QUEUED or status >= MARKED:
            return
        self._known[ref] = status + MARKED
        self._remember(ref)

    def _remember(self, ref: bytes) -> None:
        """Far rows fade as soon as no read is in flight, near ones a while after they were due.

        What became of an attempt after its dispatch is remembered for at least as long as the dispatch: who knows of
        the dispatch, and of nothing else, may go on without reading the row.
        """
        due = ref_due_ms(ref)
        if stage_of(ref) is not Stage.DISPATCH or self.covered(due, ids.shard_in(ref[24:40])):
            heappush(self._remembered, (ref, self._read_number))
        else:
            self._fading.append((self._read_number, ref))

    def sweep(self, now_ms: int) -> None:
        """Forgets what may be forgotten."""
        oldest_read = min(self._reads, default=self._read_number + 1)
        while self._fading and self._fading[0][0] < oldest_read:
            number, ref = self._fading.popleft()
            if self.covered(ref_due_ms(ref), ids.shard_in(ref[24:40])):
                heappush(self._remembered, (ref, number))
            else:
                self._known.pop(ref, None)
        horizon = now_ms - REMEMBER_MS
        while self._remembered and ref_due_ms(self._remembered[0][0]) < horizon:
            if self._remembered[0][1] >= oldest_read:
                break  # a read that began before its mark may still bring it
            ref, _ = heappop(self._remembered)
            self.remembered_from_ms = max(self.remembered_from_ms, ref_due_ms(ref) + 1)
            self._known.pop(ref, None)

    # ---- progress

    def _low_due_ms(self, bucket: int, limit_ms: int) -> int:
        """Everything of the bucket due before it is journaled."""
        read_ms = self.buckets.read_up_to_ms(bucket)
        assert read_ms is not None
        undone = self._undone.get(bucket, [])
        while undone and self._known.get(undone[0]) != QUEUED:
            heappop(undone)
        if not undone:
            self._undone.pop(bucket, None)
        arriving = min((row.due_ms for row in self._arriving.get(bucket, {}).values()), default=read_ms)
        return min(read_ms, limit_ms, arriving, ref_due_ms(undone[0]) if undone else read_ms)

    def open_low_due(self, now_ms: int) -> dict[int, int]:
        """Per open bucket the due time before which everything is journaled, as a checkpoint keeps it.

        A bucket of which nothing is done is left out. It trails the present, and the last scan that succeeded, so that
        rows whose hints were lost are found again by whoever takes the range.
        """
        limit_ms = min(now_ms, self.scanned_ms) - REMEMBER_MS
        lows = {bucket: self._low_due_ms(bucket, limit_ms) for bucket in self.buckets.all_begun()}
        lows |= {bucket: min(low, limit_ms) for bucket, low in self.buckets.not_begun().items()}
        return {bucket: low for bucket, low in lows.items() if low > bucket_start_ms(bucket)}

    def oldest_undone_ms(self, now_ms: int) -> int:
        """Everything due before it is settled, as far as it is known here; `now_ms` if nothing is late."""
        begun = [self._low_due_ms(bucket, now_ms) for bucket in self.buckets.all_begun()]
        late = [low for bucket, low in zip(self.buckets.all_begun(), begun, strict=True) if low < bucket_end_ms(bucket)]
        return min(now_ms, self.buckets.backlog_from_ms(now_ms), *late)

    def close(self, bucket: int) -> None:
        """The bucket's closing is committed."""
        assert bucket == self.first_open_bucket, (bucket, self.first_open_bucket)
        assert not self.queued[bucket], bucket
        del self.queued[bucket]
        self._undone.pop(bucket, None)
        self.closing = None
        self.buckets.close_first()
