"""The buckets of a range from which something may still have to be dispatched, and how far each was read.

The present (what is due about now, up to the horizon) is begun at once. A backlog of older buckets, after an outage, is
begun oldest first and a few at a time: a day without pollers leaves 1,440 buckets a range.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..core.task import bucket_end_ms, bucket_of, bucket_start_ms
from .cursor import Cursor

BACKLOG_BUCKETS_MAX = 4
"""Buckets before the present that are read at once."""


class OpenBuckets:
    """A bucket is not begun, being read (with a cursor for each shard), or read to its end. Buckets close in order."""

    def __init__(self, shards: list[int]) -> None:
        self._shards = shards
        self.first = 0
        self._next_of_backlog = 0
        self._low_due: dict[int, int] = {}
        self._reading: dict[int, dict[int, Cursor]] = {}
        self._read: set[int] = set()

    def begin_at(self, first: int, low_due_ms: dict[int, int]) -> None:
        """What a checkpoint says: everything before `first` is closed; what is done of the others."""
        self.first = self._next_of_backlog = first
        self._low_due = dict(low_due_ms)

    def reopen(self, first: int) -> None:
        """Everything from this bucket on is open again, and is read once more."""
        assert first <= self.first, (first, self.first)
        self.first = self._next_of_backlog = first

    def extend(self, present_ms: int, until_ms: int) -> None:
        """Begins every bucket from that of `present_ms` to that of `until_ms`, and a few of those before."""
        present = max(bucket_of(present_ms), self.first)
        for bucket in range(present, bucket_of(until_ms) + 1):
            self._begin(bucket)
        self._next_of_backlog = max(self._next_of_backlog, self.first)
        behind = sum(bucket < present for bucket in self._reading)
        while self._next_of_backlog < present and behind < BACKLOG_BUCKETS_MAX:
            behind += self._begin(self._next_of_backlog)
            self._next_of_backlog += 1

    def _begin(self, bucket: int) -> bool:
        """True if there is something to read in it now that was not begun before."""
        if bucket in self._reading or bucket in self._read:
            return False
        low = self._low_due.pop(bucket, 0)
        cursors = {shard: Cursor.at(bucket, shard, low) for shard in self._shards}
        self._reading[bucket] = cursors
        self.finish(bucket)
        return bucket in self._reading

    def finish(self, bucket: int) -> None:
        """Notes it if the bucket is read to its end."""
        cursors = self._reading.get(bucket)
        if cursors is not None and all(c.complete and not c.reading for c in cursors.values()):
            del self._reading[bucket]
            self._read.add(bucket)

    def unread(self) -> Iterator[Cursor]:
        """Cursors that have something left to read and are not being read."""
        for cursors in self._reading.values():
            for cursor in cursors.values():
                if not cursor.complete and not cursor.reading:
                    yield cursor

    def is_read(self, bucket: int) -> bool:
        """True if it is read to its end."""
        return bucket in self._read

    def cursor(self, bucket: int, shard: int) -> Cursor | None:
        """The cursor of a bucket that is being read."""
        return self._reading.get(bucket, {}).get(shard)

    def covered(self, due_ms: int, shard: int) -> bool:
        """True if a row at this place has been read if it was stored, so that only its hint can bring it in."""
        bucket = bucket_of(due_ms)
        cursor = self.cursor(bucket, shard)
        return bucket in self._read or (cursor is not None and due_ms <= cursor.edge_ms)

    def rewind(self, due_ms: int, shard: int) -> None:
        """The partition is to be read again from this due time on. Nothing happens where a read is in flight."""
        bucket = bucket_of(due_ms)
        if bucket in self._read:
            self._read.discard(bucket)
            end = bucket_end_ms(bucket)
            self._reading[bucket] = {s: Cursor.at(bucket, s, end) for s in self._shards}
        cursor = self.cursor(bucket, shard)
        if cursor is not None and not cursor.reading and due_ms <= cursor.edge_ms:
            cursor.rewind(due_ms)

    def read_up_to_ms(self, bucket: int) -> int | None:
        """Every row of the bucket due before this was read; None: it is not begun."""
        if bucket in self._read:
            return bucket_end_ms(bucket)
        cursors = self._reading.get(bucket)
        return min(c.edge_ms + 1 for c in cursors.values()) if cursors else None

    def are_read(self, from_ms: int, until_ms: int) -> bool:
        """True if everything due in this window is read, as far as it is in open buckets."""
        window = range(max(bucket_of(from_ms), self.first), bucket_of(until_ms) + 1)
        return all((self.read_up_to_ms(b) or 0) >= min(until_ms, bucket_end_ms(b)) for b in window)

    def all_begun(self) -> list[int]:
        """Every bucket that is begun, in order."""
        return sorted([*self._reading, *self._read])

    def backlog_from_ms(self, now_ms: int) -> int:
        """From when on there are past buckets that are not begun; `now_ms`: there are none."""
        for bucket in range(max(self._next_of_backlog, self.first), bucket_of(now_ms)):
            if bucket not in self._reading and bucket not in self._read:
                return self._low_due.get(bucket, bucket_start_ms(bucket))
        return now_ms

    def not_begun(self) -> dict[int, int]:
        """What the checkpoint said of buckets that are not begun."""
        return self._low_due

    def close_first(self) -> None:
        """The first bucket is closed."""
        self._reading.pop(self.first, None)
        self._read.discard(self.first)
        self._low_due.pop(self.first, None)
        self.first += 1
