"""Mails the messages of one queue: in the place of a worker, with a mail for each offer."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Protocol

from ..core import failpoints
from ..core.catalog import Queue
from ..core.mail import Email
from ..core.mail_answer import MailAnswer
from ..core.mail_message import Mail, mail_of
from ..ports import Clock
from .attachment import Attachment
from .hosts import Hosts
from .offer import Failure, Offer
from .pushed_queues import BROKEN_PAUSE_S, LEASE_S, RESULT_CHARACTERS_MAX
from .under_way import UnderWay

log = logging.getLogger(__name__)
NO_RECIPIENT = "Email.NoRecipient"


class MailSender(Protocol):
    """Hands mails to servers."""

    async def send(self, mail: Mail, email: Email) -> MailAnswer:
        """One mail, over within the settings' time-out. Never raises for what the other side does."""
        ...


class MailFeed:
    """Serves one queue until its attachment ends. `tries`: mails, by what became of them."""

    def __init__(
        self,
        queue: Queue,
        attachment: Attachment,
        sender: MailSender,
        hosts: Hosts,
        clock: Clock,
        tries: Counter[str],
    ) -> None:
        assert queue.email is not None, queue
        self.email: Email = queue.email
        self._queue = queue
        self._attachment = attachment
        self._sender = sender
        self._hosts = hosts
        self._clock = clock
        self._tries = tries
        self._under_way = UnderWay()

    def follow(self, queue: Queue) -> None:
        """See PushFeed."""
        assert queue.email is not None, queue
        if queue.email != self.email:
            self.email = queue.email
            self._attachment.resize(queue.email.concurrency, LEASE_S)

    async def run(self) -> None:
        """See PushFeed."""
        try:
            while offers := await self._attachment.next_offers():
                for offer in offers:
                    self._under_way.begin(self._serve(offer))
        finally:
            await self._under_way.cancel()
            self._attachment.detach()

    async def _serve(self, offer: Offer) -> None:
        """One mail, and what it says of the attempt. Where none was made the offer is given back."""
        try:
            mail = mail_of(offer.event, self.email, self._clock.now_ms())
            if not mail.recipients:
                self._refuse(offer)
                return
            answer = await self._mailed(mail)
        except Exception:
            log.exception("queue %s/%s: mailing failed", self._queue.namespace, self._queue.name)
            self._attachment.nack([offer.lease_id], BROKEN_PAUSE_S)
            return
        failpoints.reach("mail.answered")
        self._conclude(offer, answer)

    async def _mailed(self, mail: Mail) -> MailAnswer:
        async def request() -> MailAnswer:
            return await self._sender.send(mail, self.email)

        return await self._hosts.run((self._queue.namespace_id, self.email.server), request)

    def _refuse(self, offer: Offer) -> None:
        self._tries["no recipient"] += 1
        said = f"metadata {self.email.to_key!r} must be an address, or the queue must name one"
        self._attachment.fail(offer.lease_id, Failure(NO_RECIPIENT, said, final=True))

    def _conclude(self, offer: Offer, answer: MailAnswer) -> None:
        self._tries[answer.kind] += 1
        told = str(answer)[:RESULT_CHARACTERS_MAX]
        if answer.sent:
            self._attachment.ack([offer.lease_id], told.encode())
        else:
            self._attachment.fail(offer.lease_id, Failure(f"Email.{answer.kind}", told, final=answer.final))
