"""One page of tasks: partitions are read side by side, and their rows merged by (due, task id).

A round reads the first few rows of all partitions of a bucket, or of many buckets while these are nearly empty. What
can be told to be in order is everything up to the frontier: the first end of a page behind which its partition has
more. A round that has a frontier is followed by one of that bucket alone, which reads more of each partition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..core.presence import Partition
from ..core.task import StoredTask, bucket_start_ms
from ..core.task_query import FIRST_ID, LAST_ID, Position, TaskOrder, TaskQuery
from ..ports import Clock, Page, TaskStore
from .presence_walk import PresenceWalk

PARTITIONS_AHEAD_MAX = 64
"""Read in one round, unless a single bucket has more."""
ROWS_PER_PARTITION_MIN = 4
ROWS_PER_ROUND_MAX = 2_048
ROUND_BYTES_MAX = 16 * 1024 * 1024
"""Of payloads; a round is cut by what the rows before were like. Each partition brings at least a row."""
PAGE_BYTES_MAX = 2 * 1024 * 1024
"""Of payloads and metadata: clients of gRPC take messages of 4 MiB. The task that goes beyond it is the last one."""
QUEUE_DAYS_MAX = 4_096
PARTITIONS_MAX = 4_096
ROWS_MAX = 20_000
WORK_S_MAX = 2.0
"""A call ends at the first of these limits that it has reached, with what it found."""

_PLACE_BYTES = 40


class Listing:
    """Fills `tasks` with at most `size` tasks behind `position`, of rows whose due is in the window (from, until)."""

    def __init__(
        self,
        store: TaskStore,
        clock: Clock,
        walk: PresenceWalk,
        query: TaskQuery,
        namespace_id: bytes,
        position: Position,
        window: tuple[int, int],
        size: int,
    ) -> None:
        self._store, self._clock, self._walk, self._query = store, clock, walk, query
        self._namespace_id, self._position, self._window, self._size = namespace_id, position, window, size
        self._descending = query.order is TaskOrder.NEWEST
        self._ahead: deque[Partition] = deque()
        self._dense = False
        self._growth = 1
        self._row_bytes = 1.0
        self._bytes = self._rows = self._partitions = 0
        self._over = False
        self.tasks: list[StoredTask] = []

    async def run(self) -> Position | None:
        """Where to go on; None: there is no more. Raises Unavailable."""
        until = self._clock.monotonic() + WORK_S_MAX
        while not self._over:
            if not self._ahead:
                if self._walk.done:
                    return None
                self._ahead.extend(await self._walk.more())
            if self._ahead:
                await self._round()
            else:
                self._position = Position(bucket_start_ms(self._walk.bucket), FIRST_ID)
            if self._is_enough() or self._clock.monotonic() >= until:  # not before the position has moved
                break
        return None if self._over or (not self._ahead and self._walk.done) else self._position

    def _is_enough(self) -> bool:
        return (
            len(self.tasks) >= self._size
            or self._bytes >= PAGE_BYTES_MAX
            or self._rows >= ROWS_MAX
            or self._partitions >= PARTITIONS_MAX
            or self._walk.queue_days >= QUEUE_DAYS_MAX
        )

    # ------------------------------------------------------------ one round

    async def _round(self) -> None:
        group = self._take()
        self._partitions += len(group)
        start = self._position.ref(self._namespace_id)
        pages = await self._store.scan(group, start, self._limit(len(group)), self._descending)
        ends = [_place(page.tasks[-1]) for page in pages if not page.complete]
        frontier = (max if self._descending else min)(ends) if ends else None
        found = sorted((task for page in pages for task in page.tasks), key=_place, reverse=self._descending)
        self._measure(found)
        if not self._look_at(found, frontier):
            self._put_back(group, pages)
        elif frontier is None:
            bucket = group[-1][0] if self._descending else group[-1][0] + 1
            self._position = Position(bucket_start_ms(bucket), FIRST_ID)
            self._dense, self._growth = False, 1
        else:
            self._put_back(group, pages)
            self._growth = 2 * self._growth if self._dense else 1
            self._dense = True

    def _take(self) -> list[Partition]:
        """Whole buckets: the next one, or several while they are nearly empty."""
        group: list[Partition] = []
        while self._ahead:
            another = bool(group) and self._ahead[0][0] != group[-1][0]
            if another and (self._dense or len(group) >= PARTITIONS_AHEAD_MAX):
                break
            group.append(self._ahead.popleft())
        return group

    def _limit(self, partitions: int) -> int:
        """Rows that each partition is asked for."""
        wanted = max(ROWS_PER_PARTITION_MIN, 2 * self._size // partitions) * self._growth
        affordable = min(ROWS_PER_ROUND_MAX, int(ROUND_BYTES_MAX / self._row_bytes)) // partitions
        return max(1, min(wanted, affordable))

    def _look_at(self, found: Sequence[StoredTask], frontier: bytes | None) -> bool:
        """Takes what matches, up to the frontier; False where it has ended before."""
        for number, task in enumerate(found, start=1):
            place = _place(task)
            if task.row.due_ms < self._window[0] if self._descending else task.row.due_ms >= self._window[1]:
                self._over = True
                return False
            self._rows += 1
            self._position = self._behind(task)
            if task.row.namespace_id == self._namespace_id and self._query.matches(task):
                self.tasks.append(task)
                self._bytes += _size(task)
            if place == frontier:
                return True
            if self._is_enough() and number < len(found):
                return False
        return True

    def _behind(self, task: StoredTask) -> Position:
        """The last position, of this namespace, that such a row lets one say is done with."""
        due_ms, namespace_id, task_id = task.row.due_ms, task.row.namespace_id, task.row.task_id
        if namespace_id == self._namespace_id:
            return Position(due_ms, task_id)
        ours_follow = (namespace_id < self._namespace_id) != self._descending
        if self._descending:
            return Position(due_ms if ours_follow else due_ms - 1, LAST_ID)
        return Position(due_ms if ours_follow else due_ms + 1, FIRST_ID)

    def _put_back(self, group: Sequence[Partition], pages: Sequence[Page]) -> None:
        """Partitions of which there is more behind the position."""
        position = self._position.ref(self._namespace_id)[:_PLACE_BYTES]
        for partition, page in reversed(list(zip(group, pages, strict=True))):
            last = _place(page.tasks[-1]) if page.tasks else position
            if not page.complete or (last < position if self._descending else last > position):
                self._ahead.appendleft(partition)

    def _measure(self, found: Sequence[StoredTask]) -> None:
        if found:
            self._row_bytes = max(1.0, sum(map(_size, found)) / len(found))


def _place(task: StoredTask) -> bytes:
    return task.row.ref[:_PLACE_BYTES]


def _size(task: StoredTask) -> int:
    body = task.row.body
    return len(body.payload) + sum(len(key) + len(value) for key, value in body.metadata.items())
