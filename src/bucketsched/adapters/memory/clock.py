"""A clock that stands still until it is told to go on."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count

START_MS = 1_750_000_000_000


class ManualClock:
    """Time for tests and simulations: `advance_ms` moves it and wakes whoever slept until then.

    The wall time may be stepped on its own (`step_ms`), as an operator or NTP would; sleepers don't notice.
    """

    def __init__(self, now_ms: int = START_MS, error_ms: int = 0) -> None:
        self._wall_offset_ms = now_ms
        self._elapsed_ms = 0
        self._error_ms = error_ms
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = count()

    def now_ms(self) -> int:
        """The time that was set."""
        return self._wall_offset_ms + self._elapsed_ms

    def earliest_ms(self) -> int:
        """now - error."""
        return self.now_ms() - self._error_ms

    def latest_ms(self) -> int:
        """now + error."""
        return self.now_ms() + self._error_ms

    def monotonic(self) -> float:
        """Seconds that this clock was advanced."""
        return self._elapsed_ms / 1000

    async def sleep(self, seconds: float) -> None:
        """Returns once the clock has been advanced by this much; at once (after other tasks) for zero or less."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        wake = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed_ms + round(seconds * 1000, 3), next(self._order), wake))
        await wake

    def advance_ms(self, ms: int) -> None:
        """Lets time pass; those whose sleep is over are woken in the order of their wake times."""
        assert ms >= 0, "time does not go back; use step_ms for the wall time"
        self._elapsed_ms += ms
        while self._sleepers and self._sleepers[0][0] <= self._elapsed_ms:
            wake = heapq.heappop(self._sleepers)[2]
            if not wake.done():
                wake.set_result(None)

    def step_ms(self, ms: int) -> None:
        """Steps the wall time, forwards or back, while no time passes."""
        self._wall_offset_ms += ms

    def next_wake_ms(self) -> int | None:
        """In how many ms (rounded up) the next sleeper wakes; None: nobody sleeps."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        if not self._sleepers:
            return None
        return max(0, -int(-(self._sleepers[0][0] - self._elapsed_ms) // 1))
