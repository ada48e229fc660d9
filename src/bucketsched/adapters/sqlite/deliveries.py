"""Worker queues served from the outbox."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ...core.catalog import Queue
from ...core.errors import Unavailable
from ...ports import Delivery
from .database import as_unavailable
from .outbox import Backlog, Outbox, Place


class SqliteDeliveries:
    """See ports.Deliveries. A queue has one subscription at a time."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    async def subscribe(self, queue: Queue) -> SqliteSubscription:
        """See ports.Deliveries."""
        return SqliteSubscription(self._outbox, (queue.namespace_id, queue.name))


class SqliteSubscription:
    """See ports.Subscription. A token is a message's number in the outbox. Raises Unavailable where there is one."""

    def __init__(self, outbox: Outbox, place: Place) -> None:
        self.backlog = Backlog()
        self._outbox = outbox
        self._place = place
        self._fetched: set[int] = set()
        self._fetching = asyncio.Lock()
        self._wakened = asyncio.Event()
        self._closed = False
        outbox.attach(place, self)

    def wake(self) -> None:
        """There may be more to fetch."""
        self._wakened.set()

    async def fetch(self, limit: int) -> list[Delivery]:
        """See ports.Subscription."""
        async with self._fetching:
            while True:
                self._wakened.clear()
                self._check_open()
                if found := self.backlog.take(limit) or await self._read(limit):
                    self._fetched.update(delivery.token for delivery in found)
                    return found
                if not self.backlog.on_disk:
                    await self._wakened.wait()

    async def _read(self, limit: int) -> list[Delivery]:
        """What only the table has, if anything. Given up half-way it changes nothing."""
        backlog = self.backlog
        if not backlog.on_disk:
            return []
        arrivals = backlog.arrivals
        found, complete = await self._outbox.read(self._place, backlog.cursor, limit)
        self._check_open()
        if complete and arrivals == backlog.arrivals:
            backlog.on_disk = False
        if found:
            backlog.cursor = found[-1].token
        return found

    async def ack(self, tokens: Sequence[int]) -> None:
        """See ports.Subscription. Tokens that were not fetched here, or are done, are passed over."""
        self._check_open()
        done = self._fetched.intersection(tokens)
        if done:
            with as_unavailable():
                await self._outbox.delete(sorted(done))
            self._fetched -= done

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the subscription is closed")

    async def close(self) -> None:
        """See ports.Subscription."""
        self.interrupt()

    def interrupt(self) -> None:
        """See outbox.Waker."""
        if not self._closed:
            self._closed = True
            self._outbox.detach(self._place)
            self.wake()
