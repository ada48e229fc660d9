"""SQS queues in a cluster: from the queue's topic by deliver processes to a server that speaks SQS."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from uuid import uuid4

import pytest
from tests.nodes import Cluster, until_state
from tests.sqs_consumer import Consumer, consuming

from bucketsched import Client, CreatedTask, NewTask, QueueKind, Sqs, TaskState

pytestmark = pytest.mark.stack
REGION = "eu-central-1"


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., Cluster], elasticmq: str) -> Iterator[Cluster]:
    """Two deliver processes beside the rest, with credentials, which may send to the server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
        cluster = make_cluster(shards=8, ranges=4, horizon_ms=60_000, grace_ms=2_000)
        cluster.start("rest", "api,poller,coordinator")
        for _ in range(2):
            cluster.start("deliver", "deliver", deliver__sqs_endpoints=[elasticmq])
        yield cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    for process in cluster.processes:
        await process.ready()
    await cluster.settled(cluster.processes[0])
    async with Client(cluster.processes[0].address) as client:
        yield client


@pytest.fixture
async def consumer(elasticmq: str) -> AsyncIterator[Consumer]:
    async with consuming(elasticmq) as consumer:
        yield consumer


async def create(client: Client, queue: str, delays_s: list[float]) -> list[CreatedTask]:
    created = await client.create_many([NewTask("job", b"x", queue, delay=delay) for delay in delays_s])
    return [task for task in created if isinstance(task, CreatedTask)]


async def test_all_tasks_arrive_and_have_succeeded(client: Client, consumer: Consumer) -> None:
    """FIFO, so that SQS itself leaves out what goes twice while the processes share out a new queue's partitions."""
    name = f"q-{uuid4().hex}"
    url = await consumer.create_queue(f"{name}.fifo")
    await client.create_queue(name, QueueKind.SQS, sqs=Sqs(url, REGION, consumer.endpoint))
    tasks = await create(client, name, [1 + i / 100 for i in range(200)])
    messages = await consumer.receive(url, 200)
    keys = [message["attributes"]["idempotency-key"] for message in messages]
    assert sorted(keys) == sorted(f"{task.id}/0" for task in tasks)
    for task in tasks[:10]:
        await until_state(client, task, TaskState.SUCCEEDED)


async def test_an_endpoint_that_the_server_does_not_allow_gets_nothing(client: Client, consumer: Consumer) -> None:
    name = f"q-{uuid4().hex}"
    url = await consumer.create_queue(name)
    sqs = Sqs(url, REGION, consumer.endpoint.replace("127.0.0.1", "localhost"))
    await client.create_queue(name, QueueKind.SQS, sqs=sqs)
    [task] = await create(client, name, [0.0])
    await until_state(client, task, TaskState.RETRYING)
    [attempt, *_] = await client.attempts(task.id)
    assert attempt.error_type == "Sqs.EndpointRefused"
    assert await consumer.receive_now(url) == []
