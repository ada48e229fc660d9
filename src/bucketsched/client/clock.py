"""The SDK's only reader of time: it runs in the user's process, away from the server's clock adapter."""

from __future__ import annotations

import time


class WallClock:
    """Kernel time."""

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""
        return time.time_ns()

    def monotonic(self) -> float:
        """Seconds, for durations and deadlines."""
        return time.monotonic()
