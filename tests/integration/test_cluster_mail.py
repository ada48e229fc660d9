"""E-mail queues in a cluster: from the queue's topic by a process that delivers to servers that its settings name."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from uuid import uuid4

import pytest
from tests.mail_receiver import MailReceiver, receiving_mail
from tests.nodes import Cluster, until_state
from tools.stack.ports import free_port

from bucketsched import Client, CreatedTask, Email, NewTask, QueueKind, TaskState

pytestmark = pytest.mark.stack
PASSWORD = "of-the-cluster"


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., Cluster], port: int) -> Cluster:
    """One process with all roles, which may mail by one server and has credentials for it."""
    cluster = make_cluster(shards=8, ranges=4, horizon_ms=60_000, grace_ms=2_000)
    server = f"127.0.0.1:{port}"
    login = {"mx": {"server": server, "username": "ada", "password": PASSWORD}}
    environment = {"BUCKETSCHED_DELIVER__SMTP_LOGINS": json.dumps(login)}
    cluster.start("all", environment=environment, deliver__smtp_servers=[server])
    return cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    await cluster.processes[0].ready()
    await cluster.settled(cluster.processes[0])
    async with Client(cluster.processes[0].address) as client:
        yield client


@pytest.fixture
async def receiver(port: int) -> AsyncIterator[MailReceiver]:
    async with receiving_mail(port=port, auth=True) as receiver:
        receiver.passwords = {"ada": PASSWORD}
        yield receiver


async def create(client: Client, queue: str, count: int) -> list[CreatedTask]:
    created = await client.create_many([NewTask("job", b"hello", queue)] * count)
    return [task for task in created if isinstance(task, CreatedTask)]


async def test_tasks_are_mailed_with_the_clusters_credentials(
    cluster: Cluster, client: Client, receiver: MailReceiver, port: int
) -> None:
    queue = f"q-{uuid4().hex}"
    email = Email("127.0.0.1", "s@example.org", ["ada@example.org"], port=port, tls="none", login="mx")
    await client.create_queue(queue, QueueKind.EMAIL, email=email)
    tasks = await create(client, queue, 20)
    for task in tasks:
        await until_state(client, task, TaskState.SUCCEEDED)
    assert {got.message["Message-ID"] for got in receiver.got} == {f"<{task.id}.0@example.org>" for task in tasks}
    assert {got.login for got in receiver.got} == {"ada"}
    assert PASSWORD not in cluster.processes[0].err() + repr(await client.get_queue(queue))


async def test_a_server_that_settings_do_not_name_gets_nothing(client: Client) -> None:
    async with receiving_mail() as other:
        queue = f"q-{uuid4().hex}"
        email = Email("127.0.0.1", "s@example.org", ["ada@example.org"], port=other.port, tls="none")
        await client.create_queue(queue, QueueKind.EMAIL, email=email)
        [task] = await create(client, queue, 1)
        await until_state(client, task, TaskState.RETRYING)
        [attempt, *_] = await client.attempts(task.id)
        assert attempt.error_type == "Email.Refused"
        assert other.got == []
