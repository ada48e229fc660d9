"""Posts the messages of one webhook queue: in the place of a worker, with a request for each offer."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Protocol

from ..core import failpoints
from ..core.catalog import Queue
from ..core.message import TaskEvent
from ..core.webhook import Webhook
from ..core.webhook_answer import Answer, Verdict, retry_after_ms, verdict
from ..core.webhook_request import WebhookRequest, request_of
from ..ports import Clock
from .attachment import Attachment
from .hosts import Hosts
from .offer import Failure, Offer
from .pushed_queues import BROKEN_PAUSE_S, LEASE_S, RESULT_CHARACTERS_MAX
from .under_way import UnderWay

log = logging.getLogger(__name__)
REJECTED = "Rejected"
"""The type of the error where the receiver's answer is final, or its address must not be connected to."""


class Sender(Protocol):
    """Makes the requests of one queue."""

    async def post(self, request: WebhookRequest, webhook: Webhook) -> Answer:
        """One try, over within the settings' time-out. Never raises for what the other side does."""
        ...

    async def close(self) -> None:
        """Lets go of its connections."""
        ...


class WebhookFeed:
    """Serves one queue until its attachment ends. `counts`: tries, by the status or trouble that they ended with."""

    def __init__(
        self,
        queue: Queue,
        attachment: Attachment,
        sender: Sender,
        hosts: Hosts,
        clock: Clock,
        tries: Counter[str],
    ) -> None:
        assert queue.webhook is not None, queue
        self.webhook: Webhook = queue.webhook
        self._queue = queue
        self._attachment = attachment
        self._sender = sender
        self._hosts = hosts
        self._clock = clock
        self._tries = tries
        self._under_way = UnderWay()

    def follow(self, queue: Queue) -> None:
        """See PushFeed."""
        assert queue.webhook is not None, queue
        if queue.webhook != self.webhook:
            self.webhook = queue.webhook
            self._attachment.resize(queue.webhook.concurrency, LEASE_S)

    async def run(self) -> None:
        """See PushFeed."""
        try:
            while offers := await self._attachment.next_offers():
                for offer in offers:
                    self._under_way.begin(self._serve(offer))
        finally:
            await self._under_way.cancel()
            self._attachment.detach()
            await self._sender.close()

    async def _serve(self, offer: Offer) -> None:
        """One request, and what it says of the attempt. Where none was made the offer is given back."""
        try:
            answer = await self._request(offer.event)
        except Exception:
            log.exception("queue %s/%s: posting failed", self._queue.namespace, self._queue.name)
            self._attachment.nack([offer.lease_id], BROKEN_PAUSE_S)
            return
        failpoints.reach("webhook.answered")
        self._tries[str(answer.status or answer.trouble.value)] += 1
        self._conclude(offer, answer)

    async def _request(self, event: TaskEvent) -> Answer:
        async def request() -> Answer:
            webhook = self.webhook
            posted = request_of(event, webhook.url, webhook.secrets, self._clock.now_ms())
            return await self._sender.post(posted, webhook)

        return await self._hosts.run((self._queue.namespace_id, self.webhook.host), request)

    def _conclude(self, offer: Offer, answer: Answer) -> None:
        told = str(answer)[:RESULT_CHARACTERS_MAX]
        match verdict(answer, self.webhook):
            case Verdict.DONE:
                self._attachment.ack([offer.lease_id], told.encode())
            case Verdict.FINAL:
                self._attachment.fail(offer.lease_id, Failure(REJECTED, told, final=True))
            case Verdict.AGAIN:
                least_ms = retry_after_ms(answer.retry_after, self._clock.now_ms())
                kind = str(answer.status or answer.trouble.name.lower())
                failure = Failure(f"Webhook.{kind}", told, pause_s_least=least_ms / 1000)
                self._attachment.fail(offer.lease_id, failure)
