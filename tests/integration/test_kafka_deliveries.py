"""Deliveries on a real broker: rebalances, latency, and what a slow worker must not cost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from kafka_proxy import END_TXN, KafkaProxy, gates
from kafka_world import DEADLINE_S, KafkaWorld, message
from tools.stack import Addresses

from bucketsched import config
from bucketsched.adapters.kafka import deliveries as module
from bucketsched.adapters.kafka.deliveries import CLOSE_S_MAX, KafkaDeliveries, KafkaSubscription
from bucketsched.adapters.kafka.journal import KafkaJournal
from bucketsched.core.catalog import Queue
from bucketsched.core.errors import Unavailable
from bucketsched.core.task import Priority
from bucketsched.ports import Delivery

pytestmark = pytest.mark.stack
QUIET_S = 0.5


@pytest.fixture
async def world(stack: Addresses, topic_prefix: str) -> AsyncIterator[KafkaWorld]:
    world = KafkaWorld(config.load(str(stack.settings)).kafka, topic_prefix)
    await world.start()
    yield world
    await world.close()


@pytest.fixture
async def journal(world: KafkaWorld) -> KafkaJournal:
    return await world.started(0)


class Process:
    """A deliver process: what it has fetched so far, by value."""

    def __init__(self, subscription: KafkaSubscription) -> None:
        self.subscription = subscription
        self.got: list[Delivery] = []
        self._reading = asyncio.create_task(self._read())
        self._news = asyncio.Event()

    async def _read(self) -> None:
        while True:
            self.got += await self.subscription.fetch(1_000)
            self._news.set()

    @property
    def values(self) -> list[bytes]:
        return [delivery.value for delivery in self.got]

    async def has(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.got) < count:
                self._news.clear()
                await self._news.wait()

    async def stop(self) -> None:
        self._reading.cancel()
        await asyncio.wait_for(self.subscription.close(), DEADLINE_S)


async def joined(world: KafkaWorld, queue: Queue, unacked_max: int = 10_000) -> Process:
    subscription = await KafkaDeliveries(world.settings, world.constants, unacked_max).subscribe(queue)
    assert isinstance(subscription, KafkaSubscription)
    return Process(subscription)


async def assigned(process: Process, count: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while len(process.subscription._consumer.assignment()) != count:  # noqa: ASYNC110 aiokafka has no event for it
            await asyncio.sleep(0.02)


async def test_what_a_rebalance_gives_back_is_not_handed_over_twice(world: KafkaWorld, journal: KafkaJournal) -> None:
    queue = await world.made(partitions=2)
    sent = [b"%d" % i for i in range(40)]
    await journal.commit([message(queue, value, key=value) for value in sent], b"record")
    first = await joined(world, queue)
    await first.has(40)
    second = await joined(world, queue)
    await assigned(first, 1)
    await second.has(1)
    await asyncio.sleep(QUIET_S)
    assert len(first.values) == 40, "the partition that stayed was read again"
    [kept] = first.subscription._consumer.assignment()
    assert 0 < len(set(second.values)) < 40
    await journal.commit([message(queue, value, key=value) for value in sent], b"more")
    before = len(first.got), len(second.got)
    async with asyncio.timeout(DEADLINE_S):
        while len(first.got) + len(second.got) < sum(before) + 40:  # noqa: ASYNC110 two processes, no common event
            await asyncio.sleep(0.02)
    assert first.got[before[0] :], "what came after the rebalance"
    assert second.got[before[1] :], "what came after the rebalance"
    await first.subscription.ack([delivery.token for delivery in first.got])
    await second.subscription.ack([delivery.token for delivery in second.got])
    await first.stop()
    await second.stop()
    third = await joined(world, queue)
    await assigned(third, 2)
    await asyncio.sleep(QUIET_S)
    assert third.values == [], f"acknowledged across the rebalance, in {kept} and the other"
    await third.stop()


async def test_what_a_lost_process_had_comes_to_the_one_that_stays(world: KafkaWorld, journal: KafkaJournal) -> None:
    queue = await world.made(partitions=2)
    first, second = await joined(world, queue), await joined(world, queue)
    await assigned(first, 1)
    await assigned(second, 1)
    sent = [b"%d" % i for i in range(40)]
    await journal.commit([message(queue, value, key=value) for value in sent], b"record")
    async with asyncio.timeout(DEADLINE_S):
        while len(first.got) + len(second.got) < 40:  # noqa: ASYNC110 two processes, no common event
            await asyncio.sleep(0.02)
    done = second.got[:5]
    await second.subscription.ack([delivery.token for delivery in done])
    await second.stop()
    await first.has(40 - len(done))
    await asyncio.sleep(QUIET_S)
    assert sorted(first.values + [delivery.value for delivery in done]) == sorted(sent)
    await first.stop()


async def test_the_buffer_is_bounded_and_membership_survives_a_slow_worker(
    world: KafkaWorld, journal: KafkaJournal
) -> None:
    queue = await world.made(partitions=2)
    sent = [b"%d" % i for i in range(200)]
    await journal.commit([message(queue, value, key=value) for value in sent], b"record")
    slow = await joined(world, queue, unacked_max=10)
    await slow.has(10)
    await asyncio.sleep(QUIET_S)
    assert len(slow.got) == 10
    quick = await joined(world, queue)
    await assigned(quick, 1)
    await assigned(slow, 1)
    async with asyncio.timeout(DEADLINE_S):
        while len(set(slow.values) | set(quick.values)) < 200:
            await slow.subscription.ack([delivery.token for delivery in slow.got])
            await asyncio.sleep(0.01)
    await slow.stop()
    await quick.stop()


async def test_time_between_polls_never_costs_the_membership(
    world: KafkaWorld, journal: KafkaJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await world.made()
    await journal.commit([message(queue, b"%d" % i) for i in range(20)], b"record")
    slow = await joined(world, queue, unacked_max=1)
    await slow.has(1)
    assert slow.subscription._consumer._max_poll_interval_ms >= 7 * 86_400_000
    await slow.stop()


async def test_acks_in_any_order_become_durable_when_the_gap_closes(world: KafkaWorld, journal: KafkaJournal) -> None:
    queue = await world.made()
    await journal.commit([message(queue, b"%d" % i) for i in range(6)], b"record")
    first = await joined(world, queue)
    await first.has(6)
    tokens = [delivery.token for delivery in first.got]
    for index in (4, 1, 2, 0):
        await first.subscription.ack([tokens[index]])
    await first.stop()
    second = await joined(world, queue)
    await second.has(3)
    assert second.values == [b"3", b"4", b"5"]
    await second.stop()


async def test_aborted_messages_are_not_delivered(world: KafkaWorld, stack: Addresses) -> None:
    queue, proxy, never_set = await world.made(), KafkaProxy(stack.kafka), asyncio.Event()
    await proxy.start()
    shaky = await world.started(0, bootstrap=proxy.address)
    proxy.hold_request = gates(END_TXN, never_set)
    committing = asyncio.create_task(shaky.commit([message(queue, b"aborted")], b"aborted"))
    await asyncio.wait_for(proxy.saw(END_TXN, 1), DEADLINE_S)
    committing.cancel()
    process = await joined(world, queue)
    journal = await world.started(0)
    await journal.commit([message(queue, b"committed")], b"committed")
    await process.has(1)
    assert process.values == [b"committed"]
    await process.stop()
    await proxy.stop()


async def test_messages_of_higher_priority_are_handed_over_first(world: KafkaWorld, journal: KafkaJournal) -> None:
    from dataclasses import replace

    queue = await world.topics.ensure(replace(world.queue(), priority_topics=True))
    batch = [message(queue, priority.name.encode()) for priority in reversed(Priority) for _ in range(3)]
    for item in batch:
        item.topic = queue.topic_for(Priority[item.value.decode()])
    await journal.commit(batch, b"record")
    subscription = await KafkaDeliveries(world.settings, world.constants).subscribe(queue)
    assert isinstance(subscription, KafkaSubscription)
    async with asyncio.timeout(DEADLINE_S):
        while sum(map(len, subscription._buffers.values())) < 9:  # noqa: ASYNC110 nothing else tells it from outside
            await asyncio.sleep(0.02)
    got = [delivery.value for delivery in await subscription.fetch(9)]
    assert got == [b"HIGH"] * 3 + [b"NORMAL"] * 3 + [b"LOW"] * 3
    await subscription.close()


@pytest.mark.alone
async def test_a_message_is_handed_over_soon_after_its_commit(world: KafkaWorld, journal: KafkaJournal) -> None:
    queue = await world.made(partitions=4)
    process, took = await joined(world, queue), []
    await assigned(process, 4)
    for i in range(50):
        await journal.commit([message(queue, b"%d" % i)], b"record")
        began = time.monotonic()
        await process.has(i + 1)
        took.append(time.monotonic() - began)
    assert sorted(took)[25] < 0.05
    await process.stop()


async def test_without_a_broker_subscribing_fails_and_closing_is_bounded(
    world: KafkaWorld, journal: KafkaJournal, stack: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "START_S_MAX", 2.0)
    monkeypatch.setattr(module, "COMMIT_S_MAX", 2.0)
    queue, proxy = await world.made(), KafkaProxy(stack.kafka)
    await proxy.start()
    deliveries = KafkaDeliveries(world.settings.model_copy(update={"bootstrap": proxy.address}), world.constants)
    subscription = await deliveries.subscribe(queue)
    await journal.commit([message(queue, b"x")], b"record")
    [delivery] = await asyncio.wait_for(subscription.fetch(1), DEADLINE_S)
    await proxy.stop()
    with pytest.raises(Unavailable):
        await asyncio.wait_for(subscription.ack([delivery.token]), DEADLINE_S)
    with pytest.raises(Unavailable):
        await asyncio.wait_for(deliveries.subscribe(queue), DEADLINE_S)
    began = time.monotonic()
    await subscription.close()
    assert time.monotonic() - began < 3 * CLOSE_S_MAX + 3


async def test_an_ack_that_failed_is_made_good_by_the_next(
    world: KafkaWorld, journal: KafkaJournal, stack: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMMIT_S_MAX", 1.0)
    queue, proxy = await world.made(), KafkaProxy(stack.kafka)
    await proxy.start()
    deliveries = KafkaDeliveries(world.settings.model_copy(update={"bootstrap": proxy.address}), world.constants)
    subscription = await deliveries.subscribe(queue)
    await journal.commit([message(queue, b"x")], b"record")
    [delivery] = await asyncio.wait_for(subscription.fetch(1), DEADLINE_S)
    await proxy.stop()
    with pytest.raises(Unavailable):
        await subscription.ack([delivery.token])
    await proxy.start()
    monkeypatch.setattr(module, "COMMIT_S_MAX", DEADLINE_S)
    await subscription.ack([delivery.token])
    await subscription.close()
    heir = await joined(world, queue)
    await assigned(heir, 1)
    await asyncio.sleep(QUIET_S)
    assert heir.values == []
    await heir.stop()
    await proxy.stop()
