"""Webhook queues from their messages to requests and back: what is tried again, what is over, and who is told."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from delivery_world import NAMESPACE_ID, DeliveryWorld, KeptOutcomes, quiet, until

from bucketsched.adapters.memory.clock import ManualClock
from bucketsched.adapters.memory.store import MemoryCatalog
from bucketsched.core.catalog import Namespace, Queue, QueueKind
from bucketsched.core.errors import Unavailable
from bucketsched.core.execution import AttemptEnd
from bucketsched.core.webhook import Webhook
from bucketsched.core.webhook_answer import Answer, Trouble
from bucketsched.core.webhook_request import WebhookRequest
from bucketsched.delivery.attachment import Attachment
from bucketsched.delivery.hosts import Hosts
from bucketsched.delivery.hub import WorkerHub
from bucketsched.delivery.pushed_queues import MakeFeed, PushedLimits, PushedQueues
from bucketsched.delivery.webhook_feed import WebhookFeed

SECRET = "whsec_" + "c2VjcmV0" * 4
WEBHOOK = Webhook("https://example.org/x", (SECRET,), concurrency=4)
JOBS = Queue(NAMESPACE_ID, "default", "jobs", QueueKind.WEBHOOK, webhook=WEBHOOK)
FINE, BUSY, SILENCE = Answer(204), Answer(503), Answer(trouble=Trouble.TIMEOUT)


class FakeSender:
    """Answers as a test says: by task, else what is next, else with 204. Where `held` is set, not before it is over."""

    def __init__(self) -> None:
        self.posted: list[WebhookRequest] = []
        self.answers: list[Answer | Exception] = []
        self.by_id: dict[str, Answer] = {}
        self.held: asyncio.Event | None = None
        self.at_once = 0
        self.at_once_max = 0

    async def post(self, request: WebhookRequest, webhook: Webhook) -> Answer:
        self.posted.append(request)
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        try:
            if self.held is not None:
                await self.held.wait()
        finally:
            self.at_once -= 1
        name = request.headers["webhook-id"]
        answer = self.by_id.get(name) or (self.answers.pop(0) if self.answers else FINE)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        pass

    def count(self, task: str) -> int:
        return sum(request.headers["ce-taskid"] == task for request in self.posted)


class World(DeliveryWorld):
    """A process that delivers webhooks."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.catalog = MemoryCatalog()
        self.sender = FakeSender()
        self.outcomes = KeptOutcomes()
        self.hub = WorkerHub(self.deliveries, self.outcomes, self.clock)
        self.tries: Counter[str] = Counter()
        self.hosts = Hosts(self.clock)
        self.feeds: dict[QueueKind, MakeFeed] = {QueueKind.WEBHOOK: self.feed}
        limits = PushedLimits(queues_max=2)
        self.webhooks = PushedQueues(self.catalog, self.hub, self.feeds, self.clock, limits)
        self.running: asyncio.Task[None] | None = None

    def feed(self, queue: Queue, attachment: Attachment) -> WebhookFeed:
        return WebhookFeed(queue, attachment, self.sender, self.hosts, self.clock, self.tries)

    def start(self) -> None:
        self.running = asyncio.create_task(self.webhooks.run())

    async def stop(self) -> None:
        await self.hub.drain(0)
        if self.running:
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)

    async def later(self, ms: int, step_ms: int = 100) -> None:
        """Lets time pass in steps, everybody following."""
        for _ in range(0, ms, step_ms):
            await quiet(20)
            self.clock.advance_ms(step_ms)
        await quiet(20)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.catalog.create_namespace(Namespace("default", NAMESPACE_ID, 0))
    await world.catalog.create_queue(JOBS)
    yield world
    await world.stop()


async def started(world: World) -> None:
    world.start()
    await until(lambda: world.webhooks.served == 1)


async def test_a_message_is_posted_and_acknowledged(world: World) -> None:
    await started(world)
    tasks = world.dispatch(3)
    await until(lambda: not world.undelivered)
    assert [request.headers["ce-taskid"] for request in world.sender.posted] == tasks
    assert {request.body for request in world.sender.posted} == {b"hello"}
    assert world.outcomes.ends() == [(task, AttemptEnd.SUCCEEDED) for task in tasks]
    assert {report.attempt.result for report in world.outcomes.reports} == {b"status 204"}


async def test_nothing_is_acknowledged_before_the_answer(world: World) -> None:
    world.sender.held = asyncio.Event()
    await started(world)
    world.dispatch(1)
    await until(lambda: world.sender.posted)
    await world.later(1_000)
    assert world.undelivered == 1
    world.sender.held.set()
    await until(lambda: not world.undelivered)


@pytest.mark.parametrize(
    ("answer", "error_type", "final", "pause_ms"),
    [
        (BUSY, "Webhook.503", False, 0),
        (SILENCE, "Webhook.timeout", False, 0),
        (Answer(429, "30"), "Webhook.429", False, 30_000),
        (Answer(404), "Rejected", True, 0),
    ],
)
async def test_an_answer_says_whether_and_when_there_may_be_another_attempt(
    world: World, answer: Answer, error_type: str, final: bool, pause_ms: int
) -> None:
    world.sender.answers = [answer]
    await started(world)
    [task] = world.dispatch(1)
    await until(lambda: not world.undelivered)
    await world.later(60_000)
    assert len(world.sender.posted) == 1
    assert world.outcomes.ends() == [(task, AttemptEnd.FAILED)]
    [report] = world.outcomes.reports
    assert (report.attempt.error_type, report.final, report.pause_ms_least) == (error_type, final, pause_ms)
    assert report.attempt.error_message == str(answer)


