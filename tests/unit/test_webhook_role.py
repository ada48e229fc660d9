"""The deliver role's webhooks as a process builds them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from delivery_world import NAMESPACE_ID, DeliveryWorld, KeptOutcomes, until
from tests.webhook_receiver import receiving

from bucketsched.adapters.memory.store import MemoryCatalog
from bucketsched.adapters.system_clock import SystemClock
from bucketsched.app.push_role import ANYWHERE, PushReach, PushRole
from bucketsched.config import load
from bucketsched.core.catalog import Namespace, Queue, QueueKind
from bucketsched.core.errors import ConfigError
from bucketsched.core.execution import AttemptEnd
from bucketsched.core.webhook import Webhook

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


async def test_it_posts_and_says_what_it_did() -> None:
    world, catalog = DeliveryWorld(), MemoryCatalog()
    await catalog.create_namespace(Namespace("default", NAMESPACE_ID, 0))
    outcomes = KeptOutcomes()
    role = PushRole(catalog, world.deliveries, outcomes, SystemClock(0), ANYWHERE)
    async with receiving() as receiver:
        webhook = Webhook(receiver.url, networks=("127.0.0.0/8",))
        queue = Queue(NAMESPACE_ID, "default", "jobs", QueueKind.WEBHOOK, webhook=webhook)
        await catalog.create_queue(queue)
        running = asyncio.create_task(role.run())
        receiver.answers = [204, 400]
        world.dispatch(1)
        await until(lambda: not world.undelivered)
        world.dispatch(1)
        await until(lambda: not world.undelivered)
        await role.drain(1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    samples = {(s.name, *s.labels.values()): s.value for metric in role.metrics() for s in metric.samples}
    assert samples["bucketsched_webhook_tries_total", "204"] == 1
    assert samples["bucketsched_webhook_tries_total", "400"] == 1
    assert [end for _, end in outcomes.ends()] == [AttemptEnd.SUCCEEDED, AttemptEnd.FAILED]


def test_every_metric_is_documented() -> None:
    role = PushRole(MemoryCatalog(), DeliveryWorld().deliveries, KeptOutcomes(), SystemClock(0), PushReach())
    documented = DOCUMENT.read_text()
    for metric in role.metrics():
        name = metric.name + ("_total" if metric.type == "counter" else "")
        assert f"`{name}`" in documented, name


@pytest.mark.parametrize("network", ["10.0.0.1/8", "nowhere"])
def test_a_network_that_is_none_stops_the_start(network: str) -> None:
    with pytest.raises(ConfigError, match=r"deliver\.webhook_networks"):
        load(None, {"deliver": {"webhook_networks": [network]}})


def test_vendor_libraries_are_loaded_only_where_there_is_a_queue_that_takes_them() -> None:
    modules = "bucketsched.app.push_role, bucketsched.app.embedded, bucketsched.adapters.sqs.sender"
    program = f"import sys, {modules}; print({{'aiohttp', 'aiobotocore', 'botocore', 'aiosmtplib'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
