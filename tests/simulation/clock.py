"""A node's clock: off within its error bound, and with timers that wake early or late."""

from __future__ import annotations

import asyncio
import math
import random

from .loop import VirtualLoop

EPOCH_MS = 1_750_000_000_000
"""World time at loop time 0; a run may begin later in that minute."""
EARLY_S_MAX = 0.0015
EARLY_PROBABILITY = 0.2


class WorldTime:
    """The one trusted clock."""

    def __init__(self, loop: VirtualLoop, begins_ms: int) -> None:
        self._loop, self.begins_ms = loop, begins_ms

    def at_ms(self, loop_s: float) -> float:
        """What it is at a time of the loop."""
        return self.begins_ms + loop_s * 1000

    def ms(self) -> float:
        """Milliseconds since the Unix epoch."""
        return self.begins_ms + self._loop.time() * 1000


class NodeClock:
    """Implements ports.Clock. `offset_ms` is how far it is ahead, at most `error_ms` either way."""

    def __init__(self, loop: VirtualLoop, time: WorldTime, rng: random.Random, offset_ms: float, error_ms: int) -> None:
        self._loop, self._time, self._rng = loop, time, rng
        self.offset_ms, self.error_ms = offset_ms, error_ms
        self._booted = loop.time() - rng.uniform(0, 1000)

    def now_ms(self) -> int:
        """See ports.Clock."""
        return math.floor(self._time.ms() + self.offset_ms)

    def earliest_ms(self) -> int:
        """See ports.Clock."""
        return math.floor(self._time.ms() + self.offset_ms - self.error_ms)

    def latest_ms(self) -> int:
        """See ports.Clock."""
        return math.ceil(self._time.ms() + self.offset_ms + self.error_ms)

    def monotonic(self) -> float:
        """See ports.Clock."""
        return self._loop.time() - self._booted

    async def sleep(self, seconds: float) -> None:
        """See ports.Clock."""
        if seconds > EARLY_S_MAX and self._rng.random() < EARLY_PROBABILITY:
            seconds -= self._rng.uniform(0, EARLY_S_MAX)
        await asyncio.sleep(seconds)
