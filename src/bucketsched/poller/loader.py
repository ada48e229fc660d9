"""Reads whole buckets ahead of time, page by page, what is due first first, within a budget of rows and bytes.

What is due about now comes before a backlog of older buckets, which is read oldest first.

The budget can't starve what is due: a page is at most an eighth of a range's budget, pages are taken in the order of
their due times, and hints stop at one and a half budgets; so before the earliest unread row falls due, enough of the
loaded ones have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import chain

import structlog

from ..core import failpoints
from ..core.errors import Unavailable
from ..core.task import bucket_end_ms, bucket_of
from ..core.waiting import first_of
from ..ports import Clock, TaskStore
from .cursor import Cursor
from .limits import LOAD_AT_ONCE_MS, LOAD_FIRST_MS, PRELOAD_AHEAD_MS, REMEMBER_MS, LaneLimits
from .owned_range import OwnedRange, Phase

log = structlog.get_logger(__name__)
IDLE_S = 1.0


class Loader:
    """One per lane. `shadows` are ranges that it may own soon: of them, and of those being taken, it reads only
    what is due next."""

    def __init__(
        self,
        ranges: dict[int, OwnedRange],
        shadows: dict[int, OwnedRange],
        store: TaskStore,
        clock: Clock,
        limits: LaneLimits,
        horizon_ms: int,
        loaded: Callable[[], None],
    ) -> None:
        self._ranges, self._shadows, self._store = ranges, shadows, store
        self._clock, self._limits = clock, limits
        self._horizon_ms, self._loaded = horizon_ms, loaded
        self._reads: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self._starved = False
        self._retries = 0
        self._attended: dict[OwnedRange, Callable[[], None]] = {}
        self.wake = asyncio.Event()
        self.progress = asyncio.Event()
        """Set, and replaced by another one, when a read has ended."""

    def attend(self, owned: OwnedRange, loaded: Callable[[], None]) -> None:
        """Calls `loaded` once what is due by now of an active range is read, or it is not active any more."""
        self._attended[owned] = loaded
        self.wake.set()

    def _tell(self) -> None:
        if self._attended:
            now_ms = self._clock.latest_ms()
            read = [owned for owned in self._attended if _is_read(owned, now_ms)]
            for owned in read:
                self._attended.pop(owned)()

    def drained(self) -> None:
        """Rows have left the heaps: there may be room again."""
        if self._starved:
            self.wake.set()

    async def run(self) -> None:
        """Loads until cancelled. Raises what a read has raised that is not just the store's absence."""
        try:
            while True:
                self.wake.clear()
                if self._error is not None:
                    raise self._error
                self._launch()
                self._tell()
                await first_of(self.wake, self._clock, IDLE_S)
        finally:
            for read in self._reads:
                read.cancel()

    def _launch(self) -> None:
        now_ms = self._clock.latest_ms()
        present_ms = now_ms - REMEMBER_MS
        present = bucket_of(present_ms)
        self._starved = False
        waiting: list[tuple[bool, int, int, OwnedRange, Cursor]] = []
        for owned in self._ranges.values():
            if owned.phase is Phase.ACTIVE:
                if owned.reopen(now_ms):
                    log.error("the clock went back: closed buckets are open again", range=owned.range_id)
                owned.buckets.extend(present_ms, now_ms + self._horizon_ms)
                waiting += [(c.bucket < present, c.edge_ms, c.shard, owned, c) for c in owned.buckets.unread()]
        for shadow in self._read_ahead():
            shadow.buckets.extend(present_ms, now_ms + PRELOAD_AHEAD_MS)
            ahead = [c for c in shadow.buckets.unread() if c.edge_ms < now_ms + PRELOAD_AHEAD_MS]
            waiting += [(c.bucket < present, c.edge_ms, c.shard, shadow, c) for c in ahead]
        waiting.sort(key=lambda item: item[:3])
        for behind, edge_ms, _, owned, cursor in waiting:
            if len(self._reads) >= self._limits.reads_in_flight_max:
                return
            if cursor.retry_at and not self._may_retry(cursor):
                continue
            urgent = owned.phase is not Phase.PRELOADING and edge_ms < now_ms + LOAD_FIRST_MS
            if self._room(owned, urgent, behind):
                self._begin(owned, cursor)
            else:
                self._starved = True

    def _read_ahead(self) -> Iterator[OwnedRange]:
        """The ranges that this lane serves soon, if all goes well."""
        yield from self._shadows.values()
        yield from (owned for owned in self._ranges.values() if owned.phase is Phase.RECOVERING and owned.opened)

    def _may_retry(self, cursor: Cursor) -> bool:
        """What has failed may fail again, and slowly: the others keep half of the reads for themselves."""
        most = max(1, self._limits.reads_in_flight_max // 2)
        return self._retries < most and self._clock.monotonic() >= cursor.retry_at

    def _room(self, owned: OwnedRange, urgent: bool, behind: bool) -> bool:
        """What is urgent may take twice the budget, a backlog half of it: the present must find room beside it. And a
        range that holds nothing may always read something."""
        rows_max, bytes_max = self._limits.heap_rows_max, self._limits.heap_bytes_max
        if behind:
            rows_max, bytes_max = rows_max // 2, bytes_max // 2
        elif urgent:
            rows_max, bytes_max = 2 * rows_max, 2 * bytes_max
        held = owned.resident_rows + owned.reading_rows
        if urgent and not held:
            return True
        return held + self._page_rows(owned) <= rows_max and self.resident_bytes() < bytes_max

    def _page_rows(self, owned: OwnedRange) -> int:
        return min(self._limits.page_rows_max, max(1, self._limits.heap_rows_max // (2 * len(owned.shards))))

    def _begin(self, owned: OwnedRange, cursor: Cursor) -> None:
        cursor.reading = True
        limit = self._page_rows(owned)
        self._retries += bool(cursor.retry_at)
        owned.reading_rows += limit
        task = asyncio.create_task(self._read(owned, cursor, limit))
        self._reads.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._reads.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._error = task.exception()
            self.wake.set()

    def _until_ms(self, owned: OwnedRange, cursor: Cursor) -> int:
        """To the bucket's end; where its first rows are due already, as after a takeover, only what is due next: the
        other partitions' turn comes before the rest.
        """
        now_ms, end_ms = self._clock.latest_ms(), bucket_end_ms(cursor.bucket)
        at_once = owned.phase is not Phase.PRELOADING and cursor.edge_ms < now_ms + LOAD_AT_ONCE_MS < end_ms
        return min(end_ms, now_ms + LOAD_FIRST_MS) if at_once else end_ms

    async def _read(self, owned: OwnedRange, cursor: Cursor, limit: int) -> None:
        until_ms = self._until_ms(owned, cursor)
        read, retry = owned.begin_read(), bool(cursor.retry_at)
        try:
            page = await self._store.read_partition(cursor.bucket, cursor.shard, cursor.after, until_ms, limit)
        except Unavailable as error:
            where = {"range": owned.range_id, "bucket": cursor.bucket}
            log.warning("loading waits for the store", **where, error=str(error), recurring=True)
            if retry:
                await self._clock.sleep(IDLE_S)  # a store that is away is not asked for everything all the time
            cursor.retry_at = self._clock.monotonic() + IDLE_S
            owned.end_page(cursor)
        else:
            cursor.retry_at = 0.0
            new = owned.absorb(cursor, page, until_ms)
            failpoints.reach("takeover.loaded")
            if new:
                self._loaded()
        finally:
            owned.end_read(read)
            self._retries -= retry
            owned.reading_rows -= limit
            self.wake.set()
            self.progress.set()
            self.progress = asyncio.Event()

    def resident_bytes(self) -> int:
        """What the loaded rows of all ranges take in memory, about."""
        both = chain(self._ranges.values(), self._shadows.values())
        return sum(owned.resident_bytes for owned in both)


def _is_read(owned: OwnedRange, now_ms: int) -> bool:
    return owned.phase is not Phase.ACTIVE or owned.buckets.are_read(now_ms - REMEMBER_MS, now_ms)
