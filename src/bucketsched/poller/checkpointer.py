"""Stores the progress of each range, so that a taker replays little; and forgets what need not be remembered."""

from __future__ import annotations

import asyncio

import structlog

from ..core.checkpoint import Checkpoint
from ..core.errors import Unavailable
from ..ports import CheckpointStore, Clock, Journal
from .limits import LaneLimits
from .marker import Marker
from .owned_range import OwnedRange, Phase

log = structlog.get_logger(__name__)
SAVES_IN_FLIGHT_MAX = 16


class Checkpointer:
    """One per lane. A checkpoint passes only what is stored: it ends at the record that the marker has applied."""

    def __init__(
        self,
        ranges: dict[int, OwnedRange],
        checkpoints: CheckpointStore,
        journal: Journal,
        marker: Marker,
        clock: Clock,
        limits: LaneLimits,
    ) -> None:
        self._ranges, self._checkpoints, self._journal, self._marker = ranges, checkpoints, journal, marker
        self._clock, self._limits = clock, limits
        self._served = 0
        self._saved: dict[tuple[int, int], float] = {}

    async def run(self) -> None:
        """Stores until cancelled."""
        while True:
            await self._clock.sleep(self._limits.checkpoint_interval_ms / 1000)
            gate = asyncio.Semaphore(SAVES_IN_FLIGHT_MAX)
            active = [owned for owned in self._ranges.values() if owned.phase is Phase.ACTIVE]
            failures = await asyncio.gather(*(self._try(owned, gate) for owned in active))
            if failed := [reason for reason in failures if reason]:
                log.warning("checkpoints wait for the store", ranges=len(failed), error=failed[0], recurring=True)
            if len(active) != self._served:
                self._served = len(active)
                log.info("ranges served", count=self._served)
            now_ms = self._clock.earliest_ms()
            for owned in active:
                owned.sweep(now_ms)

    async def _try(self, owned: OwnedRange, gate: asyncio.Semaphore) -> str:
        """ "" or why it could not be stored."""
        async with gate:
            try:
                await self.save(owned)
            except Unavailable as error:
                return str(error)
        return ""

    async def save(self, owned: OwnedRange) -> None:
        """Stores the progress of one range as it stands now. Raises Unavailable."""
        owned.sequence += 1
        offset, value_hash = self._marker.applied(owned)
        checkpoint = Checkpoint(
            owned.epoch,
            owned.sequence,
            self._journal.name,
            self._journal.lane,
            offset,
            value_hash,
            owned.first_open_bucket,
            owned.open_low_due(self._clock.earliest_ms()),
        )
        await self._checkpoints.save(owned.range_id, checkpoint)
        self._saved[owned.range_id, owned.epoch] = self._clock.monotonic()

    def age_s(self) -> float:
        """Seconds since the progress of that active range was stored whose turn was longest ago."""
        now = self._clock.monotonic()
        active = [(owned.range_id, owned.epoch) for owned in self._ranges.values() if owned.phase is Phase.ACTIVE]
        self._saved = {taken: self._saved.get(taken, now) for taken in active}
        return max((now - saved for saved in self._saved.values()), default=0.0)
