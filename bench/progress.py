"""What goes on, for whoever waits: lines on stderr with the seconds since the start."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

_BEGAN = time.monotonic()


def say(text: str) -> None:
    """One line, at once."""
    print(f"{time.monotonic() - _BEGAN:6.1f} s  {text}", file=sys.stderr, flush=True)


@asynccontextmanager
async def saying(describe: Callable[[], str], interval_s: float = 3.0) -> AsyncIterator[None]:
    """Says how it stands from time to time while the block runs."""

    async def repeat() -> None:
        while True:
            await asyncio.sleep(interval_s)
            say(describe())

    repeating = asyncio.create_task(repeat())
    try:
        yield
    finally:
        repeating.cancel()
