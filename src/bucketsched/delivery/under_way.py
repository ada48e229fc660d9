"""What a feed of a pushed queue has under way, which ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class UnderWay:
    """Work that goes on beside its feed."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Goes on with it until it is over, or `cancel`."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def cancel(self) -> None:
        """Gives all of it up; returns once it has ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
