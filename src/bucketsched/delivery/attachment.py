"""One attached worker, as the process that serves it sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .offer import Held, Offer

if TYPE_CHECKING:
    from .queue_feed import QueueFeed


class Attachment:
    """A worker's end of a queue feed: offers come out of it, acks and nacks go in.

    `leased`: what this worker has, by number. `turn`: when it was last served; breaks ties between equal loads.
    """

    def __init__(self, feed: QueueFeed, worker_id: str, max_in_flight: int, lease_s: float) -> None:
        self.worker_id = worker_id
        self.max_in_flight = max_in_flight
        self.lease_s = lease_s
        self.leased: dict[int, Held] = {}
        self.turn = 0
        self._feed = feed
        self._outbox: list[Offer] = []
        self._waiter: asyncio.Future[None] | None = None
        self._over = False

    @property
    def free(self) -> int:
        """How many more offers it may get now: none where it does not read what it has got, although leases end."""
        return self.max_in_flight - max(len(self.leased), len(self._outbox))

    @property
    def load(self) -> float:
        """Which part of its places is taken. Only asked of workers that have places."""
        return len(self.leased) / self.max_in_flight

    @property
    def over(self) -> bool:
        """True once it gets no more offers for good."""
        return self._over

    async def next_offers(self) -> list[Offer]:
        """Waits for offers; all that are ready at once. Empty: there will be no more, attach elsewhere."""
        while not self._outbox and not self._over:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        batch, self._outbox = self._outbox, []
        if len(batch) > len(self.leased):
            self._feed.changed()  # it had no room while those lay there
        return batch

    def offer(self, held: Held, offer: Offer) -> None:
        """Leases `held` to this worker. For the feed."""
        assert self.free > 0, (self.worker_id, self.max_in_flight)
        self.leased[held.number] = held
        self._outbox.append(offer)
        self._wake()

    def ack(self, lease_ids: Sequence[int]) -> None:
        """These are done. A lease that ended counts too, as long as no other worker has the message."""
        self._feed.ack(self, lease_ids)

    def nack(self, lease_ids: Sequence[int], delay_s: float = 0) -> None:
        """These are not done; to be offered again after the delay. Leases that ended are ignored."""
        self._feed.nack(self, lease_ids, delay_s)

    def resize(self, max_in_flight: int, lease_s: float) -> None:
        """Changes how much it may have at once, and for how long, from the next offer on. 0: offer nothing more."""
        self.max_in_flight, self.lease_s = max_in_flight, lease_s
        self._feed.changed()

    def detach(self) -> None:
        """The worker is gone: what it has is offered again. Calling it twice is harmless."""
        self.end()
        self._feed.detach(self)

    def end(self) -> None:
        """Ends the stream of offers. For the feed."""
        self._over = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
