"""Names to namespaces and queues, remembered for a few seconds."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from ..core.catalog import Namespace, Queue
from ..core.errors import NotFound, Unavailable
from ..ports import Catalog, Clock

REMEMBERED_S = 5.0
ENTRIES_MAX = 10_000

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class _Remembered(Generic[Key, Value]):
    """A bounded cache of look-ups. What does not exist is looked up each time, so it is seen once it is created.

    Many callers share one look-up. What was known is served on while the catalog can't be reached.
    """

    def __init__(self, look_up: Callable[[Key], Awaitable[Value | None]], clock: Clock) -> None:
        self._look_up = look_up
        self._clock = clock
        self._known: OrderedDict[Key, tuple[Value, float]] = OrderedDict()
        self._under_way: dict[Key, asyncio.Task[Value | None]] = {}

    async def get(self, key: Key) -> Value | None:
        """The value, or None where there is none. Raises Unavailable."""
        known = self._known.get(key)
        if known and self._clock.monotonic() < known[1]:
            return known[0]
        try:
            return await self._shared(key)
        except Unavailable:
            if known is None:
                raise
            return known[0]

    async def _shared(self, key: Key) -> Value | None:
        task = self._under_way.get(key)
        if task is None:
            task = asyncio.create_task(self._fresh(key))
            self._under_way[key] = task
            task.add_done_callback(lambda done: self._ended(key, done))
        return await asyncio.shield(task)

    def _ended(self, key: Key, task: asyncio.Task[Value | None]) -> None:
        """An error is taken note of here: all who waited may be gone."""
        self._under_way.pop(key, None)
        if not task.cancelled():
            task.exception()

    async def _fresh(self, key: Key) -> Value | None:
        value = await self._look_up(key)
        self._known.pop(key, None)
        if value is not None:
            self.know(key, value)
        return value

    def know(self, key: Key, value: Value) -> None:
        """It is so from now on."""
        self._known.pop(key, None)
        self._known[key] = (value, self._clock.monotonic() + REMEMBERED_S)
        if len(self._known) > ENTRIES_MAX:
            self._known.popitem(last=False)


class Directory:
    """Finds namespaces and queues by their names."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._namespaces: _Remembered[str, Namespace] = _Remembered(catalog.get_namespace, clock)
        self._queues: _Remembered[tuple[bytes, str], Queue] = _Remembered(lambda key: catalog.get_queue(*key), clock)

    async def namespace(self, name: str) -> Namespace:
        """Raises NotFound or Unavailable."""
        found = await self._namespaces.get(name)
        if found is None:
            raise NotFound("namespace", f"{name!r} does not exist")
        return found

    async def queue(self, namespace: str, name: str) -> Queue:
        """Raises NotFound or Unavailable."""
        namespace_id = (await self.namespace(namespace)).namespace_id
        found = await self._queues.get((namespace_id, name))
        if found is None:
            raise NotFound("queue", f"{name!r} does not exist in namespace {namespace!r}")
        return found

    def learn(self, queue: Queue) -> None:
        """It was changed here. A look-up that is under way may bring it back as it was, for a few seconds."""
        self._queues.know((queue.namespace_id, queue.name), queue)
