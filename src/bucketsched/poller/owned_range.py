"""What the owner of a range knows. Synchronous: nothing can come between two lines of it.

Every row that the range has met has a status under its reference:

    QUEUED --dispatch, cancel, fail, move committed--> settled, unmarked --mark stored--> settled, marked --> forgotten

A settled row is forgotten only when its mark is stored, no read that began before that is in flight (it may bring the
row without its mark), and nobody can bring it back from memory: hints are trusted for rows due at or after
`remembered_from_ms` only, and behind the edge of a cursor not at all.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from enum import Enum
from heapq import heappop, heappush

from ..core import task_id as ids
from ..core.due_heap import DueHeap
from ..core.task import FactKind, Facts, RowRef, StoredTask, TaskRow, bucket_end_ms, bucket_of, bucket_start_ms
from ..ports import HintAnswer, Lease, Page
from .cursor import Cursor
from .limits import REMEMBER_MS

QUEUED = 0
MARKED = 16
"""Added to a FactKind once its mark is stored."""
ROW_OVERHEAD_BYTES = 600
"""What a row takes in memory beside its payload, about."""


class Phase(Enum):
    """RECOVERING answers nothing; ACTIVE dispatches; STOPPING finishes; GONE is somebody else's."""

    RECOVERING = "recovering"
    ACTIVE = "active"
    STOPPING = "stopping"
    GONE = "gone"
    ALARMED = "alarmed"
    """Its journal doesn't match its checkpoint: it stands still until somebody looks."""


def kind_of(facts: Facts) -> FactKind:
    """The fact that settled a row."""
    if facts.moved_to_ms is not None:
        return FactKind.MOVED
    if facts.dispatched_ms is not None:
        return FactKind.DISPATCHED
    if facts.cancelled_ms is not None:
        return FactKind.CANCELLED
    assert facts.failed_ms is not None
    return FactKind.FAILED


def ref_due_ms(ref: bytes) -> int:
    """The due time in a packed reference."""
    return int.from_bytes(ref[:8], "big")


