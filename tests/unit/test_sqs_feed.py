"""SQS queues from their messages to requests and back: what fails, what is final, and in which order it goes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from delivery_world import NAMESPACE_ID, DeliveryWorld, KeptOutcomes, quiet, until

from bucketsched.adapters.memory.clock import ManualClock
from bucketsched.adapters.memory.store import MemoryCatalog
from bucketsched.core.catalog import Namespace, Queue, QueueKind
from bucketsched.core.execution import AttemptEnd
from bucketsched.core.sqs import Sqs
from bucketsched.core.sqs_answer import Sent, SqsAnswer
from bucketsched.core.sqs_message import MESSAGE_BYTES_MAX, SqsMessage
from bucketsched.delivery.attachment import Attachment
from bucketsched.delivery.hosts import Hosts
from bucketsched.delivery.hub import WorkerHub
from bucketsched.delivery.pushed_queues import PushedQueues
from bucketsched.delivery.sqs_feed import SqsFeed

STANDARD = Sqs("https://sqs.eu-central-1.amazonaws.com/1/jobs", "eu-central-1")
FIFO = replace(STANDARD, queue_url=STANDARD.queue_url + ".fifo")
FINE = Sent(said="m")


class FakeSender:
    """Answers each message with what a test says of its body, else that it is sent. `held`: not before it is let go."""

    def __init__(self) -> None:
        self.requests: list[list[SqsMessage]] = []
        self.sent: dict[str, Sent] = {}
        self.whole: list[SqsAnswer | Exception] = []
        self.held: asyncio.Event | None = None
        self.settings: list[Sqs] = []

    async def send(self, messages: Sequence[SqsMessage], sqs: Sqs) -> SqsAnswer:
        self.requests.append(list(messages))
        self.settings.append(sqs)
        if self.held is not None:
            await self.held.wait()
        if len(messages) > 1 and any(self.sent.get(message.body, FINE).final for message in messages):
            return SqsAnswer.failed(len(messages), "InvalidMessageContents", "one of them")
        if self.whole:
            answer = self.whole.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        return SqsAnswer(tuple(self.sent.get(message.body, FINE) for message in messages))

    async def close(self) -> None:
        pass

    def bodies(self) -> list[str]:
        return [message.body for request in self.requests for message in request]


class World(DeliveryWorld):
    """A process that sends to SQS."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.catalog = MemoryCatalog()
        self.sender = FakeSender()
        self.outcomes = KeptOutcomes()
        self.hub = WorkerHub(self.deliveries, self.outcomes, self.clock)
        self.tries: Counter[str] = Counter()
        self.hosts = Hosts(self.clock)
        self.queues = PushedQueues(self.catalog, self.hub, {QueueKind.SQS: self.feed}, self.clock)
        self.running: asyncio.Task[None] | None = None

    def feed(self, queue: Queue, attachment: Attachment) -> SqsFeed:
        return SqsFeed(queue, attachment, self.sender, self.hosts, self.tries)

    async def start(self, sqs: Sqs = STANDARD) -> Queue:
        await self.catalog.create_namespace(Namespace("default", NAMESPACE_ID, 0))
        queue = Queue(NAMESPACE_ID, "default", "jobs", QueueKind.SQS, sqs=sqs)
        await self.catalog.create_queue(queue)
        self.running = asyncio.create_task(self.queues.run())
        await until(lambda: self.queues.served == 1)
        return queue

    def say(self, *payloads: str, task_type: str = "greet") -> list[str]:
        return [self.dispatch(payload=payload.encode(), task_type=task_type)[0] for payload in payloads]

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


async def test_what_is_sent_has_succeeded(world: World) -> None:
    await world.start()
    tasks = world.dispatch(3)
    await until(lambda: not world.undelivered)
    assert sorted(world.outcomes.ends()) == sorted((task, AttemptEnd.SUCCEEDED) for task in tasks)
    assert {report.attempt.result for report in world.outcomes.reports} == {b"message m"}
    assert world.tries == {"sent": 3}


async def test_many_go_in_requests_of_ten(world: World) -> None:
    world.dispatch(50)
    await world.start()
    await until(lambda: not world.undelivered)
    assert [len(request) for request in world.sender.requests] == [10] * 5


async def test_one_message_fails_alone(world: World) -> None:
    world.sender.sent = {"b": Sent("RequestThrottled", "slow down")}
    tasks = world.say("a", "b", "c")
    await world.start()
    await until(lambda: len(world.outcomes.reports) == 3)
    ends = dict(world.outcomes.ends())
    assert [ends[task] for task in tasks] == [AttemptEnd.SUCCEEDED, AttemptEnd.FAILED, AttemptEnd.SUCCEEDED]
    [failed] = [report for report in world.outcomes.reports if report.attempt.end is AttemptEnd.FAILED]
    assert (failed.attempt.error_type, failed.final) == ("Sqs.RequestThrottled", False)
    assert failed.attempt.error_message == "RequestThrottled: slow down"


