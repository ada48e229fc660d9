"""Deliveries of the messages that a `MemoryJournalWorld` has committed, for the simulation and for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ...core.catalog import Queue
from ...core.errors import Unavailable
from ...ports import Delivery
from .journal import MemoryJournalWorld

_Place = tuple[bytes, str]


class MemoryDeliveries:
    """What deliver processes of one world share: which messages are done. See ports.Deliveries.

    A token is a message's place in the world's `committed`.
    """

    def __init__(self, world: MemoryJournalWorld) -> None:
        self.world = world
        self.done: set[int] = set()
        self._open: dict[_Place, MemorySubscription] = {}
        world.on_commit.append(self._wake)

    async def subscribe(self, queue: Queue) -> MemorySubscription:
        """See ports.Deliveries."""
        place = (queue.namespace_id, queue.name)
        if not self.world.reachable or place in self._open:
            raise Unavailable(f"no subscription of queue {queue.name} now")
        self._open[place] = subscription = MemorySubscription(self, place)
        return subscription

    def forget(self, place: _Place) -> None:
        """The subscription of a queue is closed."""
        self._open.pop(place, None)

    def _wake(self) -> None:
        for subscription in self._open.values():
            subscription.wake()


class MemorySubscription:
    """See ports.Subscription."""

    def __init__(self, deliveries: MemoryDeliveries, place: _Place) -> None:
        self._deliveries = deliveries
        self._place = place
        self._cursor = 0
        self._fetched: set[int] = set()
        self._wakened = asyncio.Event()
        self._closed = False

    def wake(self) -> None:
        """There may be more to fetch."""
        self._wakened.set()

    async def fetch(self, limit: int) -> list[Delivery]:
        """See ports.Subscription."""
        while True:
            self._wakened.clear()
            self._check_open()
            if found := self._next(limit):
                return found
            await self._wakened.wait()

    def _next(self, limit: int) -> list[Delivery]:
        committed = self._deliveries.world.committed
        found: list[Delivery] = []
        while self._cursor < len(committed) and len(found) < limit:
            token, self._cursor = self._cursor, self._cursor + 1
            message = committed[token].message
            if token not in self._deliveries.done and self._place == (message.queue.namespace_id, message.queue.name):
                self._fetched.add(token)
                found.append(Delivery(token, message.headers, message.value))
        return found

    async def ack(self, tokens: Sequence[int]) -> None:
        """See ports.Subscription."""
        self._check_open()
        done = self._fetched.intersection(tokens)
        self._fetched -= done
        self._deliveries.done |= done

    def _check_open(self) -> None:
        if self._closed or not self._deliveries.world.reachable:
            raise Unavailable("the subscription is closed" if self._closed else "the queue can't be reached")

    async def close(self) -> None:
        """See ports.Subscription."""
        if not self._closed:
            self._closed = True
            self._deliveries.forget(self._place)
            self.wake()
