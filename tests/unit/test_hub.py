"""The hub: leases, acks, and what becomes of messages that workers don't finish."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from delivery_world import QUEUE, DeliveryWorld, KeptOutcomes, quiet, until

from bucketsched.adapters.memory.clock import ManualClock
from bucketsched.adapters.memory.deliveries import MemorySubscription
from bucketsched.core.catalog import Queue
from bucketsched.core.errors import Unavailable
from bucketsched.core.execution import AttemptEnd, EndResult
from bucketsched.core.message import Message
from bucketsched.delivery.attachment import Attachment
from bucketsched.delivery.hub import WorkerHub
from bucketsched.delivery.offer import Failure, Offer, Refusal
from bucketsched.delivery.queue_feed import HubLimits
from bucketsched.ports import Delivery, Subscription


@pytest.fixture
def world() -> DeliveryWorld:
    return DeliveryWorld()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def outcomes() -> KeptOutcomes:
    return KeptOutcomes()


@pytest.fixture
async def hub(world: DeliveryWorld, clock: ManualClock, outcomes: KeptOutcomes) -> AsyncIterator[WorkerHub]:
    hub = WorkerHub(world.deliveries, outcomes, clock)
    yield hub
    await hub.drain(0)


def attach(hub: WorkerHub, max_in_flight: int = 10, lease_s: float = 60, name: str = "w") -> Attachment:
    return hub.attach(QUEUE, name, max_in_flight, lease_s)


async def take(worker: Attachment, count: int) -> list[Offer]:
    """Exactly so many offers."""
    offers: list[Offer] = []
    async with asyncio.timeout(5):
        while len(offers) < count:
            offers += await worker.next_offers()
    assert len(offers) == count
    return offers


async def later(clock: ManualClock, ms: int) -> None:
    """Lets time pass, once whoever wants to sleep is asleep."""
    await quiet(20)
    clock.advance_ms(ms)
    await quiet(20)


async def gets_nothing(worker: Attachment) -> None:
    waiting = asyncio.create_task(worker.next_offers())
    await quiet()
    assert not waiting.done()
    waiting.cancel()


def ids_of(offers: Sequence[Offer]) -> list[str]:
    return [offer.event.task_id for offer in offers]


async def test_what_is_dispatched_is_offered_and_what_is_acknowledged_is_done(
    world: DeliveryWorld, hub: WorkerHub, clock: ManualClock
) -> None:
    worker = attach(hub)
    tasks = world.dispatch(3)
    offers = await take(worker, 3)
    assert ids_of(offers) == tasks
    assert {offer.offer_count for offer in offers} == {1}
    assert {offer.expires_ms for offer in offers} == {clock.now_ms() + 60_000}
    assert len({offer.lease_id for offer in offers}) == 3
    assert all(0 < offer.lease_id < 1 << 63 for offer in offers)
    worker.ack([offer.lease_id for offer in offers])
    await until(lambda: world.undelivered == 0)


async def test_nobody_subscribes_without_a_worker(world: DeliveryWorld, hub: WorkerHub, clock: ManualClock) -> None:
    world.dispatch()
    await quiet()
    assert not hub.queues()
    worker = attach(hub)
    await take(worker, 1)
    worker.detach()
    await quiet()
    assert hub.queues()  # it may only be reconnecting
    await later(clock, 600)
    await until(lambda: not hub.queues())
    assert (await (await world.deliveries.subscribe(QUEUE)).fetch(10))[0].token == 0


async def test_a_worker_that_comes_back_in_time_keeps_the_subscription(
    world: DeliveryWorld, clock: ManualClock
) -> None:
    flaky = Flaky(world)
    hub = WorkerHub(flaky, KeptOutcomes(), clock)
    first = attach(hub)
    (task,) = world.dispatch()
    await take(first, 1)
    first.detach()
    await quiet()
    await later(clock, 300)
    second = attach(hub)
    assert ids_of(await take(second, 1)) == [task]
    await later(clock, 600)
    await quiet()
    assert flaky.subscribed == 1
    await hub.drain(0)


async def test_a_worker_gets_no_more_than_it_has_room_for(world: DeliveryWorld, hub: WorkerHub) -> None:
    worker = attach(hub, max_in_flight=2)
    world.dispatch(5)
    first, _ = await take(worker, 2)
    await gets_nothing(worker)
    worker.ack([first.lease_id])
    await take(worker, 1)
    await gets_nothing(worker)


async def test_work_goes_to_the_least_loaded(world: DeliveryWorld, hub: WorkerHub) -> None:
    workers = [attach(hub, 10, name=name) for name in "abc"]
    world.dispatch(12)
    offers = [await take(worker, 4) for worker in workers]
    workers[1].ack([offer.lease_id for offer in offers[1]])
    world.dispatch(3)
    await take(workers[1], 3)
    await gets_nothing(workers[0])


async def test_small_and_large_workers_fill_up_alike(world: DeliveryWorld, hub: WorkerHub) -> None:
    small, large = attach(hub, 2), attach(hub, 20)
    world.dispatch(11)
    await take(small, 1)
    await take(large, 10)


async def test_an_idle_queue_takes_turns(world: DeliveryWorld, hub: WorkerHub) -> None:
    workers = [attach(hub, 10, name=name) for name in "ab"]
    for turn in range(4):
        world.dispatch()
        (offer,) = await take(workers[turn % 2], 1)
        workers[turn % 2].ack([offer.lease_id])


async def test_what_is_given_back_is_offered_again_at_once(world: DeliveryWorld, hub: WorkerHub) -> None:
    worker = attach(hub)
    (task,) = world.dispatch()
    (first,) = await take(worker, 1)
    worker.nack([first.lease_id])
    (second,) = await take(worker, 1)
    assert (second.event.task_id, second.offer_count) == (task, 2)
    assert second.lease_id != first.lease_id
    assert second.event.attempt == first.event.attempt


async def test_a_nack_may_ask_for_a_delay(world: DeliveryWorld, hub: WorkerHub, clock: ManualClock) -> None:
    worker = attach(hub)
    (task,) = world.dispatch()
    (offer,) = await take(worker, 1)
    worker.nack([offer.lease_id], 1.5)
    await quiet()
    await later(clock, 1_499)
    await gets_nothing(worker)
    await later(clock, 1)
    assert ids_of(await take(worker, 1)) == [task]


async def test_what_waits_out_a_delay_holds_up_nobody(world: DeliveryWorld, hub: WorkerHub) -> None:
    worker = attach(hub, max_in_flight=1)
    tasks = world.dispatch(5)
    for task in tasks:
        (offer,) = await take(worker, 1)
        assert offer.event.task_id == task
        worker.nack([offer.lease_id], 60)


async def test_a_new_lease_is_not_ended_by_the_time_of_an_old_one(
    world: DeliveryWorld, hub: WorkerHub, clock: ManualClock, outcomes: KeptOutcomes
) -> None:
    worker = attach(hub, 1, lease_s=10)
    (task,) = world.dispatch()
    (first,) = await take(worker, 1)
    await later(clock, 6_000)
    worker.nack([first.lease_id])
    await take(worker, 1)
    await later(clock, 9_999)
    assert not outcomes.reports
    await later(clock, 1)
    assert outcomes.ends() == [(task, AttemptEnd.TIMED_OUT)]


async def test_the_oldest_is_offered_first_again(world: DeliveryWorld, hub: WorkerHub) -> None:
    worker = attach(hub, max_in_flight=1)
    tasks = world.dispatch(3)
    (offer,) = await take(worker, 1)
    worker.nack([offer.lease_id])
    assert ids_of(await take(worker, 1)) == tasks[:1]


async def test_an_attempt_whose_lease_runs_out_has_timed_out(
    world: DeliveryWorld, hub: WorkerHub, clock: ManualClock, outcomes: KeptOutcomes
) -> None:
    """Nobody is offered it any more: whether there is another attempt is not for the hub to say."""
    slow = attach(hub, 1, lease_s=2)
    (task,) = world.dispatch()
    (offer,) = await take(slow, 1)
    other = attach(hub, 1, lease_s=30)
    await later(clock, 1_999)
    assert not outcomes.reports
    await later(clock, 1)
    assert outcomes.ends() == [(task, AttemptEnd.TIMED_OUT)]
    attempt = outcomes.reports[0].attempt
    assert (attempt.worker, attempt.ended_ms - attempt.started_ms, attempt.error_type) == ("w", 2_000, "LeaseExpired")
    await until(lambda: world.undelivered == 0)
    await gets_nothing(other)
    slow.ack([offer.lease_id])
    assert await slow.next() == ([], [Refusal(offer.lease_id, "the lease is over")])


async def test_a_lease_that_is_extended_ends_later(
    world: DeliveryWorld, hub: WorkerHub, clock: ManualClock, outcomes: KeptOutcomes
) -> None:
    worker = attach(hub, 1, lease_s=2)
    world.dispatch()
    (offer,) = await take(worker, 1)
    for _ in range(3):
        await later(clock, 1_500)
        worker.extend([offer.lease_id], 2)
    await later(clock, 1_999)
    assert not outcomes.reports
    await later(clock, 1)
    assert [report.attempt.end for report in outcomes.reports] == [AttemptEnd.TIMED_OUT]
    worker.extend([offer.lease_id], 2)
    assert await worker.next() == ([], [Refusal(offer.lease_id, "the lease is over")])


async def test_how_an_attempt_ended_is_told_before_it_is_acknowledged(
    world: DeliveryWorld, hub: WorkerHub, clock: ManualClock, outcomes: KeptOutcomes
) -> None:
    outcomes.held = True
    worker = attach(hub, 10)
    done, failed = world.dispatch(2)
    first, second = await take(worker, 2)
    worker.ack([first.lease_id], b"result")
    worker.fail(second.lease_id, Failure("E", "no", "trace", True, 1.5))
    await quiet()
    assert outcomes.ends() == [(done, AttemptEnd.SUCCEEDED), (failed, AttemptEnd.FAILED)]
    assert world.undelivered == 2
    assert not worker.leased
    succeeded, fails = outcomes.reports
    assert (succeeded.attempt.result, succeeded.row_due_ms) == (b"result", clock.now_ms())
    told = fails.attempt
    assert (told.error_type, told.error_message, told.error_trace) == ("E", "no", "trace")
    assert (fails.final, fails.pause_ms_least) == (True, 1_500)
    worker.ack([second.lease_id])
    assert await worker.next() == ([], [Refusal(second.lease_id, "the lease is over")])
    outcomes.answer = EndResult.ALREADY_ENDED
    outcomes.let_go()
    await until(lambda: world.undelivered == 0)
    refused = [Refusal(offer.lease_id, "already ended") for offer in (first, second)]
    assert await worker.next() == ([], refused)


async def test_what_is_being_told_is_not_offered_again_after_a_break(world: DeliveryWorld, clock: ManualClock) -> None:
    flaky, outcomes = Flaky(world), KeptOutcomes()
    hub = WorkerHub(flaky, outcomes, clock)
    worker = attach(hub)
    world.dispatch()
    (offer,) = await take(worker, 1)
    outcomes.held = True
    worker.ack([offer.lease_id])
    flaky.broken.set()
    await later(clock, 10_000)
    await gets_nothing(worker)
    outcomes.let_go()
    await until(lambda: world.undelivered == 0)
    await gets_nothing(worker)
    await hub.drain(0)


async def test_an_attempt_that_keeps_losing_its_worker_has_failed(
    world: DeliveryWorld, hub: WorkerHub, outcomes: KeptOutcomes
) -> None:
    (task,) = world.dispatch()
    for count in range(6):
        assert not outcomes.reports
        worker = attach(hub, name=f"w{count}")
        await take(worker, 1)
        worker.detach()
    assert outcomes.ends() == [(task, AttemptEnd.FAILED)]
    assert outcomes.reports[0].attempt.error_type == "WorkerLost"
    await until(lambda: world.undelivered == 0)


async def test_what_is_of_no_use_any_more_is_not_offered(
    world: DeliveryWorld, hub: WorkerHub, clock: ManualClock, outcomes: KeptOutcomes
) -> None:
    world.dispatch(expires_ms=clock.now_ms())
    (fresh,) = world.dispatch(expires_ms=clock.now_ms() + 2)
    clock.advance_ms(1)
    worker = attach(hub)
    assert ids_of(await take(worker, 1)) == [fresh]
    assert [report.attempt.end for report in outcomes.reports] == [AttemptEnd.EXPIRED]


async def test_offers_do_not_pile_up_for_a_worker_that_does_not_read(
    world: DeliveryWorld, hub: WorkerHub, clock: ManualClock, outcomes: KeptOutcomes
) -> None:
    """They were never begun: they do not time out, but are offered again."""
    worker = attach(hub, max_in_flight=5, lease_s=10)
    world.dispatch(5)
    await until(lambda: len(worker.leased) == 5)
    for _ in range(3):
        await later(clock, 10_000)
    assert len(await take(worker, 5)) == 5
    await quiet()
    fresh = await take(worker, 5)
    assert {offer.offer_count for offer in fresh} == {2}
    assert not outcomes.reports
    worker.ack([offer.lease_id for offer in fresh])
    await until(lambda: world.undelivered == 0)


async def test_many_leases_run_out_one_by_one(
    world: DeliveryWorld, hub: WorkerHub, clock: ManualClock, outcomes: KeptOutcomes
) -> None:
    worker = attach(hub, 100, lease_s=10)
    tasks: list[str] = []
    for _ in range(5):
        tasks += world.dispatch()
        await take(worker, 1)
        await later(clock, 1_000)
    await later(clock, 4_999)
    for count in range(1, 6):
        await later(clock, 1)
        assert outcomes.ends() == [(task, AttemptEnd.TIMED_OUT) for task in tasks[:count]]
        await later(clock, 999)


async def test_a_late_ack_counts_while_nobody_else_has_it(
    world: DeliveryWorld, hub: WorkerHub, outcomes: KeptOutcomes
) -> None:
    """The stream broke, and the worker is back before anybody else was offered it."""
    worker = attach(hub, 1)
    (task,) = world.dispatch()
    (late,) = await take(worker, 1)
    worker.detach()
    again = attach(hub, 1)
    again.resize(0, 60)
    again.nack([offer.lease_id for offer in (await take(again, 1) if again.leased else [])])
    again.ack([late.lease_id])
    await until(lambda: world.undelivered == 0)
    assert outcomes.ends() == [(task, AttemptEnd.SUCCEEDED)]


async def test_a_late_ack_is_ignored_once_another_has_it(
    world: DeliveryWorld, hub: WorkerHub, outcomes: KeptOutcomes
) -> None:
    slow = attach(hub, 1)
    world.dispatch()
    (late,) = await take(slow, 1)
    slow.nack([late.lease_id])
    slow.resize(0, 60)
    other = attach(hub, 1)
    if slow.leased:
        slow.nack([offer.lease_id for offer in await take(slow, 1)])
    (again,) = await take(other, 1)
    slow.ack([late.lease_id])
    await quiet()
    assert world.undelivered == 1
    assert not outcomes.reports
    other.ack([again.lease_id])
    await until(lambda: world.undelivered == 0)


async def test_a_late_nack_takes_nothing_from_another(world: DeliveryWorld, hub: WorkerHub) -> None:
    slow = attach(hub, 1)
    world.dispatch()
    (late,) = await take(slow, 1)
    slow.nack([late.lease_id])
    slow.resize(0, 60)
    other = attach(hub, 1)
    if slow.leased:
        slow.nack([offer.lease_id for offer in await take(slow, 1)])
    (again,) = await take(other, 1)
    slow.nack([late.lease_id])
    other.nack([late.lease_id])  # not its lease either
    await gets_nothing(other)
    other.ack([again.lease_id])
    await until(lambda: world.undelivered == 0)


async def test_acks_of_what_was_never_offered_are_ignored(world: DeliveryWorld, hub: WorkerHub) -> None:
    worker = attach(hub, 1)
    world.dispatch(2)
    (offer,) = await take(worker, 1)
    unoffered = ((offer.lease_id >> 16) + 1) << 16
    worker.ack([unoffered, unoffered + 1, offer.lease_id + 1, 0, 1 << 62])
    await quiet()
    assert world.undelivered == 2


async def test_what_a_worker_leaves_behind_goes_to_another(world: DeliveryWorld, hub: WorkerHub) -> None:
    gone, other = attach(hub, 5), attach(hub, 5)
    tasks = world.dispatch(4)
    kept = await take(other, 2)
    gone.detach()
    gone.detach()
    rest = await take(other, 2)
    assert sorted(ids_of([*kept, *rest])) == sorted(tasks)
    assert {offer.offer_count for offer in rest} == {2}


async def test_a_detached_worker_gets_nothing_more(world: DeliveryWorld, hub: WorkerHub) -> None:
    gone, other = attach(hub), attach(hub)
    gone.detach()
    world.dispatch(4)
    await take(other, 4)
    assert await gone.next_offers() == []


async def test_offers_that_are_ready_together_come_together(world: DeliveryWorld, hub: WorkerHub) -> None:
    worker = attach(hub, 500)
    await quiet()
    world.dispatch(300)
    await until(lambda: worker.leased)
    assert len(await worker.next_offers()) == 300


async def test_unreadable_messages_are_dropped(
    world: DeliveryWorld, hub: WorkerHub, caplog: pytest.LogCaptureFixture
) -> None:
    worker = attach(hub, 1)
    bad = [("no headers", []), ("not utf-8", [("ce_taskid", b"\xff")]), ("not a number", None)]
    for _, headers in bad:
        message = world.message()
        message.headers = (
            [(k, b"x" if k == "ce_attempt" else v) for k, v in message.headers] if headers is None else headers
        )
        world.commit(message)
    (task,) = world.dispatch()
    assert ids_of(await take(worker, 1)) == [task]
    await until(lambda: world.undelivered == 1)
    assert caplog.text.count("unreadable headers") == 3


async def test_no_more_is_fetched_than_the_limit(world: DeliveryWorld, clock: ManualClock) -> None:
    hub = WorkerHub(world.deliveries, KeptOutcomes(), clock, HubLimits(offers_in_flight_max=5))
    worker = attach(hub, 100)
    world.dispatch(20)
    offers = await take(worker, 5)
    await gets_nothing(worker)
    worker.ack([offer.lease_id for offer in offers[:3]])
    await take(worker, 3)
    await hub.drain(0)


async def test_no_more_is_held_than_memory_allows(world: DeliveryWorld, clock: ManualClock) -> None:
    hub = WorkerHub(world.deliveries, KeptOutcomes(), clock, HubLimits(held_bytes_max=100_000, fetch_messages_max=1))
    worker = attach(hub, 100)
    world.dispatch(20, payload=b"x" * 30_000)
    offers = await take(worker, 4)
    await gets_nothing(worker)
    worker.ack([offer.lease_id for offer in offers])
    await take(worker, 4)
    await hub.drain(0)


class Flaky:
    """Deliveries with failures to order."""

    def __init__(self, world: DeliveryWorld) -> None:
        self.world = world
        self.subscribed = 0
        self.failing_subscribes = 0
        self.failing_acks = 0
        self.acks: list[list[int]] = []
        self.ack_gate: asyncio.Event | None = None
        self.broken = asyncio.Event()

    async def subscribe(self, queue: Queue) -> Subscription:
        self.subscribed += 1
        if self.failing_subscribes:
            self.failing_subscribes -= 1
            raise Unavailable("no subscription now")
        self.broken.clear()
        return FlakySubscription(self, await self.world.deliveries.subscribe(queue))


class FlakySubscription:
    def __init__(self, flaky: Flaky, inner: MemorySubscription) -> None:
        self.flaky = flaky
        self.inner = inner

    async def fetch(self, limit: int) -> list[Delivery]:
        waits = [asyncio.create_task(self.inner.fetch(limit)), asyncio.create_task(self.flaky.broken.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if self.flaky.broken.is_set():
                raise Unavailable("the connection broke")
            return await waits[0]  # type: ignore[return-value]
        finally:
            for wait in waits:
                wait.cancel()

    async def ack(self, tokens: Sequence[int]) -> None:
        self.flaky.acks.append(list(tokens))
        if self.flaky.ack_gate:
            await self.flaky.ack_gate.wait()
        if self.flaky.failing_acks:
            self.flaky.failing_acks -= 1
            raise Unavailable("not stored")
        await self.inner.ack(tokens)

    async def close(self) -> None:
        await self.inner.close()


async def pass_time(clock: ManualClock, ms: int = 200, steps: int = 20) -> None:
    for _ in range(steps):
        await later(clock, ms)


async def test_acks_are_gathered_while_one_call_is_under_way(world: DeliveryWorld, clock: ManualClock) -> None:
    flaky = Flaky(world)
    flaky.ack_gate = asyncio.Event()
    hub = WorkerHub(flaky, KeptOutcomes(), clock)
    worker = attach(hub, 100)
    world.dispatch(50)
    for offer in await take(worker, 50):
        worker.ack([offer.lease_id])
        await quiet(3)
    flaky.ack_gate.set()
    await until(lambda: world.undelivered == 0)
    assert [len(batch) for batch in flaky.acks] == [1, 49]
    await hub.drain(0)


async def test_a_failing_ack_is_repeated(world: DeliveryWorld, clock: ManualClock) -> None:
    flaky = Flaky(world)
    hub = WorkerHub(flaky, KeptOutcomes(), clock)
    worker = attach(hub)
    world.dispatch()
    (offer,) = await take(worker, 1)
    flaky.failing_acks = 2
    worker.ack([offer.lease_id])
    await pass_time(clock)
    assert (world.undelivered, flaky.subscribed) == (0, 1)
    await hub.drain(0)


async def test_after_too_many_failing_acks_it_subscribes_again_and_acknowledges_there(
    world: DeliveryWorld, clock: ManualClock
) -> None:
    flaky = Flaky(world)
    hub = WorkerHub(flaky, KeptOutcomes(), clock)
    worker = attach(hub)
    world.dispatch()
    (offer,) = await take(worker, 1)
    flaky.failing_acks = 5  # four tries, and the last one when it closes
    worker.ack([offer.lease_id])
    await pass_time(clock)
    assert (world.undelivered, flaky.subscribed) == (0, 2)
    await gets_nothing(worker)
    await hub.drain(0)


async def test_it_subscribes_again_after_a_failure(world: DeliveryWorld, clock: ManualClock) -> None:
    flaky = Flaky(world)
    flaky.failing_subscribes = 3
    hub = WorkerHub(flaky, KeptOutcomes(), clock)
    worker = attach(hub)
    (task,) = world.dispatch()
    await pass_time(clock)
    assert ids_of(await take(worker, 1)) == [task]
    assert flaky.subscribed == 4
    await hub.drain(0)


async def test_what_is_at_work_or_done_is_not_offered_again_after_a_break(
    world: DeliveryWorld, clock: ManualClock
) -> None:
    flaky = Flaky(world)
    hub = WorkerHub(flaky, KeptOutcomes(), clock)
    worker = attach(hub, 3, lease_s=1_000)
    tasks = world.dispatch(4)
    offers = {offer.event.task_id: offer for offer in await take(worker, 3)}
    flaky.broken.set()
    await quiet()
    worker.ack([offers[tasks[0]].lease_id])
    await pass_time(clock)
    assert world.undelivered == 3
    assert ids_of(await take(worker, 1)) == [tasks[3]]
    worker.ack([offers[tasks[1]].lease_id])
    worker.nack([offers[tasks[2]].lease_id])
    await until(lambda: world.undelivered == 2)
    assert ids_of(await take(worker, 1)) == [tasks[2]]
    await hub.drain(0)


async def test_what_is_given_back_during_a_break_comes_with_the_next_subscription(
    world: DeliveryWorld, clock: ManualClock
) -> None:
    flaky = Flaky(world)
    hub = WorkerHub(flaky, KeptOutcomes(), clock)
    worker = attach(hub, 3)
    (task,) = world.dispatch()
    (offer,) = await take(worker, 1)
    flaky.failing_subscribes = 2
    flaky.broken.set()
    await quiet()
    worker.nack([offer.lease_id])
    await gets_nothing(worker)
    await pass_time(clock)
    assert ids_of(await take(worker, 1)) == [task]
    await hub.drain(0)


async def test_draining_offers_nothing_more_and_ends_when_all_is_done(
    world: DeliveryWorld, hub: WorkerHub, clock: ManualClock
) -> None:
    busy, idle = attach(hub, 1), attach(hub, 1)
    world.dispatch(1)
    await until(lambda: busy.leased or idle.leased)
    if idle.leased:
        busy, idle = idle, busy
    (offer,) = await take(busy, 1)
    draining = asyncio.create_task(hub.drain(60))
    assert await idle.next_offers() == []
    world.dispatch(2)
    await quiet()
    assert not busy.over
    with pytest.raises(Unavailable):
        attach(hub)
    busy.ack([offer.lease_id])
    assert await busy.next_offers() == []
    await later(clock, 100)
    await draining
    assert world.undelivered == 2
    await world.deliveries.subscribe(QUEUE)  # it is free again


async def test_draining_does_not_wait_for_a_subscription_to_come(world: DeliveryWorld, clock: ManualClock) -> None:
    flaky = Flaky(world)
    flaky.failing_subscribes = 1_000
    hub = WorkerHub(flaky, KeptOutcomes(), clock)
    worker = attach(hub)
    await quiet()
    await asyncio.wait_for(hub.drain(0), 5)  # without that time passes
    assert await worker.next_offers() == []


async def test_draining_does_not_wait_longer_than_the_grace(
    world: DeliveryWorld, hub: WorkerHub, clock: ManualClock
) -> None:
    worker = attach(hub, 1)
    world.dispatch(1)
    await take(worker, 1)
    draining = asyncio.create_task(hub.drain(1))
    await pass_time(clock, 100, 20)
    await draining
    assert await worker.next_offers() == []


async def test_timers_of_what_is_done_do_not_pile_up(world: DeliveryWorld, hub: WorkerHub) -> None:
    worker = attach(hub, 100, lease_s=43_200)
    for _ in range(50):
        world.dispatch(100)
        offers = await take(worker, 100)
        worker.ack([offer.lease_id for offer in offers])
    (feed,) = hub._feeds.values()
    assert len(feed._timers) < 2_500


async def test_the_same_message_seen_twice_is_offered_once_and_acknowledged_twice(
    world: DeliveryWorld, hub: WorkerHub
) -> None:
    worker = attach(hub, 10)
    message: Message = world.message()
    world.commit(message, message)
    (offer,) = await take(worker, 1)
    await gets_nothing(worker)
    worker.ack([offer.lease_id])
    await until(lambda: world.undelivered == 0)