async def test_one_bad_message_does_not_spoil_the_request_of_others(world: World) -> None:
    world.sender.sent = {"b": Sent("InvalidMessageContents", "no")}
    tasks = world.say("a", "b", "c")
    await world.start()
    await until(lambda: len(world.outcomes.reports) == 3)
    ends = dict(world.outcomes.ends())
    assert [ends[task] for task in tasks] == [AttemptEnd.SUCCEEDED, AttemptEnd.FAILED, AttemptEnd.SUCCEEDED]
    [failed] = [report for report in world.outcomes.reports if report.attempt.end is AttemptEnd.FAILED]
    assert failed.final


@pytest.mark.parametrize("code", ["AccessDenied", "AWS.SimpleQueueService.NonExistentQueue", "InternalError"])
async def test_what_others_can_set_right_is_not_final(world: World, code: str) -> None:
    world.sender.whole = [SqsAnswer.failed(2, code, "said")]
    world.dispatch(2)
    await world.start()
    await until(lambda: len(world.outcomes.reports) == 2)
    assert {(report.attempt.error_type, report.final) for report in world.outcomes.reports} == {(f"Sqs.{code}", False)}
    assert len(world.sender.requests) == 1


async def test_what_is_too_large_is_final_and_not_sent(world: World) -> None:
    world.dispatch(1, payload=b"x" * MESSAGE_BYTES_MAX)
    world.dispatch(1)
    await world.start()
    await until(lambda: len(world.outcomes.reports) == 2)
    failed = next(report for report in world.outcomes.reports if report.attempt.end is AttemptEnd.FAILED)
    assert (failed.attempt.error_type, failed.final) == ("Sqs.TooLarge", True)
    assert str(MESSAGE_BYTES_MAX) in failed.attempt.error_message
    assert world.sender.bodies() == ["hello"]


async def test_a_request_that_can_not_be_made_uses_up_no_attempt(world: World) -> None:
    world.sender.whole = [RuntimeError("planned")]
    world.dispatch(1)
    await world.start()
    await until(lambda: world.sender.requests)
    await quiet()
    assert world.outcomes.reports == []
    world.clock.advance_ms(5_000)
    await until(lambda: not world.undelivered)
    assert len(world.sender.requests) == 2


async def test_an_endpoint_that_does_not_answer_is_left_alone(world: World) -> None:
    world.sender.whole = [SqsAnswer.failed(1, "ConnectionFailed", "", host_failed=True) for _ in range(50)]
    await world.start()
    for _ in range(10):
        world.dispatch(1)
        await quiet()
    assert world.hosts.open_circuits == 1
    assert len(world.sender.requests) == 5
    assert len(world.outcomes.reports) == 5, "the others wait without using up attempts"


async def test_a_group_has_one_request_at_a_time_and_keeps_its_order(world: World) -> None:
    world.sender.held = asyncio.Event()
    await world.start(FIFO)
    wanted = [f"a{i}" for i in range(25)]
    world.say(*wanted[:1], task_type="a")
    await until(lambda: world.sender.requests)
    world.say(*wanted[1:], task_type="a")
    await quiet()
    assert len(world.sender.requests) == 1, "the group's first request is still under way"
    world.sender.held.set()
    await until(lambda: not world.undelivered)
    assert world.sender.bodies() == wanted
    assert [len(request) for request in world.sender.requests] == [1, 10, 10, 4]
    assert {message.group for request in world.sender.requests for message in request} == {"a"}


async def test_a_group_does_not_wait_for_all_others(world: World) -> None:
    world.sender.held = asyncio.Event()
    await world.start(FIFO)
    for group in "abcdefgh":
        world.say("x", task_type=group)
    await until(lambda: len(world.sender.requests) > 1)
    assert all(len({message.group for message in request}) == len(request) for request in world.sender.requests)
    world.sender.held.set()


async def test_new_settings_hold_from_then_on(world: World) -> None:
    queue = await world.start()
    world.queues.serve(replace(queue, sqs=replace(STANDARD, region="us-east-1", concurrency=3)))
    await quiet()
    world.sender.held = asyncio.Event()
    world.dispatch(5)
    await until(lambda: world.sender.requests)
    await quiet()
    assert {settings.region for settings in world.sender.settings} == {"us-east-1"}
    assert len(world.sender.bodies()) == 3
    world.sender.held.set()
