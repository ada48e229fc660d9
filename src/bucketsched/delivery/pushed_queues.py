"""All pushed queues of one deliver process: finds them in the catalog, and serves each, with or without load."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ..core.catalog import Queue, QueueKind
from ..core.errors import Unavailable
from ..core.waiting import first_of
from ..ports import Catalog, Clock
from .attachment import Attachment
from .hub import WorkerHub

log = logging.getLogger(__name__)
LEASE_S = 10 * 365 * 86_400.0
"""An offer ends with the process, or by what a feed makes of it, never by time."""
RESULT_CHARACTERS_MAX = 1_000
"""Of what the other side has said, in the execution log."""
BROKEN_PAUSE_S = 5.0
"""Before a request that could not even be made is tried again."""


class PushFeed(Protocol):
    """Serves one queue in the place of a worker."""

    def follow(self, queue: Queue) -> None:
        """The queue as the catalog has it now: new settings hold for every try that begins from now on."""
        ...

    async def run(self) -> None:
        """Until the attachment ends; what is under way then is given up, and comes again."""
        ...


MakeFeed = Callable[[Queue, Attachment], PushFeed]


@dataclass(frozen=True, slots=True)
class PushedLimits:
    """Bounds of a process's pushed queues."""

    queues_max: int = 500
    """Each has a subscription, which is a consumer of Kafka in a cluster."""
    look_s: float = 2.0
    """Between two looks into the catalog, at least."""
    look_share_max: float = 0.1
    """The part of the time that is spent looking, at most."""
    page_queues: int = 500


class PushedQueues:
    """Serves every queue of the kinds of `feeds` that there is, from soon after it was created."""

    def __init__(
        self,
        catalog: Catalog,
        hub: WorkerHub,
        feeds: Mapping[QueueKind, MakeFeed],
        clock: Clock,
        limits: PushedLimits | None = None,
    ) -> None:
        self._catalog = catalog
        self._hub = hub
        self._make_feed = feeds
        self._clock = clock
        self._limits = limits or PushedLimits()
        self.unserved = 0
        """Queues beyond `queues_max`."""
        self._feeds: dict[tuple[bytes, str], PushFeed] = {}
        self._runs: dict[tuple[bytes, str], asyncio.Task[None]] = {}
        self._asked: dict[tuple[bytes, str], Queue] = {}
        self._wakened = asyncio.Event()

    @property
    def served(self) -> int:
        """Queues that are served here."""
        return len(self._feeds)

    def serve(self, queue: Queue) -> None:
        """This queue was created or changed just now: there is no need to wait for the next look."""
        self._asked[queue.namespace_id, queue.name] = queue
        self._wakened.set()

    async def run(self) -> None:
        """Looks for queues again and again; ends with all feeds when it is cancelled."""
        try:
            next_look = self._clock.monotonic()
            while True:
                self._wakened.clear()
                asked, self._asked = self._asked, {}
                for queue in asked.values():
                    self._take(queue)
                if self._clock.monotonic() >= next_look:
                    next_look = await self._look()
                await first_of(self._wakened, self._clock, max(0.001, next_look - self._clock.monotonic()))
        finally:
            for run in self._runs.values():
                run.cancel()
            await asyncio.gather(*self._runs.values(), return_exceptions=True)

    async def _look(self) -> float:
        """Takes what is in the catalog; when to look again, in seconds of the monotonic clock."""
        began = self._clock.monotonic()
        self.unserved = 0
        try:
            async for queue in self._found():
                self._take(queue)
        except Unavailable as error:
            log.warning("pushed queues can't be listed: %s", error, extra={"recurring": "pushed queues"})
        except Exception:  # nothing about a list is worth ending the process for
            log.exception("listing pushed queues failed")
        ended = self._clock.monotonic()
        return ended + max(self._limits.look_s, (ended - began) / self._limits.look_share_max)

    async def _found(self) -> AsyncIterator[Queue]:
        for namespace in await self._catalog.list_namespaces():
            after = ""
            while True:
                page = await self._catalog.list_queues(namespace.namespace_id, after, self._limits.page_queues)
                for queue in page:
                    if queue.kind in self._make_feed:
                        yield queue
                if len(page) < self._limits.page_queues:
                    break
                after = page[-1].name

    def _take(self, queue: Queue) -> None:
        key = (queue.namespace_id, queue.name)
        feed = self._feeds.get(key)
        if feed is not None:
            feed.follow(queue)
        elif len(self._feeds) >= self._limits.queues_max:
            self.unserved += 1
            log.error(
                "queue %s/%s is not served: this process serves %d pushed queues already",
                queue.namespace,
                queue.name,
                len(self._feeds),
                extra={"recurring": "unserved queues"},
            )
        else:
            self._begin(key, queue)

    def _begin(self, key: tuple[bytes, str], queue: Queue) -> None:
        try:
            attachment = self._hub.attach(queue, queue.kind.lower(), queue.pushed_at_once, LEASE_S)
        except Unavailable:
            return  # shutting down
        feed = self._make_feed[queue.kind](queue, attachment)
        self._feeds[key] = feed
        self._runs[key] = asyncio.create_task(self._run(key, feed), name=f"push {queue.namespace}/{queue.name}")

    async def _run(self, key: tuple[bytes, str], feed: PushFeed) -> None:
        try:
            await feed.run()
        except Exception:
            log.exception("queue %s: serving failed; the next look begins anew", key[1])
        finally:
            del self._feeds[key], self._runs[key]
