"""Queues by name, as the dispatcher needs them: at once, from memory.

They are looked up when the first row of theirs is loaded, so that one whose first row falls due while the store is away
is known by then. What is known is read again every few seconds, behind all else, as policies may be changed.
"""

from __future__ import annotations

import asyncio
import logging

from ..core.catalog import Queue
from ..core.errors import Unavailable
from ..ports import Catalog, Clock

QUEUES_MAX = 10_000
MISSING_S = 5.0
"""How long a queue that does not exist is believed not to."""
LOOKUPS_IN_FLIGHT_MAX = 16
RETRY_S = 1.0
REFRESH_S = 3.0
"""After a refresh the next one begins so much later."""
REFRESH_PAGE = 500
REFRESH_PAGES_MAX = 40
"""Of one refresh; the next one goes on behind it."""


log = logging.getLogger(__name__)


class QueueDirectory:
    """Remembers the queues that it was asked for. Queues are never removed, and keep all but their policies."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog, self._clock = catalog, clock
        self._found: dict[tuple[bytes, str], Queue] = {}
        self._missing: dict[tuple[bytes, str], float] = {}
        self._expected: dict[tuple[bytes, str], None] = {}
        self._wake = asyncio.Event()
        self._refreshed: tuple[bytes, str] | None = None
        """What the last refresh has ended with; None: it has read everything."""

    def expect(self, namespace_id: bytes, name: str) -> None:
        """A row of this queue was loaded: it will be asked for."""
        key = (namespace_id, name)
        if key not in self._found and len(self._expected) < QUEUES_MAX:
            self._expected[key] = None
            self._wake.set()

    async def run(self) -> None:
        """Looks up what is expected, and follows what is known, until cancelled."""
        following = asyncio.create_task(self._follow())
        try:
            await self._look_up_expected()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _look_up_expected(self) -> None:
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

    # ------------------------------------------------------------ refresh

    async def _follow(self) -> None:
        """Reads again what is known, now and then, until cancelled. While that can't be done, it holds on."""
        while True:
            await self._clock.sleep(REFRESH_S)
            try:
                await self._refresh()
            except Unavailable:
                continue
            except Exception:
                log.exception("queues can't be read again", extra={"recurring": "queues"})

    async def _refresh(self) -> None:
        """By pages of the namespaces' queues, as far as there are known ones among them. Raises Unavailable."""
        last: dict[bytes, str] = {}
        for namespace_id, name in self._found:
            last[namespace_id] = max(name, last.get(namespace_id, name))
        for _ in range(REFRESH_PAGES_MAX):
            after = self._following(last)
            if after is None:
                self._refreshed = None
                return
            namespace_id, name = after
            queues = await self._catalog.list_queues(namespace_id, name, REFRESH_PAGE)
            for queue in queues:
                if (namespace_id, queue.name) in self._found:
                    self._found[namespace_id, queue.name] = queue
            at_end = len(queues) < REFRESH_PAGE
            self._refreshed = namespace_id, last[namespace_id] if at_end else queues[-1].name

    def _following(self, last: dict[bytes, str]) -> tuple[bytes, str] | None:
        """The namespace and the name behind which to read on; `last`: the last known name of each namespace."""
        if self._refreshed is not None:
            namespace_id, name = self._refreshed
            if name < last.get(namespace_id, ""):
                return namespace_id, name
        done = b"" if self._refreshed is None else self._refreshed[0]
        following = min((namespace_id for namespace_id in last if namespace_id > done), default=None)
        return None if following is None else (following, "")
