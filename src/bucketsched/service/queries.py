"""Finding tasks: a walk over the presences, in due order, that reads only partitions that hold something.

A call looks at a bounded number of queues' days, partitions and rows. After that it returns what it has, perhaps
nothing, and where to go on; so a filter that hardly anything passes costs many short calls and not one endless one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.cluster import ClusterConstants
from ..core.errors import FailedPrecondition, InvalidArgument
from ..core.task import StoredTask, TaskState, bucket_of, bucket_start_ms
from ..core.task_id import MINUTE_MAX
from ..core.task_query import FIRST_ID, Position, TaskOrder, TaskQuery
from ..core.validation import Limits, check_name, check_range
from ..ports import Catalog, Clock, TaskStore
from .directory import Directory
from .executions import Executions, ShownTask, shown_by_facts
from .listing import Listing
from .presence_walk import PresenceWalk

PAGE_DEFAULT = 100
PAGE_MAX = 1_000
QUEUES_MAX = 1_000
"""Of a namespace whose tasks are listed without naming a queue."""
QUEUES_PER_READ = 500
LISTINGS_AT_ONCE_MAX = 8
"""Others wait: each may hold thousands of rows."""
COUNTED_MAX = 100_000
COUNT_S_MAX = 5.0
"""A count ends at the first of these that it has reached."""


@dataclass(frozen=True, slots=True)
class TaskPage:
    """Tasks in the order asked for. `next_page_token` "": there are no more; else there may be some."""

    tasks: list[ShownTask]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class TaskCount:
    """How many tasks match. Not `exact`: there are at least so many, the walk has ended before it has seen all."""

    count: int
    exact: bool


class TaskQueries:
    """The use case of listings."""

    def __init__(
        self,
        store: TaskStore,
        catalog: Catalog,
        directory: Directory,
        clock: Clock,
        constants: ClusterConstants,
        limits: Limits,
    ) -> None:
        self._store, self._catalog, self._directory, self._clock = store, catalog, directory, clock
        self._constants, self._limits = constants, limits
        self._executions = Executions(store, directory)
        self._at_once = asyncio.Semaphore(LISTINGS_AT_ONCE_MAX)

    async def list(self, query: TaskQuery, page_size: int = 0, page_token: str = "") -> TaskPage:
        """A page of at most `page_size` (0: 100) tasks behind the one that gave the token; it may be short, or empty.

        Raises InvalidArgument, NotFound, FailedPrecondition (too many queues) or Unavailable.
        """
        _check(query)
        check_range(page_size, 0, PAGE_MAX, "page_size")
        after = query.position(page_token)
        namespace_id = (await self._directory.namespace(query.namespace)).namespace_id
        queues = await self._queues(query, namespace_id)
        async with self._at_once:
            listing = self._listing(query, namespace_id, queues, after, page_size or PAGE_DEFAULT)
            position = await listing.run()
            tasks = await self._matching(query, listing.tasks)
        return TaskPage(list(tasks), query.token(position) if position is not None else "")

    async def count(self, query: TaskQuery) -> TaskCount:
        """How many tasks match, as far as a walk of bounded length tells. Raises likewise."""
        _check(query)
        namespace_id = (await self._directory.namespace(query.namespace)).namespace_id
        queues = await self._queues(query, namespace_id)
        until = self._clock.monotonic() + COUNT_S_MAX
        count, position = 0, None
        async with self._at_once:
            while True:
                listing = self._listing(query, namespace_id, queues, position, PAGE_MAX)
                position = await listing.run()
                count += len(listing.tasks if query.state is None else await self._matching(query, listing.tasks))
                if position is None:
                    return TaskCount(count, True)
                if count >= COUNTED_MAX or self._clock.monotonic() >= until:
                    return TaskCount(count, False)

    async def _matching(self, query: TaskQuery, found: Sequence[StoredTask]) -> Sequence[ShownTask]:
        """With their states. Whether a dispatched task is RUNNING is read only where it matters."""
        if query.state not in (None, TaskState.DISPATCHED, TaskState.RUNNING):
            return [shown_by_facts(stored) for stored in found]
        tasks = await self._executions.states(found)
        return [task for task in tasks if query.state in (None, task.state)]

    async def _queues(self, query: TaskQuery, namespace_id: bytes) -> Sequence[str]:
        if query.queue:
            return [(await self._directory.queue(query.namespace, query.queue)).name]
        names: list[str] = []
        more = True
        while more:
            found = await self._catalog.list_queues(namespace_id, names[-1] if names else "", QUEUES_PER_READ)
            names += [queue.name for queue in found]
            more = len(found) == QUEUES_PER_READ
            if len(names) > QUEUES_MAX:
                raise FailedPrecondition("queue", f"must be given where a namespace has more than {QUEUES_MAX} queues")
        return names

    def _listing(
        self, query: TaskQuery, namespace_id: bytes, queues: Sequence[str], after: Position | None, size: int
    ) -> Listing:
        from_ms, until_ms = self._window(query)
        descending = query.order is TaskOrder.NEWEST
        start = Position(until_ms if descending else from_ms, FIRST_ID)
        if after is not None:
            start = min(start, after) if descending else max(start, after)
        if descending:  # of what is due at `start`, only lower ids; of nothing below the first id
            buckets = bucket_of(from_ms), bucket_of(start.due_ms - (start.task_id == FIRST_ID)) + 1
        else:
            buckets = bucket_of(start.due_ms), bucket_of(until_ms - 1) + 1
        walk = PresenceWalk(self._store, namespace_id, queues, self._constants.shards, *buckets, descending)
        return Listing(self._store, self._clock, walk, query, namespace_id, start, (from_ms, until_ms), size)

    def _window(self, query: TaskQuery) -> tuple[int, int]:
        """Without being asked for: all that is kept, to all that can be accepted."""
        now_ms = self._clock.now_ms()
        from_ms = now_ms - self._constants.retention_ms if query.due_from_ms is None else query.due_from_ms
        until_ms = now_ms + self._limits.delay_ms_max + 1 if query.due_until_ms is None else query.due_until_ms
        return max(0, from_ms), max(1, min(until_ms, bucket_start_ms(MINUTE_MAX)))


def _check(query: TaskQuery) -> None:
    check_name(query.namespace, "namespace")
    if query.queue:
        check_name(query.queue, "queue")
    if query.due_from_ms is not None and query.due_until_ms is not None and query.due_from_ms >= query.due_until_ms:
        raise InvalidArgument("due_until", "must be later than due_from")
