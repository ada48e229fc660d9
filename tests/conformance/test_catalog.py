"""The contract of Catalog."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import uuid4

from store_adapters import CONSTANTS, namespace_id

from bucketsched.core.catalog import Namespace, Queue, QueueKind
from bucketsched.core.mail import Email, Tls
from bucketsched.core.retry import RetryPolicy
from bucketsched.core.sqs import Sqs
from bucketsched.core.webhook import Webhook
from bucketsched.ports import Catalog


def new_namespace(name: str | None = None) -> Namespace:
    return Namespace(name or f"tenant-{uuid4()}", namespace_id(), 1_740_000_000_001)


def new_queue(owner: bytes, name: str, topic: str = "emails") -> Queue:
    return Queue(owner, "tenant", name, QueueKind.KAFKA, topic, 12, 3, True, 1_740_000_000_002)


async def test_constants_are_what_was_given_at_migration(catalog: Catalog) -> None:
    assert await catalog.constants() == CONSTANTS


async def test_unknown_names_are_none(catalog: Catalog) -> None:
    assert await catalog.get_namespace(f"tenant-{uuid4()}") is None
    assert await catalog.get_queue(namespace_id(), "q") is None
    assert await catalog.list_queues(namespace_id(), "", 10) == []


async def test_a_namespace_is_read_back_unchanged(catalog: Catalog) -> None:
    namespace = new_namespace()
    assert await catalog.create_namespace(namespace) == namespace
    assert await catalog.get_namespace(namespace.name) == namespace


async def test_the_first_namespace_of_a_name_stays(catalog: Catalog) -> None:
    first = new_namespace()
    await catalog.create_namespace(first)
    assert await catalog.create_namespace(new_namespace(first.name)) == first
    assert await catalog.get_namespace(first.name) == first


async def test_many_create_one_namespace_and_agree(catalog: Catalog) -> None:
    name = f"tenant-{uuid4()}"
    stored = await asyncio.gather(*(catalog.create_namespace(new_namespace(name)) for _ in range(4)))
    assert len(set(stored)) == 1
    assert await catalog.get_namespace(name) == stored[0]


async def test_namespaces_are_listed_by_name(catalog: Catalog) -> None:
    made = [new_namespace() for _ in range(3)]
    for namespace in made:
        await catalog.create_namespace(namespace)
    listed = await catalog.list_namespaces()
    assert [n.name for n in listed] == sorted(n.name for n in listed)
    assert set(made) <= set(listed)


async def test_a_queue_is_read_back_unchanged(catalog: Catalog) -> None:
    owner = namespace_id()
    kafka = new_queue(owner, "mails")
    worker = Queue(owner, "tenant", "work", QueueKind.WORKER)
    assert await catalog.create_queue(kafka) == kafka
    assert await catalog.create_queue(worker) == worker
    assert await catalog.get_queue(owner, "mails") == kafka
    assert await catalog.get_queue(owner, "work") == worker


def webhook_queue(owner: bytes, name: str = "hooks") -> Queue:
    webhook = Webhook(
        "https://example.org/ä?b", ("whsec_a", "whsec_b"), 7, 8, RetryPolicy(1, 2, 3, 4), (404,), ("::/0",)
    )
    return Queue(owner, "tenant", name, QueueKind.WEBHOOK, "t", 1, 1, created_ms=1_740_000_000_003, webhook=webhook)


async def test_a_webhook_queue_is_read_back_with_all_its_settings(catalog: Catalog) -> None:
    owner = namespace_id()
    queue = webhook_queue(owner)
    assert await catalog.create_queue(queue) == queue
    assert await catalog.get_queue(owner, "hooks") == queue
    assert await catalog.list_queues(owner, "", 10) == [queue]


async def test_the_settings_of_a_webhook_queue_can_be_replaced(catalog: Catalog) -> None:
    owner = namespace_id()
    queue, other = webhook_queue(owner), webhook_queue(owner, "other")
    await catalog.create_queue(queue)
    await catalog.create_queue(other)
    changed = replace(queue, webhook=Webhook("https://example.net/", ("whsec_c",)))
    await catalog.update_webhook(replace(changed, topic="another", partitions=9))
    assert await catalog.get_queue(owner, "hooks") == changed
    assert await catalog.get_queue(owner, "other") == other


async def test_replacing_settings_makes_no_queue_and_changes_no_other_kind(catalog: Catalog) -> None:
    owner = namespace_id()
    worker = Queue(owner, "tenant", "work", QueueKind.WORKER)
    await catalog.create_queue(worker)
    for name in ("work", "nobody"):
        await catalog.update_webhook(webhook_queue(owner, name))
    assert await catalog.list_queues(owner, "", 10) == [worker]


async def test_an_sqs_queue_is_read_back_with_all_its_settings(catalog: Catalog) -> None:
    owner = namespace_id()
    sqs = Sqs("https://sqs.eu-central-1.amazonaws.com/1/ä.fifo", "eu-central-1", "http://sqs:9324", "g", "k", 7, 8)
    queue = Queue(owner, "tenant", "far", QueueKind.SQS, "t", 1, 1, created_ms=1_740_000_000_004, sqs=sqs)
    assert await catalog.create_queue(queue) == queue
    assert await catalog.get_queue(owner, "far") == queue
    assert await catalog.list_queues(owner, "", 10) == [queue]


async def test_an_email_queue_is_read_back_with_all_its_settings(catalog: Catalog) -> None:
    owner = namespace_id()
    email = Email("mx", "a@b", ("c@d", "e@f"), "key", "ä {type}", 25, Tls.NONE, "login", 7, 8)
    queue = Queue(owner, "tenant", "mails", QueueKind.EMAIL, "t", 1, 1, created_ms=1_740_000_000_005, email=email)
    assert await catalog.create_queue(queue) == queue
    assert await catalog.get_queue(owner, "mails") == queue
    assert await catalog.list_queues(owner, "", 10) == [queue]


async def test_settings_can_be_replaced_within_a_kind(catalog: Catalog) -> None:
    owner = namespace_id()
    sqs = Queue(owner, "tenant", "far", QueueKind.SQS, sqs=Sqs("https://h/q", "eu-central-1"))
    email = Queue(owner, "tenant", "mails", QueueKind.EMAIL, email=Email("mx", "a@b", ("c@d",)))
    worker = Queue(owner, "tenant", "work", QueueKind.WORKER)
    for queue in (sqs, email, worker):
        await catalog.create_queue(queue)
    changed = replace(sqs, sqs=Sqs("https://h/other", "us-east-1"))
    await catalog.update_settings(replace(changed, topic="another", partitions=9))
    rewritten = replace(email, email=Email("mx2", "a@b", ("c@d",)))
    await catalog.update_settings(rewritten)
    for name in ("work", "nobody", "mails"):
        await catalog.update_settings(replace(changed, name=name))
    assert await catalog.list_queues(owner, "", 10) == [changed, rewritten, worker]


async def test_the_first_queue_of_a_name_stays(catalog: Catalog) -> None:
    owner = namespace_id()
    first = new_queue(owner, "mails")
    await catalog.create_queue(first)
    assert await catalog.create_queue(replace(first, topic="other", kind=QueueKind.WORKER, partitions=1)) == first
    assert await catalog.get_queue(owner, "mails") == first


async def test_queues_of_two_namespaces_do_not_meet(catalog: Catalog) -> None:
    mine, theirs = new_queue(namespace_id(), "mails", "a"), new_queue(namespace_id(), "mails", "b")
    await catalog.create_queue(mine)
    await catalog.create_queue(theirs)
    assert await catalog.get_queue(mine.namespace_id, "mails") == mine
    assert await catalog.list_queues(theirs.namespace_id, "", 10) == [theirs]


async def test_queues_are_listed_by_name_in_pages(catalog: Catalog) -> None:
    owner = namespace_id()
    names = ["b", "a.low", "a", "zz", "Z", "a_b"]
    for name in names:
        await catalog.create_queue(new_queue(owner, name))
    found: list[str] = []
    while page := await catalog.list_queues(owner, found[-1] if found else "", 4):
        assert len(page) <= 4
        found += [queue.name for queue in page]
    assert found == sorted(names)