class OwnedRange:
    """One range of this lane under one epoch."""

    def __init__(self, lease: Lease, shards: Iterable[int], heap_rows_max: int) -> None:
        self.lease = lease
        self.range_id = lease.range_id
        self.epoch = lease.epoch
        self.shards = list(shards)
        self.phase = Phase.RECOVERING
        self.heap = DueHeap()
        self.cursors: dict[tuple[int, int], Cursor] = {}
        self.first_open_bucket = 0
        self.next_bucket = 0
        self.remembered_from_ms = 0
        self.sequence = 0
        self.resident_rows = 0
        self.resident_bytes = 0
        self.reading_rows = 0
        self.queued: Counter[int] = Counter()
        self._rows_max = heap_rows_max
        self._known: dict[bytes, int] = {}
        self._undone: list[bytes] = []
        self._reads: set[int] = set()
        self._read_number = 0
        self._fading: deque[tuple[int, bytes]] = deque()
        self._remembered: list[tuple[bytes, int]] = []
        self._low_due: dict[int, int] = {}

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
        """Begins at what a checkpoint says; `now_ms` is late enough that nobody settled a row due after it unmarked."""
        self.first_open_bucket = self.next_bucket = first_open_bucket
        self.remembered_from_ms = now_ms
        self._low_due = dict(low_due_ms)

    def extend(self, until_ms: int) -> None:
        """Opens cursors for every bucket that begins at or before `until_ms`."""
        while bucket_start_ms(self.next_bucket) <= until_ms:
            low = self._low_due.pop(self.next_bucket, 0)
            for shard in self.shards:
                self.cursors[self.next_bucket, shard] = Cursor.at(self.next_bucket, shard, low)
            self.next_bucket += 1

    def unread(self) -> Iterator[Cursor]:
        """Cursors that have something left to read and are not being read."""
        return (c for c in self.cursors.values() if not c.complete and not c.reading)

    def covered(self, due_ms: int, shard: int) -> bool:
        """True if a row at this place has been read if it was stored, so that only its hint can bring it in."""
        cursor = self.cursors.get((bucket_of(due_ms), shard))
        return cursor is not None and due_ms <= cursor.edge_ms

    def revisit(self, places: Iterable[RowRef]) -> None:
        """Rows at these places were missed, and are to be read. Where a read is in flight the next scan says it again.

        What is known of the rows around them stays known, so that nothing comes twice.
        """
        earliest: dict[tuple[int, int], int] = {}
        for place in places:
            key = bucket_of(place.due_ms), ids.shard_in(place.task_id)
            earliest[key] = min(place.due_ms, earliest.get(key, place.due_ms))
        for key, due_ms in earliest.items():
            cursor = self.cursors.get(key)
            if cursor is not None and not cursor.reading:
                cursor.rewind(due_ms)

    def absorb(self, cursor: Cursor, page: Page, until_ms: int) -> int:
        """Takes a page in; how many rows were new."""
        new = sum(self.admit(task) for task in page.tasks)
        cursor.advance(page.tasks[-1].row if page.tasks else None, until_ms, page.complete)
        held, cursor.held = cursor.held, []
        cursor.reading = False
        for row in held:
            self.hint(row)
        return new

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
        self._queue(row)
        return True

    def _queue(self, row: TaskRow) -> None:
        self._known[row.ref] = QUEUED
        heappush(self._undone, row.ref)
        self.queued[row.bucket] += 1
        self.heap.push(row)
        self.resident_rows += 1
        self.resident_bytes += len(row.body.payload) + ROW_OVERHEAD_BYTES

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
        if row.bucket < self.first_open_bucket or row.due_ms < self.remembered_from_ms:
            return None
        cursor = self.cursors.get((row.bucket, ids.shard_in(row.task_id)))
        if cursor is None:
            return HintAnswer.TAKEN  # beyond the loaded buckets: it will be read
        if cursor.reading:
            cursor.held.append(row)
        elif cursor.partial and row.due_ms == cursor.edge_ms:
            return None
        elif row.due_ms <= cursor.edge_ms:
            self._take_or_rewind(row, cursor)
        return HintAnswer.TAKEN

    def _take_or_rewind(self, row: TaskRow, cursor: Cursor) -> None:
        if 2 * self.resident_rows < 3 * self._rows_max:
            self._queue(row)
        else:
            cursor.rewind(row.due_ms)  # memory is full: the store keeps it, and the loader comes back for it

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

    def replayed(self, ref: bytes, kind: FactKind) -> None:
        """A predecessor's record says so, and its mark is stored."""
        self._known[ref] = kind + MARKED
        heappush(self._remembered, (ref, 0))

    def marked(self, ref: bytes) -> None:
        """The mark of a settled row is stored."""
        status = self._known.get(ref)
        if status is None or status == QUEUED or status >= MARKED:
            return
        self._known[ref] = status + MARKED
        self._remember(ref)

    def _remember(self, ref: bytes) -> None:
        """Far rows fade as soon as no read is in flight, near ones a while after they were due."""
        due = ref_due_ms(ref)
        if self.covered(due, ids.shard_in(ref[24:40])):
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

    def low_due_ms(self, now_ms: int) -> int:
        """Everything due before it is journaled; it trails the present, so that late rows are found again."""
        while self._undone and self._known.get(self._undone[0]) != QUEUED:
            heappop(self._undone)
        low = now_ms - REMEMBER_MS
        if self._undone:
            low = min(low, ref_due_ms(self._undone[0]))
        edges = (c.edge_ms + 1 for c in self.cursors.values() if not c.complete)
        return min(low, min(edges, default=low))

    def open_low_due(self, now_ms: int) -> dict[int, int]:
        """`low_due_ms` per open bucket, as a checkpoint keeps it; a bucket that is not begun is left out."""
        low = self.low_due_ms(now_ms)
        buckets = range(self.first_open_bucket, self.next_bucket)
        done = {b: min(low, bucket_end_ms(b)) for b in buckets if low > bucket_start_ms(b)}
        return done | {b: due for b, due in self._low_due.items() if b not in done}

    def close(self, bucket: int) -> None:
        """The bucket's closing is committed."""
        assert bucket == self.first_open_bucket, (bucket, self.first_open_bucket)
        assert not self.queued[bucket], bucket
        del self.queued[bucket]
        for shard in self.shards:
            self.cursors.pop((bucket, shard), None)
        self.first_open_bucket += 1
        self.next_bucket = max(self.next_bucket, self.first_open_bucket)
