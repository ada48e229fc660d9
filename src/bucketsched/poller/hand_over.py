"""Giving ranges up cleanly: progress is stored while they are still served, and then they stop only for a moment.

1. proof     a versioned read of the lease: what can't be released now need not stand still.
2. progress  marks and checkpoint of all that is committed. The range is dispatched on meanwhile.
3. stop      at a transaction's end: nothing of the range is under way, or in doubt, any more. A few ranges at a time.
4. release   a versioned write. What was committed since step 2 is marked by this lane, and by the taker, too, which
             replays it.

Before the release is sent the range may go on being served. Afterwards it may not, whatever the answer: a release that
was carried out without an answer lets the next owner begin without a fence.
"""

from __future__ import annotations

import asyncio

import structlog

from ..core import failpoints
from ..core.errors import OwnershipLost, Unavailable
from ..core.waiting import first_of
from ..ports import Clock, Leases
from .checkpointer import Checkpointer
from .dispatcher import Dispatcher
from .limits import HAND_OVER_S_MAX
from .marker import Marker
from .owned_range import OwnedRange, Phase

log = structlog.get_logger(__name__)
RETRY_S_MIN, RETRY_S_MAX = 0.05, 1.0
STANDING_STILL_MAX = 4
"""Ranges between their stop and their release. Of many that move at once the others are dispatched meanwhile: so each
stands still for its own takeover, not for that of all.
"""


class HandOver:
    """The giving side of one lane."""

    def __init__(
        self,
        ranges: dict[int, OwnedRange],
        leases: Leases,
        dispatcher: Dispatcher,
        marker: Marker,
        checkpointer: Checkpointer,
        clock: Clock,
    ) -> None:
        self._ranges, self._leases, self._dispatcher = ranges, leases, dispatcher
        self._marker, self._checkpointer, self._clock = marker, checkpointer, clock
        self._giving: set[OwnedRange] = set()
        self._still = asyncio.Semaphore(STANDING_STILL_MAX)

    async def give_up(self, owned: OwnedRange) -> None:
        """Hands a range over, or drops it where it is lost already.

        Where store or lease service can't be reached the range goes on being served, and this returns: ask again. What
        was loaded must not stand still while nobody can take it.
        """
        if owned in self._giving:
            return
        self._giving.add(owned)
        try:
            if owned.phase is not Phase.ACTIVE or await self._prepared(owned):
                async with self._still:
                    await self._stop(owned)
                    if owned.phase is Phase.ALARMED:
                        owned.phase = Phase.STOPPING  # else it could be tried again, and served, while it is released
                    if owned.phase is Phase.STOPPING:
                        await self._release(owned)
        except Unavailable as error:
            log.debug("release waits", range=owned.range_id, error=str(error))
        except OwnershipLost:
            self._dispatcher.drop(owned)
        finally:
            self._giving.discard(owned)

    async def _prepared(self, owned: OwnedRange) -> bool:
        """False where the store does not answer in time. Raises Unavailable, OwnershipLost."""
        if owned.range_id not in await self._leases.validate([owned.lease]):
            raise OwnershipLost(f"the lease on range {owned.range_id} is gone")
        if not await self._marked(owned):
            return False
        await self._checkpointer.save(owned)
        failpoints.reach("hand-over.stored")
        return True

    async def _marked(self, owned: OwnedRange) -> bool:
        """Waits for the marks of what is committed by now; False where the store does not answer in time."""
        async with self._dispatcher.turn:
            offset = self._dispatcher.last[0]
        reached = asyncio.create_task(self._marker.reached(owned, offset))
        stored = asyncio.Event()
        reached.add_done_callback(lambda _: stored.set())
        try:
            await first_of(stored, self._clock, HAND_OVER_S_MAX)
        finally:
            reached.cancel()
        return stored.is_set()

    async def _stop(self, owned: OwnedRange) -> None:
        """Nothing new is begun for the range; what is under way is decided when the turn is over."""
        if owned.phase is not Phase.ACTIVE:
            return
        owned.phase = Phase.STOPPING
        try:
            async with self._dispatcher.turn:
                pass
        except BaseException:
            if owned.phase is Phase.STOPPING:
                owned.phase = Phase.ACTIVE
                self._dispatcher.wake.set()
            raise
        failpoints.reach("hand-over.stopped")

    async def _release(self, owned: OwnedRange) -> None:
        """Until it is known that the range is released or lost. Raises OwnershipLost."""
        pause = RETRY_S_MIN
        while owned.phase is not Phase.GONE:
            try:
                await self._leases.release(owned.lease)
            except Unavailable as error:
                log.warning("a release is in doubt", range=owned.range_id, error=str(error), recurring=True)
                await self._clock.sleep(pause)
                pause = min(2 * pause, RETRY_S_MAX)
                continue
            failpoints.reach("hand-over.released")
            log.debug("range released", range=owned.range_id, epoch=owned.epoch)
            owned.phase = Phase.GONE
            if self._ranges.get(owned.range_id) is owned:
                del self._ranges[owned.range_id]
