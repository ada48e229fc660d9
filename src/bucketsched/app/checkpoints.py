"""All checkpoints of a cluster at once."""

from __future__ import annotations

import asyncio

import structlog

from ..core.checkpoint import Checkpoint, CheckpointCorrupt
from ..ports import CheckpointStore

log = structlog.get_logger(__name__)
LOADS_IN_FLIGHT_MAX = 64


async def readable_checkpoints(store: CheckpointStore, ranges: int) -> dict[int, Checkpoint]:
    """Those that are there and can be decoded: one that can't be stops its own range and nothing else.

    Raises Unavailable.
    """
    gate = asyncio.Semaphore(LOADS_IN_FLIGHT_MAX)

    async def load(range_id: int) -> Checkpoint | None:
        async with gate:
            try:
                return await store.load(range_id)
            except CheckpointCorrupt as error:
                log.critical("a checkpoint can't be read", range=range_id, error=str(error))
                return None

    found = await asyncio.gather(*(load(range_id) for range_id in range(ranges)))
    return {range_id: checkpoint for range_id, checkpoint in enumerate(found) if checkpoint is not None}
