"""Creating and showing e-mail queues: by the service, over gRPC, by the client and the command line."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from click.testing import CliRunner

from bucketsched import Client, Email, EmailTls, QueueKind
from bucketsched.adapters.memory.clock import ManualClock
from bucketsched.adapters.memory.store import MemoryCatalog
from bucketsched.api.info import InfoServicer
from bucketsched.api.queues import QueueServicer
from bucketsched.api.server import GrpcServer
from bucketsched.app.push_role import PushReach
from bucketsched.cli.queue import queue as command
from bucketsched.config import load
from bucketsched.core.catalog import Namespace, Queue
from bucketsched.core.mail import Email as Settings
from bucketsched.core.mail import Tls
from bucketsched.core.validation import Limits
from bucketsched.encoding.queue_settings import decode_settings, encode_settings
from bucketsched.errors import AlreadyExists, InvalidArgument, Unavailable
from bucketsched.service.directory import Directory
from bucketsched.service.queues import NewQueue, QueueService

SETTINGS = Settings("mx.example.org", "s@example.org", ("ada@example.org",))
NEW = NewQueue("mails", QueueKind.EMAIL, email=SETTINGS)


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
    assert (queue.kind, queue.email, queue.tracks_outcomes) == (QueueKind.EMAIL, SETTINGS, True)
    assert world.told == [queue]
    assert await world.service.create(NEW) == queue
    with pytest.raises(AlreadyExists, match="settings"):
        await world.service.create(replace(NEW, email=replace(SETTINGS, port=25)))


@pytest.mark.parametrize(
    ("field", "new"),
    [
        ("email", NewQueue("q", QueueKind.EMAIL)),
        ("email", NewQueue("q", QueueKind.WORKER, email=SETTINGS)),
        ("email.port", NewQueue("q", QueueKind.EMAIL, email=replace(SETTINGS, port=0))),
    ],
)
async def test_what_does_not_fit_is_refused(world: World, field: str, new: NewQueue) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await world.service.create(new)
    assert caught.value.field == field


def test_settings_of_a_newer_version_are_not_guessed_at() -> None:
    queue = Queue(b"n" * 16, "default", "mails", QueueKind.EMAIL, email=SETTINGS)
    text = encode_settings(queue)
    assert decode_settings(QueueKind.EMAIL, text) == (None, SETTINGS)
    for other in (text.replace("STARTTLS", "QUIC"), text.replace('"host"', '"hosts"'), "{}", "nonsense"):
        with pytest.raises(Unavailable, match="upgrade"):
            decode_settings(QueueKind.EMAIL, other)


async def test_the_client_gives_and_takes_all_settings(world: World) -> None:
    email = Email("mx", "s@b", ("c@d", "e@f"), "mail", "{type}!", 25, EmailTls.NONE, "ses", 2.5, 7)
    async with Client(world.address) as client:
        created = await client.create_queue("mails", QueueKind.EMAIL, email=email)
        assert (created.kind, created.email) == (QueueKind.EMAIL, email)
        assert (await client.get_queue("mails")).email == email
        plain = await client.create_queue("plain", QueueKind.EMAIL, email=Email("mx", "s@b", ["c@d"], tls="tls"))
        assert plain.email == Email("mx", "s@b", ("c@d",), tls=EmailTls.TLS)
    stored = await world.catalog.get_queue(b"n" * 16, "mails")
    assert stored is not None
    assert stored.email == Settings("mx", "s@b", ("c@d", "e@f"), "mail", "{type}!", 25, Tls.NONE, "ses", 2_500, 7)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("host", {"host": 5}),
        ("from", {"sender": None}),
        ("to", {"to": "ada@example.org"}),
        ("to", {"to": [5]}),
        ("tls", {"tls": "quic"}),
        ("tls", {"tls": None}),
        ("port", {"port": 0}),
        ("concurrency", {"concurrency": "7"}),
        ("timeout", {"timeout": float("nan")}),
    ],
)
async def test_what_the_client_can_not_send_is_named(world: World, field: str, change: dict[str, object]) -> None:
    email = replace(Email("mx", "s@b", ["c@d"]), **change)  # type: ignore[arg-type]
    async with Client(world.address) as client:
        with pytest.raises(InvalidArgument) as caught:
            await client.create_queue("mails", QueueKind.EMAIL, email=email)
    assert caught.value.field == f"email.{field}"


async def test_the_command(world: World) -> None:
    arguments = ["queue", "create", "mails", "--kind", "email", "--smtp-host", "mx", "--smtp-port", "25"]
    arguments += ["--smtp-tls", "none", "--smtp-login", "ses", "--from", "s@b", "--to", "c@d", "--to", "e@f"]
    arguments += ["--subject", "{type}", "--concurrency", "2", "--output", "json", "--address", world.address]
    run = [sys.executable, "-m", "bucketsched", *arguments]
    done = await asyncio.to_thread(subprocess.run, run, capture_output=True, text=True, check=True)
    shown = json.loads(done.stdout)
    assert (shown["kind"], shown["host"], shown["port"], shown["tls"]) == ("EMAIL", "mx", 25, "NONE")
    assert (shown["to"], shown["login"], shown["concurrency"]) == (["c@d", "e@f"], "ses", 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kind", "email", "--smtp-host", "mx"], "--from"),
        (["--kind", "email", "--from", "a@b"], "--smtp-host"),
        (["--smtp-host", "mx"], "--kind email"),
    ],
)
def test_options_that_do_not_fit(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(command, ["create", "mails", *arguments])
    assert done.exit_code == 2
    assert said in done.output


def test_credentials_are_of_the_servers_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    login = {"ses": {"server": "mx:587", "username": "ada", "password": "hidden"}}
    monkeypatch.setenv("BUCKETSCHED_DELIVER__SMTP_LOGINS", json.dumps(login))
    settings = load(None, {"deliver": {"smtp_servers": ["mx:587"]}})
    reach = PushReach.of(settings.deliver)
    assert reach.smtp_servers == ("mx:587",)
    assert reach.smtp_logins["ses"].password.get_secret_value() == "hidden"
    assert "hidden" not in repr(settings) + repr(reach)


async def test_settings_can_be_replaced(world: World) -> None:
    await world.service.create(NEW)
    run = [sys.executable, "-m", "bucketsched", "queue", "update-email", "mails", "--smtp-host", "mx2"]
    run += ["--from", "s@b", "--to", "c@d", "--output", "json", "--address", world.address]
    done = await asyncio.to_thread(subprocess.run, run, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["host"] == "mx2"
    assert [queue.email for queue in world.told] == [SETTINGS, Settings("mx2", "s@b", ("c@d",))]
    async with Client(world.address) as client:
        changed = await client.update_settings("mails", Email("mx3", "s@b", ["c@d"]))
    assert changed.email == Email("mx3", "s@b", ("c@d",))
