"""Creating, showing and changing webhook queues: by the service, over gRPC, by the client and the command line."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import click
import grpc
import pytest
from click.testing import CliRunner

from bucketsched import Client, QueueKind, Webhook
from bucketsched.adapters.memory.clock import ManualClock
from bucketsched.adapters.memory.store import MemoryCatalog
from bucketsched.api.info import InfoServicer
from bucketsched.api.queues import QueueServicer
from bucketsched.api.server import GrpcServer
from bucketsched.cli.webhook import new_secret, webhook_of, webhook_options
from bucketsched.core.catalog import Namespace, Queue
from bucketsched.core.retry import RetryPolicy
from bucketsched.core.validation import Limits
from bucketsched.core.webhook import Webhook as Settings
from bucketsched.core.webhook import key_of
from bucketsched.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from bucketsched.service.directory import Directory
from bucketsched.service.queues import NewQueue, QueueService
from bucketsched.stubs.v1 import queue_pb2, queue_pb2_grpc

SECRET, OTHER = "whsec_" + "c2VjcmV0" * 4, "whsec_" + "b3RoZXJz" * 4
SETTINGS = Settings("https://example.org/hook", (SECRET,))
NEW = NewQueue("hooks", QueueKind.WEBHOOK, webhook=SETTINGS)


class World:
    """The service, and a client over gRPC."""

    def __init__(self) -> None:
        self.catalog = MemoryCatalog()
        self.clock = ManualClock()
        self.service = QueueService(self.catalog, Directory(self.catalog, self.clock), None, self.clock)
        self.told: list[Queue] = []
        self.service.on_pushed = self.told.append

    async def start(self) -> None:
        await self.catalog.create_namespace(Namespace("default", b"n" * 16, 0))
        info = InfoServicer("1", "embedded", 4, Limits(), self.clock).service()
        self.server = GrpcServer("127.0.0.1:0", [QueueServicer(self.service).service(), info])
        self.address = await self.server.start()

    async def stored(self) -> Queue:
        queue = await self.catalog.get_queue(b"n" * 16, "hooks")
        assert queue is not None
        return queue


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.start()
    yield world
    await world.server.stop(0)


@pytest.fixture
async def client(world: World) -> AsyncIterator[Client]:
    async with Client(world.address) as client:
        yield client


# ---------------------------------------------------------------- the service


async def test_it_is_stored_with_its_settings_and_told_of(world: World) -> None:
    queue = await world.service.create(NEW)
    assert (queue.kind, queue.webhook) == (QueueKind.WEBHOOK, SETTINGS)
    assert world.told == [queue]
    assert await world.service.create(NEW) == queue


@pytest.mark.parametrize(
    ("field", "new"),
    [
        ("webhook", NewQueue("q", QueueKind.WEBHOOK)),
        ("webhook", NewQueue("q", QueueKind.WORKER, webhook=SETTINGS)),
        ("webhook.url", NewQueue("q", QueueKind.WEBHOOK, webhook=Settings("https://127.0.0.1/"))),
        ("topic", NewQueue("q", QueueKind.WEBHOOK, webhook=SETTINGS, topic="t")),
    ],
)
async def test_what_does_not_fit_is_refused(world: World, field: str, new: NewQueue) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await world.service.create(new)
    assert caught.value.field == field
    assert world.told == []


async def test_other_settings_under_the_same_name_are_refused_without_showing_them(world: World) -> None:
    await world.service.create(NEW)
    with pytest.raises(AlreadyExists) as caught:
        await world.service.create(replace(NEW, webhook=replace(SETTINGS, secrets=(OTHER,))))
    assert caught.value.field == "webhook"
    for secret in (SECRET, OTHER):
        assert secret.removeprefix("whsec_") not in str(caught.value)


async def test_settings_are_replaced_and_secrets_kept_unless_given(world: World) -> None:
    await world.service.create(NEW)
    changed = await world.service.update_webhook("default", "hooks", Settings("https://example.net/"))
    assert changed.webhook == Settings("https://example.net/", (SECRET,))
    assert await world.stored() == changed
    changed = await world.service.update_webhook("default", "hooks", replace(SETTINGS, secrets=(OTHER,)))
    assert changed.webhook == replace(SETTINGS, secrets=(OTHER,))
    assert world.told[-1] == changed


async def test_only_webhook_queues_can_be_changed_so(world: World) -> None:
    await world.service.create(NewQueue("jobs", QueueKind.WORKER))
    with pytest.raises(FailedPrecondition):
        await world.service.update_webhook("default", "jobs", SETTINGS)
    with pytest.raises(NotFound):
        await world.service.update_webhook("default", "nobody", SETTINGS)
    with pytest.raises(InvalidArgument):
        await world.service.update_webhook("default", "jobs", Settings(""))


# ---------------------------------------------------------------- over gRPC


async def test_what_is_left_out_has_its_default(world: World, client: Client) -> None:
    queue = await client.create_queue("hooks", QueueKind.WEBHOOK, webhook=Webhook("https://example.org/hook", [SECRET]))
    assert queue.webhook == Webhook("https://example.org/hook", secret_count=1)
    assert (await world.stored()).webhook == SETTINGS
    async with grpc.aio.insecure_channel(world.address) as channel:
        stub = queue_pb2_grpc.QueueServiceStub(channel)
        plain = queue_pb2.Webhook(url="https://example.org/hook", secrets=[SECRET])
        wanted = queue_pb2.Queue(name="hooks", kind=queue_pb2.QUEUE_KIND_WEBHOOK, webhook=plain)
        answer = await stub.CreateQueue(queue_pb2.CreateQueueRequest(queue=wanted))
    assert answer.queue.webhook.timeout.seconds == 15
    assert list(answer.queue.webhook.retried_statuses) == [408, 425, 429]


async def test_everything_that_is_given_arrives(world: World, client: Client) -> None:
    given = Webhook(
        "https://example.org/", [SECRET, OTHER], 1.5, 7, 3, 0.25, 2.5, 60, [404, 409], ["10.0.0.0/8", "fd00::/8"]
    )
    queue = await client.create_queue("hooks", QueueKind.WEBHOOK, webhook=given)
    assert (await world.stored()).webhook == Settings(
        "https://example.org/", (SECRET, OTHER), 1_500, 7, RetryPolicy(3, 250, 2_500, 60_000), (404, 409),
        ("10.0.0.0/8", "fd00::/8"),
    )  # fmt: skip
    shown = replace(given, secrets=(), secret_count=2, retried_statuses=(404, 409), networks=("10.0.0.0/8", "fd00::/8"))
    assert queue.webhook == shown
    assert (await client.get_queue("hooks")).webhook == shown
    assert [listed.webhook for listed in await client.list_queues()] == [shown]


async def test_no_answer_has_a_secret_in_it(world: World) -> None:
    async with grpc.aio.insecure_channel(world.address) as channel:
        stub = queue_pb2_grpc.QueueServiceStub(channel)
        settings = queue_pb2.Webhook(url="https://example.org/", secrets=[SECRET, OTHER])
        wanted = queue_pb2.Queue(name="hooks", kind=queue_pb2.QUEUE_KIND_WEBHOOK, webhook=settings)
        answers = [
            await stub.CreateQueue(queue_pb2.CreateQueueRequest(queue=wanted)),
            await stub.GetQueue(queue_pb2.GetQueueRequest(name="hooks")),
            await stub.ListQueues(queue_pb2.ListQueuesRequest()),
            await stub.UpdateWebhook(queue_pb2.UpdateWebhookRequest(name="hooks", webhook=settings)),
        ]
    for answer in answers:
        assert b"example.org" in answer.SerializeToString()
        for secret in (SECRET, OTHER):
            assert secret.removeprefix("whsec_").encode() not in answer.SerializeToString()


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("webhook.url", {"url": 5}),
        ("webhook.secrets", {"secrets": SECRET}),
        ("webhook.networks", {"networks": [5]}),
        ("webhook.timeout", {"timeout": float("nan")}),
        ("webhook.concurrency", {"concurrency": 0}),
        ("webhook.tries_max", {"tries_max": 2**40}),
        ("webhook.retried_statuses", {"retried_statuses": ["404"]}),
        ("webhook.delay_max", {"delay_max": -1.0}),
        ("webhook.elapsed_max", {"elapsed_max": 10.0**7}),
    ],
)
async def test_what_the_client_can_not_send_is_named(client: Client, field: str, settings: dict[str, object]) -> None:
    webhook = Webhook(**{"url": "https://example.org/"} | settings)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument) as caught:
        await client.create_queue("hooks", QueueKind.WEBHOOK, webhook=webhook)
    assert caught.value.field == field


def test_the_clients_settings_do_not_show_secrets() -> None:
    assert SECRET not in repr(Webhook("https://example.org/", [SECRET]))


# ---------------------------------------------------------------- the command line


@click.command()
@webhook_options
def said(**given: object) -> None:
    webhook = webhook_of(**given)  # type: ignore[arg-type]
    click.echo(repr((webhook, webhook and webhook.secrets)))


def test_options(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.write_text(f"{SECRET}\n{OTHER}\n")
    arguments = ["--url", "https://example.org/", "--secret-file", str(secrets), "--request-timeout", "2s"]
    arguments += ["--concurrency", "3", "--tries-max", "4", "--delay-first", "100ms", "--delay-max", "1m"]
    arguments += ["--elapsed-max", "1h", "--retry-status", "404", "--allow-network", "10.0.0.0/8"]
    wanted = Webhook("https://example.org/", (SECRET, OTHER), 2.0, 3, 4, 0.1, 60.0, 3600.0, (404,), ("10.0.0.0/8",))
    assert CliRunner().invoke(said, arguments).output.strip() == repr((wanted, (SECRET, OTHER)))
    assert CliRunner().invoke(said, []).output.strip() == "(None, None)"
    assert CliRunner().invoke(said, ["--concurrency", "3"]).exit_code == 2


async def test_commands(world: World, tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.write_text(SECRET)

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "bucketsched", "queue", *arguments, "--address", world.address]
        return subprocess.run([*command, "--output", "json"], capture_output=True, text=True, check=True).stdout

    url = ("--url", "https://example.org/")
    created = await asyncio.to_thread(
        run, "create", "hooks", "--kind", "webhook", *url, "--secret-file", str(secrets), "--tries-max", "3"
    )
    changed = await asyncio.to_thread(run, "update-webhook", "hooks", *url, "--concurrency", "2")
    assert (json.loads(created)["kind"], json.loads(created)["secrets"], json.loads(created)["tries_max"]) == (
        "WEBHOOK", 1, 3,
    )  # fmt: skip
    assert (json.loads(changed)["secrets"], json.loads(changed)["tries_max"], json.loads(changed)["concurrency"]) == (
        1, 10, 2,
    )  # fmt: skip
    assert (await world.stored()).webhook == replace(SETTINGS, url="https://example.org/", concurrency=2)
    assert SECRET not in created + changed


def test_a_fresh_secret_is_one() -> None:
    assert len(key_of(new_secret())) == 32
    assert new_secret() != new_secret()
