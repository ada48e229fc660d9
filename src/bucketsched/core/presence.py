"""Which partitions hold tasks of a queue: what listings walk, so that they read no partition that holds nothing.

A presence is written with the first row of its queue in a partition, and answered before that row is. A writer
remembers what it has written, so that it costs next to nothing where many tasks share a partition.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .task import BUCKET_MS, TaskRow
from .task_id import shard_in

BUCKETS_PER_DAY = 1_440
PRESENCES_REMEMBERED_MAX = 100_000
"""About 25 MB. When so many are known they are all forgotten, and written once more."""
OUTLIVES_S = 86_400
"""A presence is kept that much longer than the rows of its bucket."""

Partition = tuple[int, int]
"""Bucket and shard."""


class Presence(NamedTuple):
    """Tasks of this queue lie, or have lain, in this partition."""

    namespace_id: bytes
    queue: str
    bucket: int
    shard: int

    @property
    def day(self) -> int:
        """Days since the Unix epoch."""
        return self.bucket // BUCKETS_PER_DAY


def presence_of(row: TaskRow) -> Presence:
    """What has to be stored with this row."""
    return Presence(row.namespace_id, row.body.queue, row.bucket, shard_in(row.task_id))


class KnownPresences:
    """Those that are known to be stored. Bounded."""

    def __init__(self, count_max: int = PRESENCES_REMEMBERED_MAX) -> None:
        self._known: set[Presence] = set()
        self._count_max = count_max

    def missing(self, rows: Iterable[TaskRow]) -> list[Presence]:
        """Those of the rows that have to be written, each once."""
        # plain tuples are equal to their presences, and made in a third of the time: mostly nothing is missing
        places = {(row.namespace_id, row.body.queue, row.due_ms // BUCKET_MS, shard_in(row.task_id)) for row in rows}
        return [Presence(*place) for place in sorted(places - self._known)]

    def add(self, presences: Iterable[Presence]) -> None:
        """These are stored, durably."""
        for presence in presences:
            if len(self._known) >= self._count_max:
                self._known.clear()
            self._known.add(presence)

    def forget(self, presences: Iterable[Presence]) -> None:
        """These are removed."""
        self._known.difference_update(presences)
