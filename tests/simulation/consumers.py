"""Deliver processes: subscriptions end when their process is not heard of; workers do their tasks, or do not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bucketsched.adapters.memory.deliveries import MemoryDeliveries, MemorySubscription
from bucketsched.core.catalog import Queue
from bucketsched.core.errors import Unavailable
from bucketsched.delivery.attachment import Attachment
from bucketsched.delivery.hub import WorkerHub
from bucketsched.ports import Delivery

from .broker import KAFKA, Broker
from .invariants import Invariants
from .loop import CURRENT, Process, VirtualLoop
from .network import Network, NotSent, Unanswered

REQUEST_S = 3.0
POLL_S = 1.5
TICK_S = 1.0
SESSION_S = 2.5
LEASE_S = 4.0


@dataclass(slots=True)
class _Open:
    subscription: MemorySubscription
    process: Process
    node: str
    queue: Queue
    heard_at: float


class ConsumerGroups:
    """The servers' side: who has subscribed, and is still heard of."""

    def __init__(self, loop: VirtualLoop, network: Network, broker: Broker) -> None:
        self._loop, self._network = loop, network
        self.deliveries = MemoryDeliveries(broker)
        self._open: list[_Open] = []

    def subscribe(self, queue: Queue, process: Process, node: str) -> asyncio.Task[MemorySubscription]:
        """See ports.Deliveries."""

        async def subscribe() -> MemorySubscription:
            for one in self._open:
                if one.process is process and one.queue == queue:
                    await one.subscription.close()  # its answer was lost, and nobody keeps it up
            subscription = await self.deliveries.subscribe(queue)
            if not self._open:
                self._loop.after(TICK_S, self._tick)
            self._open.append(_Open(subscription, process, node, queue, self._loop.time()))
            return subscription

        return self._loop.spawn(None, subscribe())

    def _tick(self) -> None:
        now = self._loop.time()
        for one in list(self._open):
            process = one.process
            if process.alive and not process.paused and not self._network.link(one.node, KAFKA).cut:
                one.heard_at = now
            elif now - one.heard_at > SESSION_S:
                self.close(one.subscription)
        if self._open:
            self._loop.after(TICK_S, self._tick)

    def close(self, subscription: MemorySubscription) -> None:
        """What was not acknowledged will come again."""
        self._open = [one for one in self._open if one.subscription is not subscription]
        self._loop.spawn(None, subscription.close())

    def poll(self, subscription: MemorySubscription, limit: int) -> asyncio.Task[list[Delivery]]:
        """What can be fetched, after a while even if that is nothing."""

        async def poll() -> list[Delivery]:
            try:
                return await asyncio.wait_for(subscription.fetch(limit), POLL_S)
            except TimeoutError:
                return []

        return self._loop.spawn(None, poll())


class SimDeliveries:
    """Implements ports.Deliveries for one process."""

    def __init__(self, groups: ConsumerGroups, network: Network, node: str) -> None:
        process = CURRENT.get()
        assert process is not None
        self._groups, self._network, self._node, self._process = groups, network, node, process

    async def subscribe(self, queue: Queue) -> SimSubscription:
        """See ports.Deliveries."""
        subscription = await self.ask(lambda: self._groups.subscribe(queue, self._process, self._node))
        return SimSubscription(self, self._groups, subscription)

    async def ask(self, effect: Callable[[], Any]) -> Any:
        """Raises Unavailable."""
        try:
            return await self._network.call(self._node, KAFKA, effect, REQUEST_S)
        except (NotSent, Unanswered) as error:
            raise Unavailable(str(error)) from error


class SimSubscription:
    """Implements ports.Subscription."""

    def __init__(self, way: SimDeliveries, groups: ConsumerGroups, server: MemorySubscription) -> None:
        self._way, self._groups, self._server = way, groups, server
        self._fetched: list[Delivery] = []
        self._polling: asyncio.Task[None] | None = None

    async def fetch(self, limit: int) -> list[Delivery]:
        """See ports.Subscription. What comes after it was given up is kept for the next."""
        while not self._fetched:
            if self._polling is None:
                self._polling = asyncio.create_task(self._poll(limit))
            await asyncio.shield(self._polling)
        found, self._fetched = self._fetched[:limit], self._fetched[limit:]
        return found

    async def _poll(self, limit: int) -> None:
        try:
            self._fetched += await self._way.ask(lambda: self._groups.poll(self._server, limit))
        finally:
            self._polling = None

    async def ack(self, tokens: Sequence[int]) -> None:
        """See ports.Subscription."""
        await self._way.ask(lambda: asyncio.ensure_future(self._server.ack(tokens)))

    async def close(self) -> None:
        """See ports.Subscription."""
        if self._polling is not None:  # nobody may be waiting for it any more
            self._polling.add_done_callback(lambda poll: poll.cancelled() or poll.exception())
        try:
            await self._way.ask(lambda: self._groups.close(self._server))
        except Unavailable:
            pass  # it is not heard of any more


class Worker:
    """Attached to one queue of one process. It does what it is offered, gives it back, or forgets it."""

    def __init__(self, hub: WorkerHub, queue: Queue, invariants: Invariants, rng: random.Random) -> None:
        self._hub, self._queue, self._invariants, self._rng = hub, queue, invariants, rng
        self.healthy: Callable[[], bool] = lambda: True
        self._doing: set[asyncio.Task[None]] = set()

    async def run(self, name: str) -> None:
        """Until cancelled. Leaves and comes back now and then."""
        while True:
            worker = self._hub.attach(self._queue, name, self._rng.choice((1, 4)), LEASE_S)
            try:
                await self._serve(worker)
            finally:
                worker.detach()
            await asyncio.sleep(self._rng.uniform(0.1, 2))

    async def _serve(self, worker: Attachment) -> None:
        offers_left = self._rng.randrange(3, 20)
        while offers_left > 0 or self.healthy():
            offers = await worker.next_offers()
            if not offers:
                return
            for offer in offers:
                offers_left -= 1
                self._invariants.offered_to_worker(offer.event)
                doing = asyncio.create_task(self._do(worker, offer.lease_id))
                self._doing.add(doing)
                doing.add_done_callback(self._doing.discard)

    async def _do(self, worker: Attachment, lease_id: int) -> None:
        fate = 0.0 if self.healthy() else self._rng.random()
        await asyncio.sleep(self._rng.uniform(0.001, 0.1 if fate < 0.8 else 1.5 * LEASE_S))
        if fate < 0.8:
            worker.ack([lease_id])
        elif fate < 0.9:
            worker.nack([lease_id], self._rng.choice((0, 1.0)))
