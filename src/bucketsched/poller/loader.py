"""Reads whole buckets ahead of time, page by page, what is due first first, within a budget of rows and bytes.

The budget can't starve what is due: a page is at most an eighth of a range's budget, pages are taken in the order of
their due times, and hints stop at one and a half budgets; so before the earliest unread row falls due, enough of the
loaded ones have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from ..core import failpoints
from ..core.errors import Unavailable
from ..core.task import bucket_end_ms
from ..ports import Clock, TaskStore
from .cursor import Cursor
from .limits import LOAD_FIRST_MS, LaneLimits
from .owned_range import OwnedRange, Phase
from .waiting import first_of

log = structlog.get_logger(__name__)
IDLE_S = 1.0


class Loader:
    """One per lane."""

    def __init__(
        self,
        ranges: dict[int, OwnedRange],
        store: TaskStore,
        clock: Clock,
        limits: LaneLimits,
        horizon_ms: int,
        loaded: Callable[[], None],
    ) -> None:
        self._ranges, self._store, self._clock, self._limits = ranges, store, clock, limits
        self._horizon_ms, self._loaded = horizon_ms, loaded
        self._reads: set[asyncio.Task[None]] = set()
        self._starved = False
        self.wake = asyncio.Event()

    def drained(self) -> None:
        """Rows have left the heaps: there may be room again."""
        if self._starved:
            self.wake.set()

    async def run(self) -> None:
        """Loads until cancelled."""
        try:
            while True:
                self.wake.clear()
                self._launch()
                await first_of(self.wake, self._clock, IDLE_S)
        finally:
            for read in self._reads:
                read.cancel()

    def _launch(self) -> None:
        now_ms = self._clock.latest_ms()
        self._starved = False
        waiting: list[tuple[int, int, OwnedRange, Cursor]] = []
        for owned in self._ranges.values():
            if owned.phase is Phase.ACTIVE:
                owned.extend(now_ms + self._horizon_ms)
                waiting += [(c.edge_ms, c.shard, owned, c) for c in owned.unread()]
        waiting.sort(key=lambda item: item[:2])
        resident_bytes = sum(owned.resident_bytes for owned in self._ranges.values())
        for edge_ms, _, owned, cursor in waiting:
            if len(self._reads) >= self._limits.reads_in_flight_max:
                return
            if self._room(owned, resident_bytes, urgent=edge_ms < now_ms + LOAD_FIRST_MS):
                self._begin(owned, cursor)
            else:
                self._starved = True

    def _room(self, owned: OwnedRange, resident_bytes: int, urgent: bool) -> bool:
        rows_max, bytes_max = self._limits.heap_rows_max, self._limits.heap_bytes_max
        if urgent:
            rows_max, bytes_max = 2 * rows_max, 2 * bytes_max
        rows = owned.resident_rows + owned.reading_rows + self._page_rows(owned)
        return rows <= rows_max and resident_bytes < bytes_max

    def _page_rows(self, owned: OwnedRange) -> int:
        return min(self._limits.page_rows_max, max(1, self._limits.heap_rows_max // (2 * len(owned.shards))))

    def _begin(self, owned: OwnedRange, cursor: Cursor) -> None:
        cursor.reading = True
        limit = self._page_rows(owned)
        owned.reading_rows += limit
        task = asyncio.create_task(self._read(owned, cursor, limit))
        self._reads.add(task)
        task.add_done_callback(self._reads.discard)

    async def _read(self, owned: OwnedRange, cursor: Cursor, limit: int) -> None:
        until_ms = bucket_end_ms(cursor.bucket)
        read = owned.begin_read()
        try:
            page = await self._store.read_partition(cursor.bucket, cursor.shard, cursor.after, until_ms, limit)
        except Unavailable as error:
            log.warning("loading waits for the store", range=owned.range_id, bucket=cursor.bucket, error=str(error))
            await self._clock.sleep(IDLE_S)
            cursor.held.clear()  # the next read begins after they were stored, so it sees them
            cursor.reading = False
        else:
            new = owned.absorb(cursor, page, until_ms)
            failpoints.reach("takeover.loaded")
            if new:
                self._loaded()
        finally:
            owned.end_read(read)
            owned.reading_rows -= limit
            self.wake.set()
