"""What waits for its due time, earliest first."""

from __future__ import annotations

from heapq import heappop, heappush

from .task import TaskRow


class DueHeap:
    """A binary heap of rows by due time. References sort by due time and are unique, so they are the heap's keys."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[tuple[bytes, TaskRow]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, row: TaskRow) -> None:
        """Adds a row. The caller sees to it that none is there twice."""
        heappush(self._entries, (row.ref, row))

    @property
    def next_due_ms(self) -> int | None:
        """When the earliest row is due; None: empty."""
        return self._entries[0][1].due_ms if self._entries else None

    def pop_due(self, now_ms: int, limit: int) -> list[TaskRow]:
        """Takes out what is due at `now_ms`, earliest first, at most `limit` rows."""
        entries = self._entries
        due: list[TaskRow] = []
        while entries and len(due) < limit and entries[0][1].due_ms <= now_ms:
            due.append(heappop(entries)[1])
        return due
