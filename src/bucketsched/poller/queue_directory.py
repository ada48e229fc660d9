"""Queues by name, as the dispatcher needs them: at once, from memory.

They are looked up when the first row of theirs is loaded, so that one whose first row falls due while the store is away
is known by then.
"""

from __future__ import annotations

import asyncio

from ..core.catalog import Queue
from ..core.errors import Unavailable
from ..ports import Catalog, Clock

QUEUES_MAX = 10_000
MISSING_S = 5.0
"""How long a queue that does not exist is believed not to."""
LOOKUPS_IN_FLIGHT_MAX = 16
RETRY_S = 1.0


class QueueDirectory:
    """Remembers the queues that it was asked for. Queues are never removed, so what was found stays right."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog, self._clock = catalog, clock
        self._found: dict[tuple[bytes, str], Queue] = {}
        self._missing: dict[tuple[bytes, str], float] = {}
        self._expected: dict[tuple[bytes, str], None] = {}
        self._wake = asyncio.Event()

    def expect(self, namespace_id: bytes, name: str) -> None:
        """A row of this queue was loaded: it will be asked for."""
        key = (namespace_id, name)
        if key not in self._found and len(self._expected) < QUEUES_MAX:
            self._expected[key] = None
            self._wake.set()

    async def run(self) -> None:
        """Looks up what is expected, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._expected:
                keys = list(self._expected)[:LOOKUPS_IN_FLIGHT_MAX]
                found = await asyncio.gather(*(self._look_up(key) for key in keys))
                if not all(found):
                    await self._clock.sleep(RETRY_S)

    async def _look_up(self, key: tuple[bytes, str]) -> bool:
        done = self.known(*key) or await self.fetch(*key)
        if done:
            self._expected.pop(key, None)
        return done

    def known(self, namespace_id: bytes, name: str) -> bool:
        """True if `get` can answer."""
        key = (namespace_id, name)
        return key in self._found or self._missing.get(key, 0) > self._clock.monotonic()

    def get(self, namespace_id: bytes, name: str) -> Queue | None:
        """The queue, or None where it does not exist. Ask `known` first."""
        return self._found.get((namespace_id, name))

    async def fetch(self, namespace_id: bytes, name: str) -> bool:
        """Looks a queue up, so that it is known afterwards. False where the catalog can't be reached."""
        try:
            queue = await self._catalog.get_queue(namespace_id, name)
        except Unavailable:
            return False
        for cache in (self._found, self._missing):
            if len(cache) >= QUEUES_MAX:
                cache.clear()
        if queue is None:
            self._missing[namespace_id, name] = self._clock.monotonic() + MISSING_S
        else:
            self._found[namespace_id, name] = queue
        return True
