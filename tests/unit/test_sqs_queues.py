"""Creating and showing SQS queues: by the service, over gRPC, by the client and the command line."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from click.testing import CliRunner

from bucketsched import Client, Email, QueueKind, Sqs
from bucketsched.adapters.memory.clock import ManualClock
from bucketsched.adapters.memory.store import MemoryCatalog
from bucketsched.api.info import InfoServicer
from bucketsched.api.queues import QueueServicer
from bucketsched.api.server import GrpcServer
from bucketsched.cli.queue import queue as command
from bucketsched.core.catalog import Namespace, Queue
from bucketsched.core.sqs import Sqs as Settings
from bucketsched.core.sqs_check import check_sqs
from bucketsched.core.validation import Limits
from bucketsched.encoding.queue_settings import decode_settings, encode_settings
from bucketsched.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, Unavailable
from bucketsched.service.directory import Directory
from bucketsched.service.queues import NewQueue, QueueService

URL = "https://sqs.eu-central-1.amazonaws.com/123456789012/jobs"
SETTINGS = Settings(URL, "eu-central-1")
NEW = NewQueue("jobs", QueueKind.SQS, sqs=SETTINGS)


class World:
    """The service, and its address."""

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


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.start()
    yield world
    await world.server.stop(0)


async def test_it_is_stored_with_its_settings_and_told_of(world: World) -> None:
    queue = await world.service.create(NEW)
    assert (queue.kind, queue.sqs, queue.tracks_outcomes) == (QueueKind.SQS, SETTINGS, True)
    assert world.told == [queue]
    assert await world.service.create(NEW) == queue


@pytest.mark.parametrize(
    "new", [NewQueue("q", QueueKind.SQS), NewQueue("q", QueueKind.WORKER, sqs=SETTINGS)], ids=["without", "worker"]
)
async def test_settings_and_kind_belong_together(world: World, new: NewQueue) -> None:
    with pytest.raises(InvalidArgument, match="SQS") as caught:
        await world.service.create(new)
    assert caught.value.field == "sqs"


async def test_other_settings_under_the_same_name_are_refused(world: World) -> None:
    await world.service.create(NEW)
    with pytest.raises(AlreadyExists, match="settings"):
        await world.service.create(replace(NEW, sqs=replace(SETTINGS, region="us-east-1")))


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("queue_url", {"queue_url": ""}),
        ("queue_url", {"queue_url": "jobs"}),
        ("queue_url", {"queue_url": "https:///jobs"}),
        ("queue_url", {"queue_url": "https://h/a b"}),
        ("queue_url", {"queue_url": "https://h/ä"}),
        ("queue_url", {"queue_url": "https://u:p@h/jobs"}),
        ("queue_url", {"queue_url": "https://h/jobs?x"}),
        ("queue_url", {"queue_url": "https://h:99999/jobs"}),
        ("queue_url", {"queue_url": "https://h/" + "x" * 2_048}),
        ("endpoint_url", {"endpoint_url": "file:///etc"}),
        ("region", {"region": ""}),
        ("region", {"region": "eu/../x"}),
        ("group", {"group": "g"}),
        ("group", {"group_key": "k"}),
        ("group", {"queue_url": URL + ".fifo", "group": "of two words"}),
        ("group_key", {"queue_url": URL + ".fifo", "group_key": "k" * 129}),
        ("timeout", {"timeout_ms": 99}),
        ("timeout", {"timeout_ms": 300_001}),
        ("concurrency", {"concurrency": 0}),
        ("concurrency", {"concurrency": 1_001}),
    ],
)
def test_settings_that_can_not_be_are_refused(field: str, change: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_sqs(replace(SETTINGS, **change))  # type: ignore[arg-type]
    assert caught.value.field == f"sqs.{field}"


def test_settings_that_can_be() -> None:
    check_sqs(SETTINGS)
    check_sqs(Settings(URL + ".fifo", "us-gov-west-1", "http://127.0.0.1:9324", "all:jobs", "tenant", 100, 1_000))


def test_settings_of_a_newer_version_are_not_guessed_at() -> None:
    queue = Queue(b"n" * 16, "default", "jobs", QueueKind.SQS, sqs=SETTINGS)
    assert decode_settings(QueueKind.SQS, encode_settings(queue)) == (SETTINGS, None)
    assert decode_settings(QueueKind.SQS, None) == (None, None)
    for text in ('{"queue_url": "x", "region": "y", "more": 1}', "nonsense"):
        with pytest.raises(Unavailable, match="upgrade"):
            decode_settings(QueueKind.SQS, text)


async def test_the_client_gives_and_takes_all_settings(world: World) -> None:
    sqs = Sqs(URL + ".fifo", "eu-central-1", "http://127.0.0.1:9324", "all", "tenant", 2.5, 7)
    async with Client(world.address) as client:
        created = await client.create_queue("jobs", QueueKind.SQS, sqs=sqs)
        assert (created.kind, created.sqs) == (QueueKind.SQS, sqs)
        assert (await client.get_queue("jobs")).sqs == sqs
        assert (await client.create_queue("plain", QueueKind.SQS, sqs=Sqs(URL, "eu-central-1"))).sqs == Sqs(
            URL, "eu-central-1"
        )
    stored = await world.catalog.get_queue(b"n" * 16, "jobs")
    assert stored is not None
    assert stored.sqs == Settings(sqs.queue_url, sqs.region, sqs.endpoint_url, "all", "tenant", 2_500, 7)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("queue_url", {"queue_url": 5}),
        ("region", {"region": None}),
        ("timeout", {"timeout": float("nan")}),
        ("concurrency", {"concurrency": 0}),
        ("concurrency", {"concurrency": "7"}),
    ],
)
async def test_what_the_client_can_not_send_is_named(world: World, field: str, change: dict[str, object]) -> None:
    sqs = replace(Sqs(URL, "eu-central-1"), **change)  # type: ignore[arg-type]
    async with Client(world.address) as client:
        with pytest.raises(InvalidArgument) as caught:
            await client.create_queue("jobs", QueueKind.SQS, sqs=sqs)
    assert caught.value.field == f"sqs.{field}"


async def test_the_command(world: World) -> None:
    arguments = ["queue", "create", "jobs", "--kind", "sqs", "--queue-url", URL + ".fifo", "--region", "eu-central-1"]
    arguments += ["--group-key", "tenant", "--request-timeout", "2s", "--concurrency", "5", "--output", "json"]
    run = [sys.executable, "-m", "bucketsched", *arguments, "--address", world.address]
    done = await asyncio.to_thread(subprocess.run, run, capture_output=True, text=True, check=True)
    shown = json.loads(done.stdout)
    assert (shown["kind"], shown["queue_url"], shown["group_key"]) == ("SQS", URL + ".fifo", "tenant")
    assert (shown["timeout"], shown["concurrency"]) == (2.0, 5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kind", "sqs", "--queue-url", URL], "--region"),
        (["--kind", "sqs", "--region", "eu-central-1"], "--queue-url"),
        (["--queue-url", URL], "--kind sqs"),
    ],
)
def test_options_that_do_not_fit(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(command, ["create", "jobs", *arguments])
    assert done.exit_code == 2
    assert said in done.output


async def test_settings_can_be_replaced(world: World) -> None:
    await world.service.create(NEW)
    async with Client(world.address) as client:
        changed = await client.update_settings("jobs", Sqs(URL, "us-east-1", concurrency=7))
        assert changed.sqs == (await client.get_queue("jobs")).sqs == Sqs(URL, "us-east-1", concurrency=7)
    assert [queue.sqs for queue in world.told] == [SETTINGS, replace(SETTINGS, region="us-east-1", concurrency=7)]


async def test_settings_that_do_not_fit_the_queue_are_refused(world: World) -> None:
    await world.service.create(NEW)
    await world.service.create(NewQueue("work", QueueKind.WORKER))
    async with Client(world.address) as client:
        for name, settings, error, field in (
            ("jobs", Sqs(URL + ".fifo", "eu-central-1"), FailedPrecondition, "sqs.queue_url"),
            ("jobs", Email("mx", "a@b", ["c@d"]), FailedPrecondition, "kind"),
            ("work", Sqs(URL, "eu-central-1"), FailedPrecondition, "kind"),
            ("jobs", Sqs(URL, ""), InvalidArgument, "sqs.region"),
            ("jobs", Email("mx", "a@b"), InvalidArgument, "email.to"),
            ("nobody", Sqs(URL, "eu-central-1"), NotFound, "name"),
        ):
            with pytest.raises(error) as caught:
                await client.update_settings(name, settings)
            assert caught.value.field == field
    stored = await world.catalog.get_queue(b"n" * 16, "jobs")
    assert stored is not None
    assert stored.sqs == SETTINGS
    assert len(world.told) == 1


async def test_the_command_that_replaces_them(world: World) -> None:
    await world.service.create(NEW)
    run = [sys.executable, "-m", "bucketsched", "queue", "update-sqs", "jobs", "--queue-url", URL]
    run += ["--region", "us-east-1", "--request-timeout", "3s", "--output", "json", "--address", world.address]
    done = await asyncio.to_thread(subprocess.run, run, capture_output=True, text=True, check=True)
    shown = json.loads(done.stdout)
    assert (shown["region"], shown["timeout"], shown["concurrency"]) == ("us-east-1", 3.0, 100)
