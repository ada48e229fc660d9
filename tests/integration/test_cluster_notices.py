"""Notices on real servers: to workers, and to a dead-letter topic that has each dead letter once, whoever dies."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from tests.acceptance import notices
from tests.acceptance.notices import fails, queue_of
from tests.acceptance.outcomes import working
from tests.nodes import Cluster, until, until_state

from bucketsched import (
    Client,
    CreatedTask,
    NewTask,
    NoticeEvent,
    NoticeRule,
    QueueInfo,
    QueueKind,
    RetryPolicy,
    TaskState,
)

pytestmark = pytest.mark.stack

LETTERS = 60
QUIET_S = 3.0
"""A topic in which nothing is new for so long has nothing more to come."""
READ_S_MAX = 60.0


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Two pollers own the ranges, so that one can die."""
    cluster = make_cluster(shards=16, ranges=8, horizon_ms=60_000, grace_ms=2_000)
    cluster.start("rest", "api,coordinator,deliver")
    for _ in range(2):
        cluster.start("poller", "poller")
    return cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    for process in cluster.processes:
        if process.code is None:
            await process.ready()
    await cluster.settled(*[process for process in cluster.processes[1:] if process.code is None])
    async with Client(cluster.processes[0].address) as client:
        yield client


async def read(cluster: Cluster, queue: QueueInfo, count: int) -> list[tuple[dict[str, bytes], bytes]]:
    """Headers and values of what a consumer of the topic sees: `count` records, and those that come soon after."""
    consumer = AIOKafkaConsumer(bootstrap_servers=cluster.kafka, isolation_level="read_committed")
    await consumer.start()
    found: list[tuple[dict[str, bytes], bytes]] = []
    try:
        places = [TopicPartition(queue.topic, number) for number in range(queue.partitions)]
        consumer.assign(places)
        await consumer.seek_to_beginning(*places)
        async with asyncio.timeout(READ_S_MAX):
            while True:
                fresh = await consumer.getmany(timeout_ms=int(QUIET_S * 1000))
                found += [(dict(record.headers), record.value) for part in fresh.values() for record in part]
                if not fresh and len(found) >= count:
                    return found
    finally:
        await consumer.stop()


async def test_each_event_is_told_to_workers(client: Client) -> None:
    await notices.each_event_is_told_to_workers(client)


async def test_failures_are_told_soon(client: Client) -> None:
    await notices.failures_are_told_soon(client)


async def test_changed_rules_are_followed(client: Client) -> None:
    await notices.changed_rules_are_followed(client)


async def test_a_dead_letter_topic_has_each_of_them_once_though_an_owner_dies(cluster: Cluster, client: Client) -> None:
    """By a rule of the queue, which a taker has to ask for also where tasks have policies of their own."""
    letters = await client.create_queue("dead-letters", QueueKind.KAFKA, partitions=2)
    rule = NoticeRule([NoticeEvent.DEAD_LETTERED], letters.name)
    queue = await queue_of(client, notices=[rule])
    async with working(client, queue, fails) as given:
        own = [None, RetryPolicy(max_attempts=1)] * (LETTERS // 2)
        new = [NewTask("t", b"payload", queue, delay=number / 20, retry=retry) for number, retry in enumerate(own)]
        tasks = [task for task in await client.create_many(new) if isinstance(task, CreatedTask)]
        await until(lambda: len(given) > LETTERS // 3, "a part of them has failed")
        await cluster.processes[1].kill()
        for task in tasks:
            await until_state(client, task, TaskState.FAILED)
    assert len(tasks) == LETTERS
    records = await read(cluster, letters, LETTERS)
    assert Counter(json.loads(value)["task_id"] for _, value in records) == Counter(task.id for task in tasks)
    assert {headers["ce_type"] for headers, _ in records} == {b"bucketsched.dead-lettered"}
    assert {headers["content-type"] for headers, _ in records} == {b"application/json"}
