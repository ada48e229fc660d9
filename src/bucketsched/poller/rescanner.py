"""Reads the window around now again. A hint may be lost; the scan is the truth."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from ..core import task_id as ids
from ..core.errors import Unavailable
from ..core.task import RowRef, bucket_of
from ..ports import Clock, TaskStore
from .limits import REMEMBER_MS, RESCAN_AHEAD_MS, LaneLimits
from .owned_range import OwnedRange, Phase
from .waiting import first_of

log = structlog.get_logger(__name__)
SCANS_IN_FLIGHT_MAX = 4
FETCHED_ROWS_MAX = 50
"""Rows of one scan that are fetched one by one; where more are missing the loader reads their places again, which is
faster, and keeps to its budget."""


class Rescanner:
    """One per lane."""

    def __init__(self, ranges: dict[int, OwnedRange], store: TaskStore, clock: Clock, limits: LaneLimits) -> None:
        self._ranges, self._store, self._clock, self._limits = ranges, store, clock, limits
        self._wake = asyncio.Event()

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
            counts = await asyncio.gather(*(self._scan(owned, gate) for owned in active))
            if any(counts):
                log.info("rescan found rows without a hint", rows=sum(counts))
                found()

    async def _scan(self, owned: OwnedRange, gate: asyncio.Semaphore) -> int:
        """Begins where the last scan that succeeded left off, so that none is missed while the store is away."""
        async with gate:
            now_ms = self._clock.now_ms()
            from_ms, until_ms = min(now_ms, owned.scanned_ms) - REMEMBER_MS, now_ms + RESCAN_AHEAD_MS
            new = 0
            try:
                for bucket in range(max(bucket_of(from_ms), owned.first_open_bucket), bucket_of(until_ms - 1) + 1):
                    new += await admit_pending(owned, self._store, bucket, from_ms, until_ms)
                owned.scanned_ms = now_ms
            except Unavailable as error:
                log.warning("rescan waits for the store", range=owned.range_id, error=str(error))
            return new


async def admit_pending(owned: OwnedRange, store: TaskStore, bucket: int, from_ms: int, until_ms: int) -> int:
    """Takes in what a bucket holds unsettled in this window and nobody told of; how many rows that are.

    What lies behind a cursor's edge is left to the loader. Raises Unavailable.
    """
    read = owned.begin_read()
    try:
        refs = await store.pending_refs(bucket, owned.shards, from_ms, until_ms)
        places = [RowRef.unpack(ref) for ref in refs if owned.status(ref) is None]
        missing = [place for place in places if owned.covered(place.due_ms, ids.shard_in(place.task_id))]
        if len(missing) > FETCHED_ROWS_MAX:
            owned.revisit(missing)
            return len(missing)
        return sum([await _fetch(owned, store, place) for place in missing])
    finally:
        owned.end_read(read)


async def _fetch(owned: OwnedRange, store: TaskStore, place: RowRef) -> bool:
    stored = await store.get(place.due_ms, place.namespace_id, place.task_id)
    return stored is not None and owned.admit(stored)
