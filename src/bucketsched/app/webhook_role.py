"""The part of the deliver role that posts the tasks of webhook queues."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import ip_network
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, Metric

from ..core.public_address import Network
from ..delivery.hub import WorkerHub
from ..delivery.outcomes import Outcomes
from ..delivery.queue_feed import HubLimits
from ..delivery.webhook_feed import Sender
from ..delivery.webhooks import Webhooks
from ..ports import Catalog, Clock, Deliveries
from .metrics import PREFIX, gauge

if TYPE_CHECKING:
    from ..adapters.webhook.resolver import Lookups

ANYWHERE = ("0.0.0.0/0", "::/0")
"""For a server that only its own user reaches: a queue's own networks decide."""
LIMITS = HubLimits(held_bytes_max=32 * 1024 * 1024)
"""For each queue: what waits to be tried again, too, but never more than there are places for is fetched."""
UNACKED_MAX = 100_000
"""Of one queue: delivered behind one that is still tried. A crash has them delivered again."""
READ_AHEAD_MAX = 2_000


class WebhookRole:
    """Over the same messages as worker queues. `networks`: those that are not public and queues may allow."""

    def __init__(
        self, catalog: Catalog, deliveries: Deliveries, outcomes: Outcomes, clock: Clock, networks: Sequence[str]
    ) -> None:
        self._networks: list[Network] = [ip_network(network) for network in networks]
        self._lookups: Lookups | None = None
        self._hub = WorkerHub(deliveries, outcomes, clock, LIMITS)
        self.webhooks = Webhooks(catalog, self._hub, self._make_sender, clock)

    def _make_sender(self) -> Sender:
        """aiohttp takes memory and time to load: only where there is a webhook queue."""
        from ..adapters.webhook.resolver import Lookups
        from ..adapters.webhook.sender import AiohttpSender

        if self._lookups is None:
            self._lookups = Lookups()
        return AiohttpSender(self._lookups, self._networks)

    async def run(self) -> None:
        """Until it is cancelled."""
        await self.webhooks.run()

    async def drain(self, grace_s: float) -> None:
        """Begins nothing more, and waits so long for what is under way."""
        await self._hub.drain(grace_s)
        if self._lookups is not None:
            self._lookups.close()

    def metrics(self) -> Iterable[Metric]:
        """A source for `Metrics`."""
        yield gauge("webhook_queues", "Webhook queues served here", self.webhooks.served)
        yield gauge("webhook_queues_unserved", "Webhook queues beyond what a process serves", self.webhooks.unserved)
        yield gauge("webhook_hosts_down", "Hosts that are left alone as they do not answer", self._open_circuits)
        tries = CounterMetricFamily(f"{PREFIX}webhook_tries", "Requests by how they ended", labels=["answer"])
        for answer, count in sorted(self.webhooks.tries.items()):
            tries.add_metric([answer], count)
        yield tries

    @property
    def _open_circuits(self) -> int:
        return self.webhooks.hosts.open_circuits
