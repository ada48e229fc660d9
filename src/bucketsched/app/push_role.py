"""The part of the deliver role that pushes tasks to where their queues say: webhooks, SQS, mail servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, Metric

from ..config import DeliverSettings, SmtpLogin
from ..core.catalog import Queue, QueueKind
from ..core.public_address import Network
from ..delivery.attachment import Attachment
from ..delivery.hosts import Hosts
from ..delivery.hub import WorkerHub
from ..delivery.mail_feed import MailFeed
from ..delivery.outcomes import Outcomes
from ..delivery.pushed_queues import MakeFeed, PushedQueues
from ..delivery.queue_feed import HubLimits
from ..delivery.sqs_feed import SqsFeed
from ..delivery.webhook_feed import WebhookFeed
from ..ports import Catalog, Clock, Deliveries
from .metrics import PREFIX, gauge

if TYPE_CHECKING:
    from ..adapters.webhook.resolver import Lookups

LIMITS = HubLimits(held_bytes_max=32 * 1024 * 1024)
"""For each queue: what waits to be tried again, too, but never more than there are places for is fetched."""
UNACKED_MAX = 100_000
"""Of one queue: delivered behind one that is still tried. A crash has them delivered again."""
READ_AHEAD_MAX = 2_000


@dataclass(frozen=True, slots=True)
class PushReach:
    """What queues may have pushed to. `networks`: those that are not public and webhooks may allow. `sqs_endpoints`:
    those that are not AWS's and SQS queues may name. `smtp_servers`: those (host:port) that e-mail queues may name.
    None: any."""

    networks: Sequence[str] = ()
    sqs_endpoints: Sequence[str] | None = ()
    smtp_servers: Sequence[str] | None = ()
    smtp_logins: Mapping[str, SmtpLogin] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: DeliverSettings) -> PushReach:
        """As a process's settings have it."""
        return cls(settings.webhook_networks, settings.sqs_endpoints, settings.smtp_servers, settings.smtp_logins)


ANYWHERE = PushReach(("0.0.0.0/0", "::/0"), None, None)
"""For a server that only its own user reaches: queues decide."""


class PushRole:
    """Over the same messages as worker queues. Vendor libraries are loaded where there is a queue that takes them."""

    def __init__(
        self, catalog: Catalog, deliveries: Deliveries, outcomes: Outcomes, clock: Clock, reach: PushReach
    ) -> None:
        self._reach = reach
        self._networks: list[Network] = [ip_network(network) for network in reach.networks]
        self._lookups: Lookups | None = None
        self._clock = clock
        self._hosts = Hosts(clock)
        self._hub = WorkerHub(deliveries, outcomes, clock, LIMITS)
        self._webhook_tries: Counter[str] = Counter()
        self._sqs_tries: Counter[str] = Counter()
        self._mail_tries: Counter[str] = Counter()
        feeds: dict[QueueKind, MakeFeed] = {QueueKind.WEBHOOK: self._webhook_feed, QueueKind.SQS: self._sqs_feed}
        feeds[QueueKind.EMAIL] = self._mail_feed
        self.queues = PushedQueues(catalog, self._hub, feeds, clock)

    def _webhook_feed(self, queue: Queue, attachment: Attachment) -> WebhookFeed:
        from ..adapters.webhook.resolver import Lookups
        from ..adapters.webhook.sender import AiohttpSender

        if self._lookups is None:
            self._lookups = Lookups()
        sender = AiohttpSender(self._lookups, self._networks)
        return WebhookFeed(queue, attachment, sender, self._hosts, self._clock, self._webhook_tries)

    def _sqs_feed(self, queue: Queue, attachment: Attachment) -> SqsFeed:
        from ..adapters.sqs.sender import AiobotocoreSender

        sender = AiobotocoreSender(self._reach.sqs_endpoints)
        return SqsFeed(queue, attachment, sender, self._hosts, self._sqs_tries)

    def _mail_feed(self, queue: Queue, attachment: Attachment) -> MailFeed:
        from ..adapters.smtp.sender import AiosmtplibSender, Login

        logins = {
            name: Login(login.server, login.username, login.password.get_secret_value())
            for name, login in self._reach.smtp_logins.items()
        }
        sender = AiosmtplibSender(self._reach.smtp_servers, logins)
        return MailFeed(queue, attachment, sender, self._hosts, self._clock, self._mail_tries)

    async def run(self) -> None:
        """Until it is cancelled."""
        await self.queues.run()

    async def drain(self, grace_s: float) -> None:
        """Begins nothing more, and waits so long for what is under way."""
        await self._hub.drain(grace_s)
        if self._lookups is not None:
            self._lookups.close()

    def metrics(self) -> Iterable[Metric]:
        """A source for `Metrics`."""
        yield gauge("pushed_queues", "Queues that are pushed from here", self.queues.served)
        yield gauge("pushed_queues_unserved", "Pushed queues beyond what a process serves", self.queues.unserved)
        yield gauge("push_hosts_down", "Hosts that are left alone as they do not answer", self._hosts.open_circuits)
        yield _counted("webhook_tries", "Requests by how they ended", "answer", self._webhook_tries)
        yield _counted("sqs_messages", "Messages to SQS by what became of them", "answer", self._sqs_tries)
        yield _counted("mails", "Mails by what became of them", "answer", self._mail_tries)


def _counted(name: str, text: str, label: str, counts: Counter[str]) -> Metric:
    family = CounterMetricFamily(f"{PREFIX}{name}", text, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([value], count)
    return family
