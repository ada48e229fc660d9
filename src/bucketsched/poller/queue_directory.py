"""Queues by name, as the dispatcher needs them: at once, from memory."""

from __future__ import annotations

from ..core.catalog import Queue
from ..core.errors import Unavailable
from ..ports import Catalog, Clock

QUEUES_MAX = 10_000
MISSING_S = 5.0
"""How long a queue that does not exist is believed not to."""


class QueueDirectory:
    """Remembers the queues that it was asked for. Queues are never removed, so what was found stays right."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog, self._clock = catalog, clock
        self._found: dict[tuple[bytes, str], Queue] = {}
        self._missing: dict[tuple[bytes, str], float] = {}

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
