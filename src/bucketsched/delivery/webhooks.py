"""All webhook queues of one deliver process: finds them in the catalog, and serves each, with or without load."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from ..core.catalog import Queue, QueueKind
from ..core.errors import Unavailable
from ..core.waiting import first_of
from ..ports import Catalog, Clock
from .hosts import Hosts
from .hub import WorkerHub
from .webhook_feed import LEASE_S, Sender, WebhookFeed

log = logging.getLogger(__name__)
WORKER_ID = "webhook"


@dataclass(frozen=True, slots=True)
class WebhooksLimits:
    """Bounds of a process's webhooks."""

    queues_max: int = 500
    """Each has a subscription, which is a consumer of Kafka in a cluster."""
    look_s: float = 2.0
    """Between two looks into the catalog, at least."""
    look_share_max: float = 0.1
    """The part of the time that is spent looking, at most."""
    page_queues: int = 500


class Webhooks:
    """Serves every webhook queue that there is, from soon after it was created. `tries`: how tries ended."""

    def __init__(
        self,
        catalog: Catalog,
        hub: WorkerHub,
        make_sender: Callable[[], Sender],
        clock: Clock,
        limits: WebhooksLimits | None = None,
    ) -> None:
        self._catalog = catalog
        self._hub = hub
        self._make_sender = make_sender
        self._clock = clock
        self._limits = limits or WebhooksLimits()
        self.hosts = Hosts(clock)
        self.tries: Counter[str] = Counter()
        self.unserved = 0
        """Queues beyond `queues_max`."""
        self._feeds: dict[tuple[bytes, str], WebhookFeed] = {}
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
            log.warning("webhook queues can't be listed: %s", error, extra={"recurring": "webhooks"})
        except Exception:  # nothing about a list is worth ending the process for
            log.exception("listing webhook queues failed")
        ended = self._clock.monotonic()
        return ended + max(self._limits.look_s, (ended - began) / self._limits.look_share_max)

    async def _found(self) -> AsyncIterator[Queue]:
        for namespace in await self._catalog.list_namespaces():
            after = ""
            while True:
                page = await self._catalog.list_queues(namespace.namespace_id, after, self._limits.page_queues)
                for queue in page:
                    if queue.kind is QueueKind.WEBHOOK:
                        yield queue
                if len(page) < self._limits.page_queues:
                    break
                after = page[-1].name

    def _take(self, queue: Queue) -> None:
        assert queue.webhook is not None, queue.name
        key = (queue.namespace_id, queue.name)
        feed = self._feeds.get(key)
        if feed is not None:
            if feed.webhook != queue.webhook:
                feed.change(queue.webhook)
        elif len(self._feeds) >= self._limits.queues_max:
            self.unserved += 1
            log.error(
                "queue %s/%s is not served: this process serves %d webhook queues already",
                queue.namespace,
                queue.name,
                len(self._feeds),
                extra={"recurring": "webhook queues"},
            )
        else:
            self._begin(key, queue, queue.webhook.concurrency)

    def _begin(self, key: tuple[bytes, str], queue: Queue, concurrency: int) -> None:
        try:
            attachment = self._hub.attach(queue, WORKER_ID, concurrency, LEASE_S)
        except Unavailable:
            return  # shutting down
        sender = self._make_sender()
        feed = WebhookFeed(queue, attachment, sender, self.hosts, self._clock, self.tries)
        self._feeds[key] = feed
        self._runs[key] = asyncio.create_task(self._run(key, feed), name=f"webhook {queue.namespace}/{queue.name}")

    async def _run(self, key: tuple[bytes, str], feed: WebhookFeed) -> None:
        try:
            await feed.run()
        except Exception:
            log.exception("webhook queue %s: serving failed; the next look begins anew", key[1])
        finally:
            del self._feeds[key], self._runs[key]
