"""SQS queues of `bucketsched dev`: a real process sends to a real server that speaks SQS, and a consumer receives."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.acceptance.test_embedded import Server
from tests.nodes import until_state
from tests.sqs_consumer import Consumer, consuming

from bucketsched import Client, CreatedTask, NewTask, QueueKind, RetryPolicy, Sqs, TaskState

pytestmark = [pytest.mark.integration, pytest.mark.stack]


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes have them from here; what a test starts has the environment of this process."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")


@pytest.fixture
async def consumer(elasticmq: str) -> AsyncIterator[Consumer]:
    async with consuming(elasticmq) as consumer:
        yield consumer


async def create(client: Client, tasks: list[NewTask]) -> list[CreatedTask]:
    return [task for task in await client.create_many(tasks) if isinstance(task, CreatedTask)]


def task_id(message: dict[str, Any]) -> str:
    return str(message["attributes"]["idempotency-key"]).partition("/")[0]


async def test_tasks_arrive_once_with_what_is_said_of_them(client: Client, consumer: Consumer) -> None:
    url = await consumer.create_queue(f"jobs-{uuid.uuid4().hex}")
    await client.create_queue("jobs", QueueKind.SQS, sqs=Sqs(url, "eu-central-1", consumer.endpoint))
    payloads = [f'{{"n": {i}}}'.encode() for i in range(48)] + [b"\xff\x00", b""]
    tasks = await create(
        client,
        [NewTask("job.ü", payload, "jobs", metadata={"n": str(i)}, delay=0.2) for i, payload in enumerate(payloads)],
    )
    messages = {task_id(message): message for message in await consumer.receive(url, len(payloads))}
    assert messages.keys() == {task.id for task in tasks}
    for i, (task, payload) in enumerate(zip(tasks, payloads, strict=True)):
        message = messages[task.id]
        attributes = message["attributes"]
        encoding = attributes.get("content-encoding")
        assert (base64.b64decode(message["body"]) if encoding == "base64" else message["body"].encode()) == (
            payload or b"-"
        )
        assert (attributes["ce_type"], attributes["ce_source"]) == ("job.ü", "/bucketsched/default/jobs")
        assert (attributes["ce_due"], attributes["ce_attempt"]) == (str(task.due_ms), "1")
        assert json.loads(attributes["bs-metadata"]) == {"n": str(i)}
        await until_state(client, task, TaskState.SUCCEEDED)


async def test_what_fails_is_tried_again(client: Client, consumer: Consumer, server: Server) -> None:
    name = f"late-{uuid.uuid4().hex}"
    sqs = Sqs(consumer.url_of(name), "eu-central-1", consumer.endpoint)
    retry = RetryPolicy(initial_delay=0.1, max_delay=0.3)
    await client.create_queue("jobs", QueueKind.SQS, sqs=sqs, retry=retry)
    [task] = await create(client, [NewTask("job", b"hello", "jobs")])
    await until_state(client, task, TaskState.RETRYING)
    url = await consumer.create_queue(name)
    [message] = await consumer.receive(url, 1)
    assert (task_id(message), message["body"]) == (task.id, "hello")
    await until_state(client, task, TaskState.SUCCEEDED)
    attempts = await client.attempts(task.id)
    assert attempts[0].error_type.startswith("Sqs."), attempts[0]
    assert "NonExistentQueue" in attempts[0].error_type or "QueueDoesNotExist" in attempts[0].error_type


async def test_large_messages_arrive(client: Client, consumer: Consumer) -> None:
    url = await consumer.create_queue(f"jobs-{uuid.uuid4().hex}")
    await client.create_queue("jobs", QueueKind.SQS, sqs=Sqs(url, "eu-central-1", consumer.endpoint))
    tasks = await create(client, [NewTask("job", b"\xff" * 60_000, "jobs", delay=0.3)] * 10)
    assert {task_id(message) for message in await consumer.receive(url, 10)} == {task.id for task in tasks}
    for task in tasks:
        await until_state(client, task, TaskState.SUCCEEDED)
        assert len(await client.attempts(task.id)) == 1


async def test_fifo_groups_keep_their_order(client: Client, consumer: Consumer) -> None:
    url = await consumer.create_queue(f"jobs-{uuid.uuid4().hex}.fifo")
    sqs = Sqs(url, "eu-central-1", consumer.endpoint, group_key="tenant")
    await client.create_queue("jobs", QueueKind.SQS, sqs=sqs)
    tenants = ["ada", "bob", "cy"]
    await create(
        client,
        [
            NewTask("job", str(i).encode(), "jobs", metadata={"tenant": tenant}, delay=0.3 + i / 100)
            for i in range(20)
            for tenant in tenants
        ],
    )
    messages = await consumer.receive(url, 60)
    for tenant in tenants:
        got = [int(message["body"]) for message in messages if message["group"] == tenant]
        assert got == list(range(20)), tenant


async def test_a_process_that_dies_after_the_answer_sends_nothing_twice_to_a_fifo_queue(
    server: Server, consumer: Consumer
) -> None:
    url = await consumer.create_queue(f"jobs-{uuid.uuid4().hex}.fifo")
    first = server.spawn("sqs.answered")
    await first.ready()
    async with Client(server.address) as client:
        await client.create_queue("jobs", QueueKind.SQS, sqs=Sqs(url, "eu-central-1", consumer.endpoint))
        [task] = await create(client, [NewTask("job", b"once", "jobs", delay=0.2)])
        assert await first.ended() != 0
        await server.start()
        await until_state(client, task, TaskState.SUCCEEDED)
    [message] = await consumer.receive(url, 1)
    assert await consumer.receive_now(url) == []
    assert task_id(message) == task.id
