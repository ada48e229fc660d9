"""All deliveries keep the promises of ports.Deliveries and ports.Subscription."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from journal_harness import ADAPTERS, DeliveriesHarness, deliveries_harness, message

from bucketsched.core.catalog import Queue
from bucketsched.core.errors import Unavailable
from bucketsched.core.message import Headers
from bucketsched.ports import Delivery, Subscription

DEADLINE_S = 20.0
QUIET_S = 0.2


@pytest.fixture(params=ADAPTERS)
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[DeliveriesHarness]:
    async with deliveries_harness(request.param, request) as opened:
        yield opened


@pytest.fixture
async def queue(harness: DeliveriesHarness) -> Queue:
    return await harness.make_queue()


@pytest.fixture
async def subscription(harness: DeliveriesHarness, queue: Queue) -> AsyncIterator[Subscription]:
    opened = await harness.open().subscribe(queue)
    yield opened
    await opened.close()


async def publish(harness: DeliveriesHarness, queue: Queue, *values: bytes) -> None:
    await harness.publish([message(queue, value) for value in values])


async def fetch(subscription: Subscription, count: int, limit: int = 1_000) -> list[Delivery]:
    """Fetches until `count` messages are there."""
    found: list[Delivery] = []
    while len(found) < count:
        batch = await asyncio.wait_for(subscription.fetch(min(limit, count - len(found))), DEADLINE_S)
        assert 1 <= len(batch) <= limit
        found += batch
    return found


def values(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.value for delivery in deliveries]


async def assert_nothing_comes(subscription: Subscription) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(subscription.fetch(1), QUIET_S)


async def successor(harness: DeliveriesHarness, subscription: Subscription, queue: Queue) -> Subscription:
    """The subscription of another process, after this one has closed its own."""
    await asyncio.wait_for(subscription.close(), DEADLINE_S)
    return await harness.open().subscribe(queue)


# ---------------------------------------------------------------- fetch


async def test_messages_come_oldest_first(harness: DeliveriesHarness, queue: Queue, subscription: Subscription) -> None:
    await publish(harness, queue, b"1", b"2")
    await publish(harness, queue, b"3")
    assert values(await fetch(subscription, 3)) == [b"1", b"2", b"3"]


async def test_what_was_there_before_the_subscription_comes_too(harness: DeliveriesHarness, queue: Queue) -> None:
    await publish(harness, queue, b"1", b"2")
    subscription = await harness.open().subscribe(queue)
    await publish(harness, queue, b"3")
    assert values(await fetch(subscription, 3)) == [b"1", b"2", b"3"]
    await subscription.close()


async def test_fetch_waits_for_messages(harness: DeliveriesHarness, queue: Queue, subscription: Subscription) -> None:
    for value in (b"1", b"2"):
        waiting = asyncio.create_task(subscription.fetch(10))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        await publish(harness, queue, value)
        assert values(await asyncio.wait_for(waiting, DEADLINE_S)) == [value]


async def test_fetch_gives_at_most_its_limit(
    harness: DeliveriesHarness, queue: Queue, subscription: Subscription
) -> None:
    sent = [b"%d" % i for i in range(25)]
    await publish(harness, queue, *sent)
    assert values(await fetch(subscription, 25, limit=10)) == sent


async def test_what_was_fetched_does_not_come_again(
    harness: DeliveriesHarness, queue: Queue, subscription: Subscription
) -> None:
    await publish(harness, queue, b"1", b"2")
    first = await fetch(subscription, 2)
    await publish(harness, queue, b"3")
    third = await fetch(subscription, 1)
    assert values(third) == [b"3"]
    assert len({delivery.token for delivery in first + third}) == 3
    await assert_nothing_comes(subscription)


async def test_a_fetch_that_was_given_up_loses_nothing(
    harness: DeliveriesHarness, queue: Queue, subscription: Subscription
) -> None:
    for _ in range(3):
        waiting = asyncio.create_task(subscription.fetch(10))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait([waiting])
    await publish(harness, queue, b"1", b"2")
    assert values(await fetch(subscription, 2)) == [b"1", b"2"]


async def test_messages_arrive_unchanged(harness: DeliveriesHarness, queue: Queue, subscription: Subscription) -> None:
    headers: Headers = [("ce_id", b"1"), ("empty", b""), ("twice", b"a"), ("twice", b"b"), ("raw", bytes(range(256)))]
    await harness.publish([message(queue, bytes(range(256)), headers), message(queue, b"", [])])
    first, second = await fetch(subscription, 2)
    assert (first.headers, first.value) == (headers, bytes(range(256)))
    assert (second.headers, second.value) == ([], b"")


async def test_queues_are_apart(harness: DeliveriesHarness, queue: Queue) -> None:
    deliveries, other = harness.open(), await harness.make_queue()
    subscription, of_other = await deliveries.subscribe(queue), await deliveries.subscribe(other)
    await harness.publish([message(queue, b"1"), message(other, b"2"), message(queue, b"3")])
    assert values(await fetch(subscription, 2)) == [b"1", b"3"]
    assert values(await fetch(of_other, 1)) == [b"2"]
    await assert_nothing_comes(of_other)
    await subscription.close()
    await of_other.close()


async def test_a_backlog_comes_complete_and_in_order_while_more_arrives(
    harness: DeliveriesHarness, queue: Queue
) -> None:
    await publish(harness, queue, *[b"%d" % i for i in range(3_000)])
    subscription = await harness.open().subscribe(queue)

    async def more() -> None:
        for i in range(3_000, 4_000, 50):
            await publish(harness, queue, *[b"%d" % j for j in range(i, i + 50)])

    publishing = asyncio.create_task(more())
    found = await fetch(subscription, 4_000, limit=170)
    await publishing
    assert values(found) == [b"%d" % i for i in range(4_000)]
    await subscription.ack([delivery.token for delivery in found])
    await assert_nothing_comes(subscription)
    await subscription.close()


# ---------------------------------------------------------------- ack


async def test_what_was_acknowledged_does_not_come_to_the_next(
    harness: DeliveriesHarness, queue: Queue, subscription: Subscription
) -> None:
    await publish(harness, queue, b"1", b"2", b"3")
    fetched = await fetch(subscription, 3)
    await subscription.ack([delivery.token for delivery in fetched[:2]])
    heir = await successor(harness, subscription, queue)
    assert values(await fetch(heir, 1)) == [b"3"]
    await assert_nothing_comes(heir)
    await heir.close()


async def test_when_all_is_acknowledged_nothing_comes_to_the_next(
    harness: DeliveriesHarness, queue: Queue, subscription: Subscription
) -> None:
    await publish(harness, queue, *[b"%d" % i for i in range(10)])
    for delivery in reversed(await fetch(subscription, 10)):
        await subscription.ack([delivery.token])
    heir = await successor(harness, subscription, queue)
    await assert_nothing_comes(heir)
    await publish(harness, queue, b"new")
    assert values(await fetch(heir, 1)) == [b"new"]
    await heir.close()


async def test_an_ack_beyond_a_gap(harness: DeliveriesHarness, queue: Queue, subscription: Subscription) -> None:
    await publish(harness, queue, b"1", b"2", b"3")
    fetched = await fetch(subscription, 3)
    await subscription.ack([fetched[1].token])
    await assert_nothing_comes(subscription)
    heir = await successor(harness, subscription, queue)
    expected = [b"1", b"3"] if harness.acks_beyond_gaps_are_durable else [b"1", b"2", b"3"]
    assert values(await fetch(heir, len(expected))) == expected
    await assert_nothing_comes(heir)
    await heir.close()


async def test_an_ack_may_be_repeated_and_may_be_empty(
    harness: DeliveriesHarness, queue: Queue, subscription: Subscription
) -> None:
    await publish(harness, queue, b"1", b"2")
    first, second = await fetch(subscription, 2)
    await subscription.ack([])
    await subscription.ack([first.token, first.token])
    await subscription.ack([first.token, second.token])
    heir = await successor(harness, subscription, queue)
    await assert_nothing_comes(heir)
    await heir.close()


# ---------------------------------------------------------------- close


async def test_what_was_not_acknowledged_comes_again_in_order(
    harness: DeliveriesHarness, queue: Queue, subscription: Subscription
) -> None:
    await publish(harness, queue, b"1", b"2", b"3")
    await fetch(subscription, 2)
    heir = await successor(harness, subscription, queue)
    assert values(await fetch(heir, 3)) == [b"1", b"2", b"3"]
    await heir.close()


async def test_what_arrives_between_two_subscriptions_comes_to_the_next(
    harness: DeliveriesHarness, queue: Queue, subscription: Subscription
) -> None:
    await publish(harness, queue, b"1")
    (first,) = await fetch(subscription, 1)
    await subscription.ack([first.token])
    await subscription.close()
    await publish(harness, queue, b"2")
    heir = await harness.open().subscribe(queue)
    assert values(await fetch(heir, 1)) == [b"2"]
    await heir.close()


async def test_a_closed_subscription_says_so(
    harness: DeliveriesHarness, queue: Queue, subscription: Subscription
) -> None:
    await publish(harness, queue, b"1")
    (first,) = await fetch(subscription, 1)
    waiting = asyncio.create_task(subscription.fetch(1))
    await asyncio.sleep(0.02)
    await subscription.close()
    await subscription.close()
    with pytest.raises(Unavailable):
        await asyncio.wait_for(waiting, DEADLINE_S)
    with pytest.raises(Unavailable):
        await subscription.fetch(1)
    with pytest.raises(Unavailable):
        await subscription.ack([first.token])
