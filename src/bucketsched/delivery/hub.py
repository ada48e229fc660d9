"""All worker queues of one deliver process."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Sequence

from ..core.catalog import Queue
from ..core.errors import Unavailable
from ..ports import Clock, Deliveries
from .attachment import Attachment
from .offer import NUMBER_MAX
from .outcomes import Outcomes
from .queue_feed import HubLimits, QueueFeed

log = logging.getLogger(__name__)
_POLL_S = 0.02


class WorkerHub:
    """Brings attached workers and the messages of their queues together.

    A queue is subscribed to only while a worker is attached to it here.
    """

    def __init__(
        self, deliveries: Deliveries, outcomes: Outcomes, clock: Clock, limits: HubLimits | None = None
    ) -> None:
        self._deliveries = deliveries
        self._outcomes = outcomes
        self._clock = clock
        self._limits = limits or HubLimits()
        self._feeds: dict[tuple[bytes, str], QueueFeed] = {}
        self._runs: dict[QueueFeed, asyncio.Task[None]] = {}
        self._draining = False
        # A random start: a lease of this process's predecessor at the same address must not mean anything here.
        self._numbers = itertools.count(random.SystemRandom().randrange(1, NUMBER_MAX // 2))

    def attach(self, queue: Queue, worker_id: str, max_in_flight: int, lease_s: float) -> Attachment:
        """Attaches a worker: it gets offers from now on. Raises Unavailable while the process shuts down."""
        if self._draining:
            raise Unavailable("shutting down: attach elsewhere")
        key = (queue.namespace_id, queue.name)
        feed = self._feeds.get(key)
        if feed is None:
            feed = QueueFeed(
                queue, self._deliveries, self._outcomes, self._clock, self._limits, self._numbers, self._forget
            )
            self._feeds[key] = feed
        worker = feed.attach(worker_id, max_in_flight, lease_s)
        if feed not in self._runs:
            self._runs[feed] = asyncio.create_task(feed.run(), name=f"feed {queue.namespace}/{queue.name}")
        return worker

    def queues(self) -> Sequence[Queue]:
        """The queues that are subscribed to now."""
        return [feed.queue for feed in self._feeds.values()]

    async def drain(self, grace_s: float = 5.0) -> None:
        """Offers nothing more, waits up to `grace_s` for what is at work, then ends every stream and lets go."""
        self._draining = True
        for feed in self._feeds.values():
            feed.drain()
        deadline = self._clock.monotonic() + grace_s
        while any(feed.busy for feed in self._feeds.values()) and self._clock.monotonic() < deadline:
            await self._clock.sleep(_POLL_S)
        await self._close()

    async def _close(self) -> None:
        runs = list(self._runs.values())
        for feed in list(self._feeds.values()):
            feed.close()
        if runs:
            _, late = await asyncio.wait(runs, timeout=2 * self._limits.close_s_max)
            for run in late:
                run.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _forget(self, feed: QueueFeed) -> None:
        self._runs.pop(feed, None)
        key = (feed.queue.namespace_id, feed.queue.name)
        if self._feeds.get(key) is feed:
            del self._feeds[key]
