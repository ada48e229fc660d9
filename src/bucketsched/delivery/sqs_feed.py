"""Sends the messages of one queue to SQS: in the place of a worker, several offers with a request.

A standard queue's requests go side by side. A FIFO queue has lanes: messages of a group are always in the same one, and
a lane has one request under way at a time, so that SQS gets them in the order in which they came.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Sequence
from typing import Protocol
from zlib import crc32

from ..core import failpoints
from ..core.catalog import Queue
from ..core.sqs import Sqs
from ..core.sqs_answer import Sent, SqsAnswer
from ..core.sqs_message import MESSAGE_BYTES_MAX, SqsMessage, batches, message_of
from .attachment import Attachment
from .hosts import Hosts
from .offer import Failure, Offer
from .pushed_queues import BROKEN_PAUSE_S, LEASE_S, RESULT_CHARACTERS_MAX
from .under_way import UnderWay

log = logging.getLogger(__name__)
LANES_MAX = 8
TOO_LARGE = "Sqs.TooLarge"


class SqsSender(Protocol):
    """Makes the requests of one queue."""

    async def send(self, messages: Sequence[SqsMessage], sqs: Sqs) -> SqsAnswer:
        """One request, over within the settings' time-out. Never raises for what the other side does."""
        ...

    async def close(self) -> None:
        """Lets go of its connections."""
        ...


class SqsFeed:
    """Serves one queue until its attachment ends. `tries`: messages, by what became of them."""

    def __init__(
        self,
        queue: Queue,
        attachment: Attachment,
        sender: SqsSender,
        hosts: Hosts,
        tries: Counter[str],
    ) -> None:
        assert queue.sqs is not None, queue
        self.sqs: Sqs = queue.sqs
        self._queue = queue
        self._attachment = attachment
        self._sender = sender
        self._hosts = hosts
        self._tries = tries
        self._lanes: dict[int, deque[tuple[int, SqsMessage]]] = {}
        self._under_way = UnderWay()

    def follow(self, queue: Queue) -> None:
        """See PushFeed."""
        assert queue.sqs is not None, queue
        if queue.sqs != self.sqs:
            self.sqs = queue.sqs
            self._attachment.resize(queue.sqs.concurrency, LEASE_S)

    async def run(self) -> None:
        """See PushFeed."""
        try:
            while offers := await self._attachment.next_offers():
                self._take(offers)
        finally:
            await self._under_way.cancel()
            self._attachment.detach()
            await self._sender.close()

    def _take(self, offers: list[Offer]) -> None:
        made = [(offer.lease_id, message_of(offer.event, self.sqs)) for offer in offers]
        fitting = [(lease, message) for lease, message in made if self._fits(lease, message)]
        if self.sqs.fifo:
            for lease, message in fitting:
                self._line_up(lease, message)
        else:
            for batch in batches(fitting):
                self._under_way.begin(self._send(batch))

    def _fits(self, lease: int, message: SqsMessage) -> bool:
        if message.size <= MESSAGE_BYTES_MAX:
            return True
        self._tries["too large"] += 1
        said = f"{message.size} bytes with attributes, and SQS takes {MESSAGE_BYTES_MAX}"
        self._attachment.fail(lease, Failure(TOO_LARGE, said, final=True))
        return False

    def _line_up(self, lease: int, message: SqsMessage) -> None:
        number = crc32(message.group.encode()) % LANES_MAX
        waiting = self._lanes.get(number)
        if waiting is not None:
            waiting.append((lease, message))
            return
        self._lanes[number] = deque([(lease, message)])
        self._under_way.begin(self._work_off(number))

    async def _work_off(self, number: int) -> None:
        lane = self._lanes[number]
        try:
            while lane:
                batch = next(batches(list(lane)))
                for _ in batch:
                    lane.popleft()
                await self._send(batch)
        finally:
            del self._lanes[number]

    async def _send(self, batch: Sequence[tuple[int, SqsMessage]]) -> None:
        """One request, and what it says of the attempts. Where none was made the offers are given back."""
        try:
            answer = await self._request([message for _, message in batch])
        except Exception:
            log.exception("queue %s/%s: sending failed", self._queue.namespace, self._queue.name)
            self._attachment.nack([lease for lease, _ in batch], BROKEN_PAUSE_S)
            return
        failpoints.reach("sqs.answered")
        if answer.whole and len(batch) > 1 and answer.sent[0].final:
            for each in batch:  # one message is at fault, and the others need not fail with it
                await self._send([each])
            return
        for (lease, _), sent in zip(batch, answer.sent, strict=True):
            self._conclude(lease, sent)

    async def _request(self, messages: Sequence[SqsMessage]) -> SqsAnswer:
        async def request() -> SqsAnswer:
            return await self._sender.send(messages, self.sqs)

        return await self._hosts.run((self._queue.namespace_id, self.sqs.host), request)

    def _conclude(self, lease: int, sent: Sent) -> None:
        self._tries[sent.code or "sent"] += 1
        told = str(sent)[:RESULT_CHARACTERS_MAX]
        if not sent.code:
            self._attachment.ack([lease], told.encode())
        else:
            self._attachment.fail(lease, Failure(f"Sqs.{sent.code}", told, final=sent.final))
