"""Webhook queues in a cluster: from the queue's topic by deliver processes to a receiver."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from uuid import uuid4

import pytest
from tests.nodes import Cluster, until
from tests.webhook_receiver import Receiver, receiving

from bucketsched import Client, CreatedTask, NewTask, QueueKind, Webhook

pytestmark = pytest.mark.stack

SECRET = "whsec_" + "c2VjcmV0" * 4
LOOPBACK = ["127.0.0.0/8"]


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Two deliver processes beside the rest, which may post to this machine."""
    cluster = make_cluster(shards=8, ranges=4, horizon_ms=60_000, grace_ms=2_000)
    cluster.start("rest", "api,poller,coordinator")
    for _ in range(2):
        cluster.start("deliver", "deliver", deliver__webhook_networks=LOOPBACK)
    return cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    living = [process for process in cluster.processes if process.code is None]
    for process in living:
        await process.ready()
    await cluster.settled(cluster.processes[0])
    async with Client(cluster.processes[0].address) as client:
        yield client


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


async def queue_for(client: Client, receiver: Receiver, **settings: object) -> str:
    webhook = Webhook(receiver.url, [SECRET], networks=LOOPBACK, delay_first=0.2, delay_max=0.5, **settings)  # type: ignore[arg-type]
    return (await client.create_queue(f"h-{uuid4().hex[:8]}", QueueKind.WEBHOOK, webhook=webhook)).name


async def create(client: Client, queue: str, delays_s: list[float]) -> list[CreatedTask]:
    created = await client.create_many([NewTask("job", b"x", queue, delay=delay) for delay in delays_s])
    return [task for task in created if isinstance(task, CreatedTask)]


def tasks_of(receiver: Receiver) -> Counter[str]:
    return Counter(got.headers["ce-taskid"] for got in receiver.got)


async def test_all_tasks_are_posted_and_never_early(client: Client, receiver: Receiver) -> None:
    """At least once: while the processes share the partitions of a new queue out, some go twice, under the same key."""
    queue = await queue_for(client, receiver)
    tasks = await create(client, queue, [1 + i / 100 for i in range(300)])
    await until(lambda: len(tasks_of(receiver)) >= 300, "every task was posted")
    assert tasks_of(receiver).keys() == {task.id for task in tasks}
    due_ms = {task.id: task.due_ms for task in tasks}
    assert all(got.at_ms >= due_ms[got.headers["ce-taskid"]] for got in receiver.got)
    assert {got.headers["idempotency-key"] for got in receiver.got} == {f"{task.id}/0" for task in tasks}


async def test_one_that_is_refused_for_long_holds_up_no_other(client: Client, receiver: Receiver) -> None:
    """Nothing behind it in its partition can be committed, and all of it is delivered."""
    queue = await queue_for(client, receiver, tries_max=100)
    receiver.answers = [503] * 8
    await create(client, queue, [0.0] * 8)
    await until(lambda: len(receiver.got) >= 8, "all were refused")
    await create(client, queue, [0.0] * 400)
    await until(lambda: len(tasks_of(receiver)) >= 408, "all others were posted, too")


async def test_a_dead_deliver_process_loses_nothing(cluster: Cluster, client: Client, receiver: Receiver) -> None:
    queue = await queue_for(client, receiver)
    receiver.answers = [503] * 50
    tasks = await create(client, queue, [0.5 + i / 200 for i in range(400)])
    await until(lambda: len(tasks_of(receiver)) > 50, "some were posted")
    await cluster.processes[1].kill()
    await until(lambda: len(tasks_of(receiver)) >= 400, "every task was posted")
    refused = Counter(got.headers["ce-taskid"] for got in receiver.got[:50])
    await until(lambda: all(tasks_of(receiver)[task] > refused[task] for task in refused), "refused ones came again")
    assert tasks_of(receiver).keys() == {task.id for task in tasks}
    keys = {(got.headers["ce-taskid"], got.headers["idempotency-key"]) for got in receiver.got}
    assert len(keys) == 400


async def test_what_the_server_does_not_allow_a_queue_can_not_allow(
    cluster: Cluster, client: Client, receiver: Receiver
) -> None:
    webhook = Webhook(f"http://localhost:{receiver.port}/", networks=["::1/128", "10.0.0.0/8"])
    await client.create_queue("refused", QueueKind.WEBHOOK, webhook=webhook)
    await create(client, "refused", [0.0])
    living = [process for process in cluster.processes[1:] if process.code is None]
    await until(lambda: any("is not public" in process.err() for process in living), "the refusal is in a log")
    assert receiver.got == []
