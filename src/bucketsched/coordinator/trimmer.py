"""Trims the journal: what no checkpoint needs any more, and what is older than its retention, is forgotten.

Of a lane's partition everything stays that is

- younger than the retention, so that `fsck` has what it compares;
- at or behind the lowest checkpoint that points there: a taker reads from that record on, and its hash is what proves
  that the journal still is the one it was;
- at or behind the first record within the retention, *as found before the checkpoints were read*. A lane that takes a
  range while they are being read writes a checkpoint that ends with the lane's last record, which this pass may not
  see; but that record is no older than the one that was found. So a partition without any record within the retention
  is left alone: a lane that lives idly may yet point to its last one.

A dead lane's partition has to be trimmed too, so this is no lane's work. Every process with the coordinator role does
it, elected or not: a trimmer that is late, or does what another one did, only trims less. So it needs no election.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from ..core.checkpoint import Checkpoint, CheckpointCorrupt
from ..core.cluster import ClusterConstants
from ..core.errors import Unavailable
from ..ports import CheckpointStore, Clock, Journal

log = structlog.get_logger(__name__)
INTERVAL_S = 600.0
STEPS_MAX = 10_000
"""Calls that trim one lane in one pass."""


class JournalTrimmer:
    """One per process with the coordinator role. `journal` is only read and trimmed through, never written."""

    def __init__(
        self,
        journal: Journal,
        checkpoints: CheckpointStore,
        constants: ClusterConstants,
        clock: Clock,
        retention_ms: int,
    ) -> None:
        self._journal, self._checkpoints, self._constants = journal, checkpoints, constants
        self._clock, self._retention_ms = clock, retention_ms

    async def run(self) -> None:
        """Trims now and then, until cancelled."""
        while True:
            try:
                await self.trim_once()
            except Unavailable as error:
                log.warning("trimming the journal waits", error=str(error))
            await self._clock.sleep(INTERVAL_S)

    async def trim_once(self) -> int:
        """One pass over all lanes; how many of them were trimmed. Raises Unavailable."""
        old_ms = self._clock.earliest_ms() - self._retention_ms
        lanes = range(self._constants.lanes)
        first_kept = {lane: await self._journal.find(lane, old_ms) for lane in lanes}
        found = [await self._checkpoint(range_id) for range_id in range(self._constants.ranges)]
        checkpoints = [checkpoint for checkpoint in found if checkpoint is not None]
        if len(checkpoints) < len(found) or any(c.journal != self._journal.name for c in checkpoints):
            log.warning("the journal is not trimmed: a range has no checkpoint in it")
            return 0
        trimmed = 0
        for lane, first in first_kept.items():
            if first is not None:
                trimmed += await self._trim(lane, min(first, _needed_from(lane, checkpoints, first)))
        return trimmed

    async def _checkpoint(self, range_id: int) -> Checkpoint | None:
        try:
            return await self._checkpoints.load(range_id)
        except CheckpointCorrupt:
            return None

    async def _trim(self, lane: int, before: int) -> bool:
        start = await self._journal.start(lane)
        if before <= start:
            return False
        for _ in range(STEPS_MAX):
            if not await self._journal.trim(lane, before):
                break
        log.info("journal trimmed", lane=lane, start=start, before=before)
        return True


def _needed_from(lane: int, checkpoints: Sequence[Checkpoint], otherwise: int) -> int:
    """The lowest offset of a lane that a checkpoint points to. One that points to none yet (-1) needs all of it."""
    return min((c.applied_offset for c in checkpoints if c.lane == lane), default=otherwise)
