"""What is due, in the order in which it shall go: by priority and due time, with ageing."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

from .task import TaskRow

Owner = TypeVar("Owner")
BACKLOG_TURNS = 4
"""Of so many rows one is taken from a backlog."""

Queue = tuple[bytes, str]
"""A namespace and the name of a queue in it."""


class ReadyQueue(Generic[Owner]):
    """Orders rows by due time plus `ageing_ms` for each step of priority below HIGH.

    So among rows due at about the same time the higher priority goes first, and a row of lower priority that has
    waited `ageing_ms` longer is not passed any more: nothing starves. A row may be there for two owners at once, a
    former and a present one.

    A backlog is ordered likewise, and apart: all of it is older than the present, so it would keep that waiting until
    it is through. Of BACKLOG_TURNS rows one is a backlog's, and all of them if nothing else is there. Each queue has a
    backlog of its own, and they take turns: else the one with the most, or the oldest, would keep all others waiting.
    """

    __slots__ = ("_ageing_ms", "_backlog_rows", "_backlogs", "_entries", "_pushes", "_turn")

    def __init__(self, ageing_ms: int) -> None:
        self._ageing_ms = ageing_ms
        self._entries: list[tuple[int, bytes, int, TaskRow, Owner]] = []
        self._backlogs: dict[Queue, list[tuple[int, bytes, int, TaskRow, Owner]]] = {}
        """Those that hold something, in the order of their turns."""
        self._backlog_rows = 0
        self._pushes = count()
        self._turn = 0

    def __len__(self) -> int:
        return len(self._entries) + self._backlog_rows

    def push(self, row: TaskRow, owner: Owner, backlog: bool = False) -> None:
        """Adds a due row on behalf of `owner`."""
        key = row.due_ms + self._ageing_ms * row.body.priority
        entries = self._entries
        if backlog:
            entries = self._backlogs.setdefault((row.namespace_id, row.body.queue), [])
            self._backlog_rows += 1
        heappush(entries, (key, row.ref, next(self._pushes), row, owner))

    def pop(self) -> tuple[TaskRow, Owner]:
        """Takes out the first. Raises IndexError when empty."""
        self._turn = (self._turn + 1) % BACKLOG_TURNS
        if self._backlogs and (not self._entries or self._turn == 0):
            return self._pop_backlog()
        _, _, _, row, owner = heappop(self._entries)
        return row, owner

    def _pop_backlog(self) -> tuple[TaskRow, Owner]:
        queue = next(iter(self._backlogs))
        entries = self._backlogs.pop(queue)
        _, _, _, row, owner = heappop(entries)
        self._backlog_rows -= 1
        if entries:
            self._backlogs[queue] = entries  # behind the others
        return row, owner
