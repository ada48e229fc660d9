"""Closes buckets: after their grace, one last read, and a journaled end.

A bucket may be closed when everything in it is settled and marked. Buckets close in order.
"""

from __future__ import annotations

import asyncio

import structlog

from ..core import failpoints
from ..core.errors import Unavailable
from ..core.task import bucket_end_ms, bucket_start_ms
from ..ports import Clock, TaskStore
from .batch import Closing
from .dispatcher import Dispatcher
from .marker import Marker
from .owned_range import OwnedRange, Phase
from .rescanner import admit_pending

log = structlog.get_logger(__name__)
INTERVAL_S = 1.0
RANGES_AT_ONCE_MAX = 8
BUCKETS_AT_ONCE_MAX = 60


class Closer:
    """One per lane."""

    def __init__(
        self,
        ranges: dict[int, OwnedRange],
        store: TaskStore,
        dispatcher: Dispatcher,
        marker: Marker,
        clock: Clock,
        grace_ms: int,
    ) -> None:
        self._ranges, self._store, self._dispatcher, self._marker = ranges, store, dispatcher, marker
        self._clock, self._grace_ms = clock, grace_ms

    async def run(self) -> None:
        """Closes until cancelled."""
        gate = asyncio.Semaphore(RANGES_AT_ONCE_MAX)
        while True:
            await self._clock.sleep(INTERVAL_S)
            await asyncio.gather(*(self._close_all(owned, gate) for owned in list(self._ranges.values())))

    async def _close_all(self, owned: OwnedRange, gate: asyncio.Semaphore) -> None:
        """Every bucket of a range that is over; many of them after an outage, so the ranges take turns."""
        for _ in range(BUCKETS_AT_ONCE_MAX):
            if not self._over(owned):
                return
            async with gate:
                if not await self._close(owned):
                    return

    def _over(self, owned: OwnedRange) -> bool:
        """True if the first open bucket's grace is over, and it is read to its end."""
        bucket = owned.first_open_bucket
        if owned.phase is not Phase.ACTIVE or self._clock.earliest_ms() < bucket_end_ms(bucket) + self._grace_ms:
            return False
        return owned.buckets.is_read(bucket) and not owned.queued[bucket]

    async def _close(self, owned: OwnedRange) -> bool:
        """One attempt; False: not yet."""
        bucket = owned.first_open_bucket
        start_ms, end_ms = bucket_start_ms(bucket), bucket_end_ms(bucket)
        try:
            found = await admit_pending(owned, self._store, self._clock, bucket, start_ms, end_ms)
            if found.new:
                log.warning("a closing bucket held rows that nobody knew", bucket=bucket, rows=found.new)
                self._dispatcher.wake.set()
            if found.pending:
                self._marker.hurry()
                return False
            failpoints.reach("close.read")
            done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self._dispatcher.submit(Closing(owned, bucket, done))
        except Unavailable as error:
            log.warning("closing waits", bucket=bucket, error=str(error), recurring=True)
            return False
        closed = await done
        failpoints.reach("close.journaled")
        return closed
