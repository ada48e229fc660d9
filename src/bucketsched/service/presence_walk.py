"""The partitions that hold tasks of some queues, in order of their buckets, a few days at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..core.presence import BUCKETS_PER_DAY, Partition
from ..ports import TaskStore

QUEUE_DAYS_PER_STEP_MAX = 512
DAYS_PER_STEP_MAX = 64
QUEUES_AT_ONCE_MAX = 8
PARTITIONS_PER_READ_MIN = 1_024
"""A read of a queue's days ends there, or at two buckets' worth, whichever is more."""


class PresenceWalk:
    """Walks from_bucket <= bucket < until_bucket, `descending` from its end. `queue_days`: how many were read."""

    def __init__(
        self,
        store: TaskStore,
        namespace_id: bytes,
        queues: Sequence[str],
        shards: int,
        from_bucket: int,
        until_bucket: int,
        descending: bool,
    ) -> None:
        self._store, self._namespace_id, self._queues = store, namespace_id, queues
        self._limit = max(PARTITIONS_PER_READ_MIN, 2 * shards)
        self._days = max(1, min(DAYS_PER_STEP_MAX, QUEUE_DAYS_PER_STEP_MAX // max(1, len(queues))))
        self._from, self._until, self._descending = from_bucket, until_bucket, descending
        self._at_once = asyncio.Semaphore(QUEUES_AT_ONCE_MAX)
        self.queue_days = 0

    @property
    def done(self) -> bool:
        """True if there is nothing behind what was handed out."""
        return self._from >= self._until or not self._queues

    @property
    def bucket(self) -> int:
        """Everything before it (descending: from it on) was handed out."""
        return self._until if self._descending else self._from

    async def more(self) -> list[Partition]:
        """The next partitions, all those of each bucket; there may be none in these days. Raises Unavailable."""
        low, high = self._span()
        self.queue_days += len(self._queues) * ((high - 1) // BUCKETS_PER_DAY - low // BUCKETS_PER_DAY + 1)
        found = await asyncio.gather(*(self._read(queue, low, high) for queue in self._queues))
        cut = [partitions[-1][0] for partitions in found if len(partitions) == self._limit]
        if self._descending:  # a bucket that was cut is read again, whole
            low = self._until = max([low, *(bucket + 1 for bucket in cut)])
        else:
            high = self._from = min([high, *cut])
        whole = {partition for partitions in found for partition in partitions if low <= partition[0] < high}
        return sorted(whole, reverse=self._descending)

    def _span(self) -> tuple[int, int]:
        if self._descending:
            first_day = (self._until - 1) // BUCKETS_PER_DAY - self._days + 1
            return max(self._from, first_day * BUCKETS_PER_DAY), self._until
        return self._from, min(self._until, (self._from // BUCKETS_PER_DAY + self._days) * BUCKETS_PER_DAY)

    async def _read(self, queue: str, low: int, high: int) -> list[Partition]:
        async with self._at_once:
            return await self._store.partitions(self._namespace_id, queue, low, high, self._limit, self._descending)
