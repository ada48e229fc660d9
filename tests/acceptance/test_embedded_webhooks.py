"""Webhooks of `bucketsched dev`, posted by a real process to a real server."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from tests.acceptance.test_embedded import Server
from tests.nodes import until
from tests.webhook_receiver import Received, Receiver, never, receiving

from bucketsched import Client, CreatedTask, NewTask, QueueKind, Webhook
from bucketsched.core.task import FactKind

pytestmark = pytest.mark.integration

SECRETS = ["whsec_" + base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2)]
LOOPBACK = ["127.0.0.0/8"]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


def webhook(receiver: Receiver, **settings: object) -> Webhook:
    values = {"secrets": SECRETS[:1], "networks": LOOPBACK, "delay_first": 0.05, "delay_max": 0.2} | settings
    return Webhook(receiver.url, **values)  # type: ignore[arg-type]


def verified_by(got: Received, secret: str) -> bool:
    """As a receiver does it, by the words of Standard Webhooks."""
    signed = f"{got.headers['webhook-id']}.{got.headers['webhook-timestamp']}.".encode() + got.body
    key = base64.b64decode(secret.removeprefix("whsec_"))
    wanted = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return wanted in got.headers["webhook-signature"].split(" ")


async def create(client: Client, queue: str, delays_s: list[float]) -> list[CreatedTask]:
    created = await client.create_many([NewTask("job", b"\0x", queue, delay=delay) for delay in delays_s])
    return [task for task in created if isinstance(task, CreatedTask)]


def tasks_of(receiver: Receiver) -> Counter[str]:
    return Counter(got.headers["ce-taskid"] for got in receiver.got)


async def test_tasks_are_posted_once_in_time_and_signed(client: Client, receiver: Receiver) -> None:
    await client.create_queue("hooks", QueueKind.WEBHOOK, webhook=webhook(receiver))
    tasks = await create(client, "hooks", [0.3 + i / 200 for i in range(100)])
    await until(lambda: len(receiver.got) >= 100, "every task was posted")
    assert tasks_of(receiver) == Counter(task.id for task in tasks)
    due_ms = {task.id: task.due_ms for task in tasks}
    assert all(got.at_ms >= due_ms[got.headers["ce-taskid"]] for got in receiver.got)
    assert all(verified_by(got, SECRETS[0]) for got in receiver.got)
    assert {got.body for got in receiver.got} == {b"\0x"}


async def test_a_secret_can_be_replaced_without_a_gap(client: Client, receiver: Receiver) -> None:
    created = await client.create_queue("hooks", QueueKind.WEBHOOK, webhook=webhook(receiver))
    assert created.webhook is not None
    assert (created.webhook.secret_count, list(created.webhook.secrets)) == (1, [])
    for secrets, valid in ((SECRETS, [True, True]), (SECRETS[1:], [False, True]), ([], [False, True])):
        changed = await client.update_webhook("hooks", webhook(receiver, secrets=secrets))
        assert changed.webhook is not None
        assert changed.webhook.secret_count == sum(valid)
        [task] = await create(client, "hooks", [0.1])
        await until(lambda task=task: tasks_of(receiver)[task.id], "the task was posted")  # type: ignore[misc]
        assert [verified_by(receiver.got[-1], secret) for secret in SECRETS] == valid


async def test_no_answer_shows_a_secret(client: Client, server: Server, receiver: Receiver) -> None:
    queue = await client.create_queue("hooks", QueueKind.WEBHOOK, webhook=webhook(receiver, secrets=SECRETS))
    shown = [queue, await client.get_queue("hooks"), *await client.list_queues()]
    receiver.answers = [400]
    await create(client, "hooks", [0.0])
    process = server.processes[0]
    await until(lambda: "attempt 1: Rejected: status 400" in process.err(), "the failure is in the log")
    for secret in SECRETS:
        key = secret.removeprefix("whsec_")
        assert key not in repr(shown)
        assert key not in process.err() + process.out()


async def test_what_the_queue_does_not_allow_is_not_connected_to(
    client: Client, server: Server, receiver: Receiver
) -> None:
    here = f"http://localhost:{receiver.port}/"
    await client.create_queue("hooks", QueueKind.WEBHOOK, webhook=Webhook(here))
    await create(client, "hooks", [0.0])
    await until(lambda: "is not public" in server.processes[0].err(), "the refusal is in the log")
    assert receiver.got == []


@pytest.mark.alone
async def test_a_dead_receiver_slows_no_other(client: Client, receiver: Receiver) -> None:
    async with receiving() as dead:
        dead.answers = [never] * 10_000
        await client.create_queue("dead", QueueKind.WEBHOOK, webhook=webhook(dead, timeout=1.0, concurrency=64))
        await client.create_queue("live", QueueKind.WEBHOOK, webhook=webhook(receiver))
        await create(client, "dead", [0.0] * 500)
        await until(lambda: dead.got, "the dead one was asked")
        tasks = await create(client, "live", [0.1 + i / 100 for i in range(100)])
        await until(lambda: len(receiver.got) >= 100, "every task was posted")
    due_ms = {task.id: task.due_ms for task in tasks}
    late_ms = sorted(got.at_ms - due_ms[got.headers["ce-taskid"]] for got in receiver.got)
    assert late_ms[50] < 1_000, late_ms


@pytest.mark.parametrize("place", ["webhook.answered"])
async def test_a_process_that_dies_between_answer_and_acknowledgement_posts_under_the_same_name(
    server: Server, receiver: Receiver, place: str
) -> None:
    first = server.spawn(place)
    await first.ready()
    async with Client(server.address) as client:
        await client.create_queue("hooks", QueueKind.WEBHOOK, webhook=webhook(receiver))
        await create(client, "hooks", [0.2])
        assert await first.ended() != 0
        await server.start()
        await until(lambda: len(receiver.got) >= 2, "it was posted again")
    assert len({got.headers["idempotency-key"] for got in receiver.got}) == 1
    assert len({got.headers["webhook-id"] for got in receiver.got}) == 1


async def test_what_waits_to_be_tried_again_is_tried_after_a_kill(server: Server, receiver: Receiver) -> None:
    """At its time, by the record of its first attempt: that one is not made again."""

    async def busy(got: Received) -> web.Response:
        return web.Response(status=503, headers={"Retry-After": "6"})

    def all_wait() -> bool:
        retried = sum(kind is FactKind.RETRIED for _, kind in server.journaled())
        return retried == 20 and not server.undelivered()

    first = await server.start()
    async with Client(server.address) as client:
        await client.create_queue("hooks", QueueKind.WEBHOOK, webhook=webhook(receiver))
        receiver.answers = [busy] * 20
        tasks = await create(client, "hooks", [0.0] * 20)
        await until(all_wait, "each was tried, and waits for its next attempt")
        await first.kill()
        await server.start()
        await until(lambda: len(receiver.got) >= 40, "each was tried again")
    assert tasks_of(receiver) == Counter({task.id: 2 for task in tasks})
    assert [got.headers["ce-attempt"] for got in receiver.got] == ["1"] * 20 + ["2"] * 20
    assert receiver.got[20].at - receiver.got[0].at >= 6


async def test_a_process_that_stops_waits_for_the_answer(server: Server, receiver: Receiver) -> None:
    async def slow(got: Received) -> web.Response:
        await asyncio.sleep(0.5)
        return web.Response(status=200)

    first = await server.start()
    async with Client(server.address) as client:
        receiver.answers = [slow]
        await client.create_queue("hooks", QueueKind.WEBHOOK, webhook=webhook(receiver))
        await create(client, "hooks", [0.0])
        await until(lambda: receiver.got, "it is being posted")
        assert await first.terminate() == 0
        await server.start()
        await create(client, "hooks", [0.0])
        await until(lambda: len(receiver.got) >= 2, "another was posted")
    assert max(tasks_of(receiver).values()) == 1
