"""E-mail queues from their messages to mails and back: what is tried again, what is final, who is told."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from delivery_world import NAMESPACE_ID, DeliveryWorld, KeptOutcomes, quiet, until

from bucketsched.adapters.memory.clock import ManualClock
from bucketsched.adapters.memory.store import MemoryCatalog
from bucketsched.core.catalog import Namespace, Queue, QueueKind
from bucketsched.core.execution import AttemptEnd
from bucketsched.core.mail import Email
from bucketsched.core.mail_answer import MailAnswer
from bucketsched.core.mail_message import Mail
from bucketsched.delivery.attachment import Attachment
from bucketsched.delivery.hosts import Hosts
from bucketsched.delivery.hub import WorkerHub
from bucketsched.delivery.mail_feed import MailFeed
from bucketsched.delivery.pushed_queues import PushedQueues

EMAIL = Email("mx.example.org", "s@example.org", ("ada@example.org",), concurrency=3)
TAKEN = MailAnswer(250, "taken")


class FakeSender:
    """Answers what is next, else that it is taken. `held`: not before it is let go."""

    def __init__(self) -> None:
        self.mails: list[Mail] = []
        self.settings: list[Email] = []
        self.answers: list[MailAnswer | Exception] = []
        self.held: asyncio.Event | None = None

    async def send(self, mail: Mail, email: Email) -> MailAnswer:
        self.mails.append(mail)
        self.settings.append(email)
        if self.held is not None:
            await self.held.wait()
        answer = self.answers.pop(0) if self.answers else TAKEN
        if isinstance(answer, Exception):
            raise answer
        return answer


class World(DeliveryWorld):
    """A process that mails."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.catalog = MemoryCatalog()
        self.sender = FakeSender()
        self.outcomes = KeptOutcomes()
        self.hub = WorkerHub(self.deliveries, self.outcomes, self.clock)
        self.tries: Counter[str] = Counter()
        self.hosts = Hosts(self.clock)
        self.queues = PushedQueues(self.catalog, self.hub, {QueueKind.EMAIL: self.feed}, self.clock)
        self.running: asyncio.Task[None] | None = None

    def feed(self, queue: Queue, attachment: Attachment) -> MailFeed:
        return MailFeed(queue, attachment, self.sender, self.hosts, self.clock, self.tries)

    async def start(self, email: Email = EMAIL) -> Queue:
        await self.catalog.create_namespace(Namespace("default", NAMESPACE_ID, 0))
        queue = Queue(NAMESPACE_ID, "default", "jobs", QueueKind.EMAIL, email=email)
        await self.catalog.create_queue(queue)
        self.running = asyncio.create_task(self.queues.run())
        await until(lambda: self.queues.served == 1)
        return queue

    async def stop(self) -> None:
        await self.hub.drain(0)
        if self.running:
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.stop()


async def test_what_the_server_has_taken_has_succeeded(world: World) -> None:
    await world.start()
    tasks = world.dispatch(2)
    await until(lambda: not world.undelivered)
    assert sorted(world.outcomes.ends()) == sorted((task, AttemptEnd.SUCCEEDED) for task in tasks)
    assert {report.attempt.result for report in world.outcomes.reports} == {b"250: taken"}
    assert {mail.recipients for mail in world.sender.mails} == {EMAIL.to}
    assert world.tries == {"250": 2}


@pytest.mark.parametrize(
    ("answer", "kind", "final"),
    [
        (MailAnswer(451, "later"), "Email.451", False),
        (MailAnswer(550, "no"), "Email.550", True),
        (MailAnswer(535, "who", about_us=True), "Email.535", False),
        (MailAnswer(trouble="Refused", said="no"), "Email.Refused", False),
    ],
)
async def test_what_fails(world: World, answer: MailAnswer, kind: str, final: bool) -> None:
    world.sender.answers = [answer]
    await world.start()
    world.dispatch(1)
    await until(lambda: world.outcomes.reports)
    [report] = world.outcomes.reports
    assert (report.attempt.end, report.attempt.error_type, report.final) == (AttemptEnd.FAILED, kind, final)


async def test_a_task_that_names_no_recipient_fails_for_good(world: World) -> None:
    await world.start(replace(EMAIL, to_key="k"))  # every task has v there, which is no address
    world.dispatch(1)
    await until(lambda: world.outcomes.reports)
    [report] = world.outcomes.reports
    assert (report.attempt.error_type, report.final) == ("Email.NoRecipient", True)
    assert world.sender.mails == []


async def test_a_mail_that_can_not_be_made_uses_up_no_attempt(world: World) -> None:
    world.sender.answers = [RuntimeError("planned")]
    await world.start()
    world.dispatch(1)
    await until(lambda: world.sender.mails)
    await quiet()
    assert world.outcomes.reports == []
    world.clock.advance_ms(5_000)
    await until(lambda: not world.undelivered)


async def test_a_server_that_does_not_answer_is_left_alone(world: World) -> None:
    world.sender.answers = [MailAnswer(trouble="TimedOut", host_failed=True) for _ in range(50)]
    await world.start()
    for _ in range(10):
        world.dispatch(1)
        await quiet()
    assert world.hosts.open_circuits == 1
    assert len(world.outcomes.reports) == 5, "the others wait without using up attempts"


async def test_new_settings_hold_from_then_on(world: World) -> None:
    queue = await world.start()
    world.sender.held = asyncio.Event()
    world.queues.serve(replace(queue, email=replace(EMAIL, port=25, concurrency=2)))
    await quiet()
    world.dispatch(5)
    await until(lambda: world.sender.mails)
    await quiet()
    assert [email.port for email in world.sender.settings] == [25, 25]
    world.sender.held.set()
