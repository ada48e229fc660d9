"""The clock of the machine: the only place where time is read."""

from __future__ import annotations

import asyncio
import time

_NS_PER_MS = 1_000_000


class SystemClock:
    """The kernel's time, trusted to within `error_ms` milliseconds either way."""

    def __init__(self, error_ms: int = 0) -> None:
        assert error_ms >= 0, error_ms
        self._error_ns = error_ms * _NS_PER_MS

    def now_ms(self) -> int:
        """Best estimate, rounded down."""
        return time.time_ns() // _NS_PER_MS

    def earliest_ms(self) -> int:
        """It is certainly this late already."""
        return (time.time_ns() - self._error_ns) // _NS_PER_MS

    def latest_ms(self) -> int:
        """It is certainly not later than this."""
        return -(-(time.time_ns() + self._error_ns) // _NS_PER_MS)

    def monotonic(self) -> float:
        """Seconds since some instant; never goes back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """May return a little early (uvloop does) or late."""
        await asyncio.sleep(seconds)
