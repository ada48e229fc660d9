"""One attached worker, as the process that serves it sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .offer import Failure, Held, Offer, Refusal

if TYPE_CHECKING:
    from .queue_feed import QueueFeed

REFUSALS_MAX = 1_000
"""That wait for a worker; of more, it is not told."""


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
        self._refusals: list[Refusal] = []
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
        offers: list[Offer] = []
        while not offers and not self._over:
            offers, _ = await self.next()
        return offers

    async def next(self) -> tuple[list[Offer], list[Refusal]]:
        """Likewise, with what is refused. Both empty: there will be no more."""
        while not self._outbox and not self._refusals and not self._over:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        offers, self._outbox = self._outbox, []
        refusals, self._refusals = self._refusals, []
        if len(offers) > len(self.leased):
            self._feed.changed()  # it had no room while those lay there
        return offers, refusals

    def offer(self, held: Held, offer: Offer) -> None:
        """Leases `held` to this worker. For the feed."""
        assert self.free > 0, (self.worker_id, self.max_in_flight)
        self.leased[held.number] = held
        self._outbox.append(offer)
        self._wake()

    def ack(self, lease_ids: Sequence[int], result: bytes = b"") -> None:
        """These attempts have succeeded. A lease that ended counts too, as long as no other worker has the message and
        nothing else was said of it."""
        self._feed.ack(self, lease_ids, result)

    def fail(self, lease_id: int, failure: Failure) -> None:
        """This attempt has failed. Leases that ended count as for `ack`."""
        self._feed.fail(self, lease_id, failure)

    def nack(self, lease_ids: Sequence[int], delay_s: float = 0) -> None:
        """These attempts were not made; to be offered again after the delay. Leases that ended are ignored."""
        self._feed.nack(self, lease_ids, delay_s)

    def extend(self, lease_ids: Sequence[int], lease_s: float) -> None:
        """These are at work: their leases end so long from now. Leases that ended are refused."""
        self._feed.extend(self, lease_ids, lease_s)

    def refuse(self, refusal: Refusal) -> None:
        """Tells the worker that what it said changes nothing. For the feed."""
        if len(self._refusals) < REFUSALS_MAX:
            self._refusals.append(refusal)
            self._wake()

    def has_read(self, lease_id: int) -> bool:
        """True if the offer was handed on to the worker."""
        return all(offer.lease_id != lease_id for offer in self._outbox)

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
