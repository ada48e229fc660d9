"""Reads the window around now again. A hint may be lost; the scan is the truth."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import structlog

from ..core import task_id as ids
from ..core.errors import Unavailable
from ..core.task import RowRef, bucket_of, bucket_start_ms
from ..core.waiting import first_of
from ..ports import Clock, TaskStore
from .cursor import before
from .figures import LaneCounters
from .limits import REMEMBER_MS, RESCAN_AHEAD_MS, LaneLimits
from .owned_range import OwnedRange, Phase

log = structlog.get_logger(__name__)
SCANS_IN_FLIGHT_MAX = 4
TAKEN_IN_FLIGHT_MAX = 16
"""Of ranges that were just taken: what was created meanwhile may be due."""
FETCHED_ROWS_MAX = 50
"""Missing rows of one scan that are fetched one by one; of more, the stretches of their partitions are read."""
HINTS_UNDER_WAY_S = 0.1
"""Where many are missing, most of them are about to be hinted: they are stored first."""
PAGE_ROWS_MAX = 1_000


class Rescanner:
    """One per lane."""

    def __init__(
        self,
        ranges: dict[int, OwnedRange],
        store: TaskStore,
        clock: Clock,
        limits: LaneLimits,
        counters: LaneCounters | None = None,
    ) -> None:
        self._ranges, self._store, self._clock, self._limits = ranges, store, clock, limits
        self._counters = counters or LaneCounters()
        self._wake = asyncio.Event()
        self._taken = asyncio.Semaphore(TAKEN_IN_FLIGHT_MAX)

    def hurry(self) -> None:
        """A hint could not be followed: scan now."""
        self._wake.set()

    async def run(self, found: Callable[[], None]) -> None:
        """Scans until cancelled; calls `found` when a scan brought something in, or has something for the loader."""
        while True:
            await first_of(self._wake, self._clock, self._limits.rescan_interval_ms / 1000)
            self._wake.clear()
            gate = asyncio.Semaphore(SCANS_IN_FLIGHT_MAX)
            active = [owned for owned in self._ranges.values() if owned.phase is Phase.ACTIVE]
            counts = await asyncio.gather(*(self.scan(owned, gate) for owned in active))
            if any(counts):
                self._counters.rescanned_rows += sum(counts)
                log.info("rescan found rows without a hint", rows=sum(counts))
                found()

    async def scan(self, owned: OwnedRange, gate: asyncio.Semaphore | None = None) -> int:
        """Begins where the last scan that succeeded left off, so that none is missed while the store is away.

        How many rows nobody told of. Without a `gate` it is a range that was just taken, and all of them share one.
        """
        async with gate or self._taken:
            now_ms = self._clock.now_ms()
            from_ms, until_ms = min(now_ms, owned.scanned_ms) - REMEMBER_MS, now_ms + RESCAN_AHEAD_MS
            new = 0
            try:
                for bucket in range(max(bucket_of(from_ms), owned.first_open_bucket), bucket_of(until_ms - 1) + 1):
                    new += (await admit_pending(owned, self._store, self._clock, bucket, from_ms, until_ms)).new
                owned.scanned_ms = now_ms
            except Unavailable as error:
                log.warning("rescan waits for the store", range=owned.range_id, error=str(error), recurring=True)
            return new


class Found(NamedTuple):
    """Rows that are not settled in the store: how many there are, and how many of them were not known."""

    pending: int
    new: int


async def admit_pending(
    owned: OwnedRange, store: TaskStore, clock: Clock, bucket: int, from_ms: int, until_ms: int
) -> Found:
    """Takes in what a bucket holds unsettled in this window and nobody told of.

    What lies behind a cursor's edge is left to the loader. Raises Unavailable.
    """
    read = owned.begin_read()
    try:
        places = [RowRef.unpack(ref) for ref in await store.pending_refs(bucket, owned.shards, from_ms, until_ms)]
        missing = _missing(owned, places)
        if len(missing) > FETCHED_ROWS_MAX:
            await clock.sleep(HINTS_UNDER_WAY_S)
            missing = _missing(owned, missing)
        if len(missing) > FETCHED_ROWS_MAX:
            return Found(len(places), await _read_around(owned, store, bucket, missing))
        return Found(len(places), sum([await _fetch(owned, store, place) for place in missing]))
    finally:
        owned.end_read(read)


def _missing(owned: OwnedRange, places: list[RowRef]) -> list[RowRef]:
    return [
        place
        for place in places
        if owned.status(place.pack()) is None and owned.covered(place.due_ms, ids.shard_in(place.task_id))
    ]


async def _fetch(owned: OwnedRange, store: TaskStore, place: RowRef) -> bool:
    stored = await store.get(place.due_ms, place.namespace_id, place.task_id)
    return stored is not None and owned.admit(stored)


async def _read_around(owned: OwnedRange, store: TaskStore, bucket: int, missing: list[RowRef]) -> int:
    """Takes in all that is between the first and the last missing row of each partition, as far as there is room."""
    dues: dict[int, list[int]] = {}
    for place in missing:
        dues.setdefault(ids.shard_in(place.task_id), []).append(place.due_ms)
    new = 0
    for shard, of_shard in dues.items():
        after, until_ms, complete = before(min(of_shard)), max(of_shard) + 1, False
        while not complete and (spare := owned.spare_rows):
            page = await store.read_partition(bucket, shard, after, until_ms, min(spare, PAGE_ROWS_MAX))
            new += sum(owned.admit(stored) for stored in page.tasks)
            complete, after = page.complete, page.tasks[-1].row.ref if page.tasks else after
        if not complete:  # the loader comes back for them when there is room
            new += 1
            last_ms = RowRef.unpack(after).due_ms if after else 0
            owned.buckets.rewind(max(last_ms, bucket_start_ms(bucket)), shard)
    return new
