"""Queues by name, as the dispatcher needs them: at once, from memory."""

from __future__ import annotations

from ..core.catalog import Queue
from ..core.errors import Unavailable
from ..ports import Catalog

QUEUES_MAX = 10_000


class QueueDirectory:
    """Remembers the queues that it was asked for. Queues are never removed, so what was found stays right."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._found: dict[tuple[bytes, str], Queue | None] = {}

    def known(self, namespace_id: bytes, name: str) -> bool:
        """True if `get` can answer."""
        return (namespace_id, name) in self._found

    def get(self, namespace_id: bytes, name: str) -> Queue | None:
        """The queue, or None where it does not exist. Ask `known` first."""
        return self._found[namespace_id, name]

    async def fetch(self, namespace_id: bytes, name: str) -> bool:
        """Looks a queue up, so that it is known afterwards. False where the catalog can't be reached."""
        try:
            queue = await self._catalog.get_queue(namespace_id, name)
        except Unavailable:
            return False
        if len(self._found) >= QUEUES_MAX:
            self._found.clear()
        self._found[namespace_id, name] = queue
        return True

    def forget_missing(self) -> None:
        """A queue that did not exist may exist by now."""
        self._found = {key: queue for key, queue in self._found.items() if queue is not None}
