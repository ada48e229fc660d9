"""The patience of a start: the servers that a node needs may be booting as well, as after a power cut."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from ..core.errors import Unavailable
from ..ports import Clock

log = structlog.get_logger(__name__)
RETRY_S = 1.0
SAY_S = 5.0
"""How often it is said what is waited for."""

Result = TypeVar("Result")


class Patience:
    """Of one start, which waits no longer than `seconds` in all. Wrong settings are no reason to wait."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self._began = clock.monotonic()

    async def wait(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """What `work` returns once it succeeds. Raises what it raises: Unavailable only when the time is over."""
        said = float("-inf")
        while True:
            try:
                return await work()
            except Unavailable as error:
                now = self._clock.monotonic()
                left_s = self._seconds - (now - self._began)
                if left_s <= 0:
                    raise
                if now - said >= SAY_S:
                    log.warning("the start waits for a server", error=str(error), seconds_left=round(left_s))
                    said = now
            await self._clock.sleep(min(RETRY_S, left_s))
