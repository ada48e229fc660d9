"""Posts the messages of one webhook queue: in the place of a worker, with a request for each offer."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from ..core import failpoints
from ..core.catalog import Queue
from ..core.errors import Unavailable
from ..core.message import TaskEvent
from ..core.retry import RetryPolicy, delay_ms, next_try_ms
from ..core.webhook import Webhook
from ..core.webhook_answer import Answer, Verdict, retry_after_ms, verdict
from ..core.webhook_request import WebhookRequest, dispatch_id, request_of
from ..ports import Clock
from .attachment import Attachment
from .hosts import Hosts
from .offer import Offer
from .outcomes import Ending, Outcome, Outcomes

log = logging.getLogger(__name__)
LEASE_S = 10 * 365 * 86_400.0
"""An offer ends with the process, or by what `WebhookFeed` makes of it, never by time."""
TRIED_MAX = 20_000
"""Messages whose tries are remembered; more than a queue can have under way."""
REPORT_RETRY = RetryPolicy(delay_ms_first=100, delay_ms_max=5_000)


class Sender(Protocol):
    """Makes the requests of one queue."""

    async def post(self, request: WebhookRequest, webhook: Webhook) -> Answer:
        """One try, over within the settings' time-out. Never raises for what the other side does."""
        ...

    async def close(self) -> None:
        """Lets go of its connections."""
        ...


@dataclass(slots=True)
class Tried:
    """What a message has behind it, here and since the process started."""

    begun: float
    """When the first try began, in seconds of the monotonic clock."""
    count: int = 0


class WebhookFeed:
    """Serves one queue until its attachment ends. `counts`: tries, by the status or trouble that they ended with."""

    def __init__(
        self,
        queue: Queue,
        attachment: Attachment,
        sender: Sender,
        hosts: Hosts,
        outcomes: Outcomes,
        clock: Clock,
        tries: Counter[str],
    ) -> None:
        assert queue.webhook is not None, queue
        self.webhook: Webhook = queue.webhook
        self._queue = queue
        self._attachment = attachment
        self._sender = sender
        self._hosts = hosts
        self._outcomes = outcomes
        self._clock = clock
        self._tries = tries
        self._tried: dict[str, Tried] = {}
        self._under_way: set[asyncio.Task[None]] = set()

    def change(self, webhook: Webhook) -> None:
        """New settings, for every try that begins from now on."""
        self.webhook = webhook
        self._attachment.resize(webhook.concurrency, LEASE_S)

    async def run(self) -> None:
        """Until the attachment ends; what is under way then is given up, and comes again."""
        try:
            while offers := await self._attachment.next_offers():
                for offer in offers:
                    task = asyncio.create_task(self._serve(offer))
                    self._under_way.add(task)
                    task.add_done_callback(self._under_way.discard)
        finally:
            for task in self._under_way:
                task.cancel()
            await asyncio.gather(*self._under_way, return_exceptions=True)
            self._attachment.detach()
            await self._sender.close()

    async def _serve(self, offer: Offer) -> None:
        """One try, and what follows from it. The offer is acknowledged or given back, whatever happens."""
        try:
            pause_ms = await self._try(offer.event)
        except Exception:
            log.exception("queue %s/%s: posting failed", self._queue.namespace, self._queue.name)
            pause_ms = delay_ms(self.webhook.retry, offer.offer_count, dispatch_id(offer.event).encode())
        if pause_ms is None:
            self._attachment.ack([offer.lease_id])
        else:
            self._attachment.nack([offer.lease_id], pause_ms / 1000)

    async def _try(self, event: TaskEvent) -> int | None:
        """The pause before the next try; None: it is over, and its outcome was taken."""
        tried: Tried | None = None

        async def request() -> Answer:
            nonlocal tried
            tried = self._begin(event)
            webhook = self.webhook
            posted = request_of(event, webhook.url, webhook.secrets, self._clock.now_ms())
            return await self._sender.post(posted, webhook)

        answer = await self._hosts.run((self._queue.namespace_id, self.webhook.host), request)
        assert tried is not None
        failpoints.reach("webhook.answered")
        self._tries[str(answer.status or answer.trouble.value)] += 1
        return await self._conclude(event, tried, answer)

    def _begin(self, event: TaskEvent) -> Tried:
        """Remembers that a try begins."""
        tried = self._tried.setdefault(dispatch_id(event), Tried(self._clock.monotonic()))
        tried.count += 1
        if len(self._tried) > TRIED_MAX:  # the oldest is one that another process serves by now
            del self._tried[next(iter(self._tried))]
        return tried

    async def _conclude(self, event: TaskEvent, tried: Tried, answer: Answer) -> int | None:
        elapsed_ms = int((self._clock.monotonic() - tried.begun) * 1000)
        ending = Ending.DELIVERED
        match verdict(answer, self.webhook):
            case Verdict.AGAIN:
                least_ms = retry_after_ms(answer.retry_after, self._clock.now_ms())
                key = dispatch_id(event).encode()
                pause_ms = next_try_ms(self.webhook.retry, tried.count, elapsed_ms, least_ms, key)
                if pause_ms is not None:
                    return pause_ms
                ending = Ending.EXHAUSTED
            case Verdict.FINAL:
                ending = Ending.REJECTED
        await self._report(event, Outcome(ending, tried.count, elapsed_ms, str(answer)))
        self._tried.pop(dispatch_id(event), None)
        return None

    async def _report(self, event: TaskEvent, outcome: Outcome) -> None:
        """Until it was taken: the request was made, and must not be made again for that."""
        failures = 0
        while True:
            try:
                return await self._outcomes.report(event, outcome)
            except Unavailable as error:
                failures += 1
                log.warning("an outcome can't be stored yet: %s", error, extra={"recurring": "outcomes"})
                pause_ms = delay_ms(REPORT_RETRY, failures, dispatch_id(event).encode())
                await self._clock.sleep(pause_ms / 1000)