async def test_no_more_are_under_way_than_the_queue_says(world: World) -> None:
    world.sender.held = asyncio.Event()
    await started(world)
    world.dispatch(30)
    await quiet()
    assert world.sender.at_once == 4
    world.sender.held.set()
    await until(lambda: not world.undelivered)
    assert world.sender.at_once_max == 4


async def test_while_the_host_is_dead_no_attempts_are_used_up(world: World) -> None:
    """The breaker's probes are attempts of some; the others wait untried, and little is fetched."""
    world.sender.answers = [SILENCE] * 8
    await started(world)
    world.dispatch(40)
    await world.later(100_000)
    assert world.undelivered == 0
    assert len(world.sender.posted) == 40
    ends = [end for _, end in world.outcomes.ends()]
    assert (ends.count(AttemptEnd.FAILED), ends.count(AttemptEnd.SUCCEEDED)) == (8, 32)


async def test_an_outcome_that_is_not_taken_is_not_acknowledged_and_nothing_is_posted_again(world: World) -> None:
    world.outcomes.held = True
    await started(world)
    world.dispatch(1)
    await world.later(20_000)
    assert (len(world.sender.posted), world.undelivered) == (1, 1)
    world.outcomes.let_go()
    await world.later(10_000)
    assert (len(world.sender.posted), world.undelivered) == (1, 0)


async def test_a_try_that_breaks_is_made_again(world: World) -> None:
    world.sender.answers = [RuntimeError("a bug")]
    await started(world)
    world.dispatch(1)
    await world.later(6_000)
    assert (len(world.sender.posted), world.undelivered) == (2, 0)
    assert [end for _, end in world.outcomes.ends()] == [AttemptEnd.SUCCEEDED]


async def test_what_was_under_way_when_the_process_ended_comes_again(world: World) -> None:
    world.sender.held = asyncio.Event()
    await started(world)
    world.dispatch(2)
    await until(lambda: len(world.sender.posted) == 2)
    await world.stop()
    assert world.undelivered == 2
    world.hub = WorkerHub(world.deliveries, world.outcomes, world.clock)
    world.webhooks = PushedQueues(world.catalog, world.hub, world.feeds, world.clock)
    world.sender.held = None
    await started(world)
    await until(lambda: not world.undelivered)
    names = [request.headers["idempotency-key"] for request in world.sender.posted]
    assert sorted(names[:2]) == sorted(names[2:])


# ---------------------------------------------------------------- which queues


async def test_a_queue_that_is_created_later_is_found(world: World) -> None:
    await started(world)
    await world.catalog.create_queue(replace(JOBS, name="more"))
    await world.later(3_000)
    assert world.webhooks.served == 2


async def test_one_that_is_told_of_is_served_at_once(world: World) -> None:
    await started(world)
    world.webhooks.serve(replace(JOBS, name="more"))
    await until(lambda: world.webhooks.served == 2)


async def test_queues_of_other_kinds_are_left_alone(world: World) -> None:
    await world.catalog.create_queue(Queue(NAMESPACE_ID, "default", "a", QueueKind.WORKER))
    await world.catalog.create_queue(Queue(NAMESPACE_ID, "default", "z", QueueKind.KAFKA, "t"))
    await started(world)
    await world.later(5_000)
    assert world.webhooks.served == 1


async def test_beyond_the_bound_queues_are_not_served_and_that_is_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("k", "l", "m"):
        await world.catalog.create_queue(replace(JOBS, name=name))
    world.start()
    await until(lambda: world.webhooks.unserved == 2)
    assert world.webhooks.served == 2
    assert "is not served" in caplog.text


async def test_pages_of_queues_are_read_to_the_end(world: World) -> None:
    for number in range(5):
        await world.catalog.create_queue(Queue(NAMESPACE_ID, "default", f"a{number}", QueueKind.WORKER))
    limits = PushedLimits(page_queues=2)
    world.webhooks = PushedQueues(world.catalog, world.hub, world.feeds, world.clock, limits)
    await started(world)


async def test_a_catalog_that_is_away_is_asked_again(world: World) -> None:
    world.catalog.fail_next("list_namespaces", Unavailable("away"))
    world.catalog.fail_next("list_namespaces", RuntimeError("a bug"))
    world.start()
    await world.later(5_000)
    assert world.webhooks.served == 1


async def test_changed_settings_hold_for_the_next_try(world: World) -> None:
    await started(world)
    world.dispatch(1)
    await until(lambda: len(world.sender.posted) == 1)
    other = "whsec_" + "b3RoZXJz" * 4
    changed = replace(WEBHOOK, url="https://example.org/y", secrets=(SECRET, other))
    await world.catalog.update_webhook(replace(JOBS, webhook=changed))
    await world.later(10_000)
    world.dispatch(1)
    await until(lambda: len(world.sender.posted) == 2)
    assert [request.url[-1] for request in world.sender.posted] == ["x", "y"]
    assert len(world.sender.posted[1].headers["webhook-signature"].split()) == 2


# ---------------------------------------------------------------- what is told


async def test_requests_are_counted_by_their_answers(world: World) -> None:
    world.sender.answers = [FINE, Answer(410), SILENCE]
    await started(world)
    for _ in range(3):
        world.dispatch(1)
        await until(lambda: not world.undelivered)
    assert world.tries == {"204": 1, "410": 1, "timed out": 1}


async def test_secrets_are_in_no_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        world.sender.answers = [RuntimeError("a bug"), Answer(400)]
        await started(world)
        world.dispatch(2)
        await world.later(5_000)
    assert caplog.text
    assert SECRET.removeprefix("whsec_") not in caplog.text
