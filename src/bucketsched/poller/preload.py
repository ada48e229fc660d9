"""Reading ranges ahead of their leases, so that a planned move is short.

    checkpoint, then rows, while the former owner still dispatches ─▶ it releases ─▶ lease ─▶ the checkpoint once more
    ─▶ replay from the *first* checkpoint's offset: what it says is taken out of what was read ─▶ dispatch

A preload owns nothing and promises nothing; it may be thrown away at any moment. It is worth something only if the
checkpoint that is found under the lease is of the same epoch: then the former owner has done nothing to the range that
its journal does not say from the first checkpoint's offset on. (A later one's is too late: what was marked between the
two was read here without its mark.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import structlog

from ..core import failpoints
from ..core.checkpoint import Checkpoint, CheckpointCorrupt
from ..core.errors import Unavailable
from ..core.waiting import first_of
from ..ports import CheckpointStore, Clock, Lease
from .limits import PRELOAD_AHEAD_MS, REMEMBER_MS
from .loader import Loader
from .owned_range import OwnedRange, Phase

log = structlog.get_logger(__name__)
PRELOAD_S_MAX = 2.0
"""How long a preload may read before the range is taken with what there is."""
FRESH_S_MAX = 10.0
"""A preload that nobody took so long is begun anew: its replay would be long."""
LOOK_S = 0.05


@dataclass(slots=True)
class Preload:
    """What was read of a range, and the checkpoint that was read before it."""

    owned: OwnedRange
    checkpoint: Checkpoint
    began: float


class Preloads:
    """Those of one lane. `shadows` are the ranges that its loader reads for it."""

    def __init__(
        self,
        shadows: dict[int, OwnedRange],
        checkpoints: CheckpointStore,
        loader: Loader,
        clock: Clock,
        make: Callable[[Lease], OwnedRange],
    ) -> None:
        self._shadows, self._checkpoints, self._loader = shadows, checkpoints, loader
        self._clock, self._make = clock, make
        self._preloads: dict[int, Preload] = {}

    async def load(self, range_id: int) -> bool:
        """Reads what is due soon; False where that was not possible in time. Where it was read already: at once."""
        deadline = self._clock.monotonic() + PRELOAD_S_MAX
        try:
            preload = await self._begun(range_id)
        except (Unavailable, CheckpointCorrupt) as error:
            log.info("a range is not preloaded", range=range_id, error=str(error))
            return False
        while preload is not None and not self._loaded(preload.owned):
            if self._clock.monotonic() >= deadline or self._preloads.get(range_id) is not preload:
                return False
            await first_of(self._loader.progress, self._clock, LOOK_S)
        if preload is not None:
            failpoints.reach("preload.loaded")
        return preload is not None

    async def _begun(self, range_id: int) -> Preload | None:
        """None: there is no checkpoint. Raises Unavailable."""
        now = self._clock.monotonic()
        known = self._preloads.get(range_id)
        if known is not None and now - known.began < FRESH_S_MAX:
            return known
        self.discard([range_id])
        checkpoint = await self._checkpoints.load(range_id)
        failpoints.reach("preload.checkpoint-read")
        if checkpoint is None:
            return None
        if range_id in self._preloads:
            return self._preloads[range_id]
        owned = self._make(Lease(range_id, checkpoint.epoch, ()))
        owned.phase = Phase.PRELOADING
        owned.open(checkpoint.first_open_bucket, checkpoint.low_due_ms, self._clock.latest_ms())
        self._preloads[range_id] = Preload(owned, checkpoint, now)
        self._shadows[range_id] = owned
        self._loader.wake.set()
        return self._preloads[range_id]

    def _loaded(self, owned: OwnedRange) -> bool:
        now_ms = self._clock.latest_ms()
        return owned.buckets.are_read(now_ms - REMEMBER_MS, now_ms + PRELOAD_AHEAD_MS // 2)

    def taken(self, range_id: int) -> Preload | None:
        """What there is, for the owner of the range; it is forgotten here."""
        self._shadows.pop(range_id, None)
        return self._preloads.pop(range_id, None)

    def discard(self, range_ids: Collection[int]) -> None:
        """These are not to be taken after all."""
        for range_id in range_ids:
            if (preload := self.taken(range_id)) is not None:
                preload.owned.phase = Phase.GONE

    @property
    def ranges(self) -> set[int]:
        """The ranges that are preloaded, or about to be."""
        return set(self._preloads)
