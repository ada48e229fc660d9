"""What somebody has to look at: ranges that stand still, and when they are tried again; tasks that are about to expire.

Trying again by the clock would fence lanes that do no harm. A range is tried again when its checkpoint is another one
than that which raised the alarm: an operator has accepted the loss (`bucketsched admin range accept-loss`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from ..core.checkpoint import CheckpointCorrupt
from ..core.errors import OwnershipLost, Unavailable
from ..ports import CheckpointStore, Clock
from .owned_range import OwnedRange, Phase

log = structlog.get_logger(__name__)
LOOK_S = 2.0


class Alarms:
    """Those of one lane. `orders`: by range, that of the checkpoint from which it was last tried to be taken."""

    def __init__(
        self,
        ranges: dict[int, OwnedRange],
        checkpoints: CheckpointStore,
        clock: Clock,
        orders: Mapping[int, int],
        retry: Callable[[OwnedRange], Awaitable[object]],
        retention_ms: int,
    ) -> None:
        self._ranges, self._checkpoints, self._clock = ranges, checkpoints, clock
        self._orders, self._retry, self._retention_ms = orders, retry, retention_ms

    async def run(self) -> None:
        """Looks until cancelled. Raises what trying a range again has raised that nobody expects."""
        looks: dict[OwnedRange, asyncio.Task[None]] = {}
        try:
            while True:
                await self._clock.sleep(LOOK_S)
                for owned in [owned for owned, look in looks.items() if look.done()]:
                    looks.pop(owned).result()
                for owned in list(self._ranges.values()):
                    if owned.phase is Phase.ALARMED and owned not in looks:
                        looks[owned] = asyncio.create_task(self._look(owned))  # its retry may wait for long
                self._look_at_backlogs()
        finally:
            for look in looks.values():
                look.cancel()
            await asyncio.gather(*looks.values(), return_exceptions=True)

    def _look_at_backlogs(self) -> None:
        """What is older than the retention is gone: at half of it there still is time to do something."""
        now_ms = self._clock.now_ms()
        for owned in self._ranges.values():
            age_ms = now_ms - owned.oldest_undone_ms(now_ms) if owned.phase is Phase.ACTIVE else 0
            if 2 * age_ms > self._retention_ms:
                log.critical(
                    "a backlog is older than half of the retention, at whose end its tasks expire",
                    range=owned.range_id,
                    age_s=age_ms // 1000,
                    recurring=True,
                )

    async def _look(self, owned: OwnedRange) -> None:
        try:
            order = await self._order(owned.range_id)
            if order == self._orders.get(owned.range_id, 0) or owned.phase is not Phase.ALARMED:
                return
            log.warning("a range that stood still is tried again", range=owned.range_id)
            owned.phase = Phase.RECOVERING
            await self._retry(owned)
        except Unavailable as error:
            log.warning("an alarmed range waits for the store", error=str(error), recurring=True)
        except OwnershipLost as error:
            log.info("an alarmed range is somebody else's", range=owned.range_id, error=str(error))

    async def _order(self, range_id: int) -> int:
        try:
            checkpoint = await self._checkpoints.load(range_id)
        except CheckpointCorrupt as error:
            return error.order
        return checkpoint.order if checkpoint else 0
