"""How far one partition has been read."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core.task import RowRef, TaskRow, bucket_end_ms, bucket_start_ms

_MAX_ID = b"\xff" * 16


def before(due_ms: int) -> bytes | None:
    """A reference behind which every row due at or after `due_ms` lies."""
    return RowRef(due_ms - 1, _MAX_ID, _MAX_ID, 0xFFFFFFFF, 0xFFFFFFFF).pack() if due_ms > 0 else None


@dataclass(slots=True)
class Cursor:
    """Rows due at or before `edge_ms` are covered: they were read, or their hints are taken as they are.

    The edge includes the due time of the last row read, although further rows of that millisecond may still come:
    a hinted one could sort before the row where reading goes on. Rows that come twice are known the second time.
    """

    bucket: int
    shard: int
    after: bytes | None
    edge_ms: int
    reading: bool = False
    complete: bool = False
    partial: bool = False
    """The last page ended within the millisecond of the edge: at the edge there may be unread rows and facts."""
    retry_at: float = 0.0
    """After a read that failed: when it may be read again (monotonic seconds); 0: the last one did not fail."""
    held: list[TaskRow] = field(default_factory=list)
    """Hints that came while a read was in flight, which may or may not have seen them."""

    @classmethod
    def at(cls, bucket: int, shard: int, from_ms: int) -> Cursor:
        """Nothing read yet; rows due before `from_ms` are done with."""
        start = max(from_ms, bucket_start_ms(bucket))
        return cls(bucket, shard, before(start), start - 1, complete=start >= bucket_end_ms(bucket))

    def advance(self, last: TaskRow | None, until_ms: int, reached: bool) -> None:
        """A page was read up to `last`; `reached`: there is nothing more before `until_ms`."""
        if last is not None:
            self.after, self.edge_ms = last.ref, max(self.edge_ms, last.due_ms)
        self.partial = not reached
        if reached:
            self.edge_ms = max(self.edge_ms, until_ms - 1)
            self.complete = until_ms >= bucket_end_ms(self.bucket)

    def rewind(self, due_ms: int) -> None:
        """Rows due at or after `due_ms` are to be read again."""
        self.after, self.edge_ms = before(due_ms), due_ms - 1
        self.complete = self.partial = False
