"""What a recorder, a process of its own, has written down so far."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress

from .lateness import Arrival
from .processes import Child, ChildFailed

READY_S_MAX = 30.0
QUIET_S = 0.7
SILENCE_S_MAX = 3_600.0


class Recording:
    """Follows a recorder. Made by `of`; to be closed before the recorder is ended."""

    def __init__(self, child: Child) -> None:
        self.arrivals: list[Arrival] = []
        self._child = child
        self._came: set[str] = set()
        self._more = asyncio.Event()
        self._following = asyncio.create_task(self._follow())

    @classmethod
    async def of(cls, child: Child) -> Recording:
        """Returns once the recorder receives. Raises ChildFailed."""
        await child.line(READY_S_MAX)
        return cls(child)

    async def _follow(self) -> None:
        try:
            while True:
                arrivals = [Arrival(*item) for item in await self._child.line(SILENCE_S_MAX)]
                self.arrivals += arrivals
                self._came.update(arrival.task_id for arrival in arrivals)
                self._more.set()
        finally:
            self._more.set()

    @property
    def count(self) -> int:
        """Arrivals so far."""
        return len(self.arrivals)

    def forget(self) -> None:
        """What came so far was a warm-up."""
        self.arrivals.clear()

    async def settle(self, seconds: float) -> None:
        """Waits for what should not come. Raises ChildFailed if the recorder ends."""
        await asyncio.wait([self._following], timeout=seconds)
        if self._following.done():
            self._following.result()

    def missing(self, task_ids: Collection[str]) -> int:
        """How many of these have not come yet."""
        return len(set(task_ids) - self._came)

    async def quiet(self) -> None:
        """Returns when nothing has come for QUIET_S. Raises ChildFailed if the recorder ends."""
        before = -1
        while before != self.count:
            before = self.count
            await self.settle(QUIET_S)

    async def all_of(self, task_ids: Collection[str], timeout_s: float) -> bool:
        """Waits for them; False if some have not come in time. Raises ChildFailed if the recorder ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.missing(task_ids):
                    self._more.clear()
                    if self._following.done():
                        self._following.result()
                    await self._more.wait()
        return not self.missing(task_ids)

    async def close(self) -> None:
        """Stops following."""
        self._following.cancel()
        with suppress(asyncio.CancelledError, ChildFailed):
            await self._following
