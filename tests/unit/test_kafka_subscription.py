"""A subscription through rebalances, with a consumer that does as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, KafkaError

from bucketsched.adapters.kafka import deliveries as module
from bucketsched.adapters.kafka.deliveries import KafkaSubscription
from bucketsched.core.errors import Unavailable

A, B = TopicPartition("topic", 0), TopicPartition("topic", 1)
DEADLINE_S = 5.0


class FakeConsumer:
    """What the group would do is set from outside."""

    def __init__(self) -> None:
        self.mine: set[TopicPartition] = set()
        self.offsets: dict[TopicPartition, int] = {}
        self.sought: dict[TopicPartition, int] = {}
        self.incoming: asyncio.Queue[Any] = asyncio.Queue()
        self.refusals = 0
        self._client = SimpleNamespace(close=self.start)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def subscribe(self, topics: list[str], listener: Any) -> None: ...

    def assignment(self) -> set[TopicPartition]:
        return set(self.mine)

    async def getmany(self, timeout_ms: int, max_records: int) -> Any:
        found = await self.incoming.get()
        if isinstance(found, Exception):
            raise found
        return found

    async def commit(self, offsets: dict[TopicPartition, int]) -> None:
        if self.refusals:
            self.refusals -= 1
            raise CommitFailedError("rebalancing")
        assert set(offsets) <= self.mine, "a partition that is another's"
        self.offsets |= offsets

    async def committed(self, place: TopicPartition) -> int | None:
        return self.offsets.get(place)

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.sought[place] = offset

    def brings(self, place: TopicPartition, *offsets: int) -> None:
        records = [SimpleNamespace(offset=offset, headers=(), value=b"%d" % offset) for offset in offsets]
        self.incoming.put_nowait({place: records})


@pytest.fixture
def consumer() -> FakeConsumer:
    return FakeConsumer()


@pytest.fixture
async def subscription(consumer: FakeConsumer) -> AsyncIterator[KafkaSubscription]:
    subscription = KafkaSubscription(consumer, ["topic"], 100)
    await subscription.start()
    await rebalance(subscription, consumer, A, B)
    yield subscription
    await subscription.close()


async def rebalance(subscription: KafkaSubscription, consumer: FakeConsumer, *places: TopicPartition) -> None:
    await subscription.on_partitions_revoked(set(consumer.mine))
    consumer.mine = set(places)
    await subscription.on_partitions_assigned(set(places))


async def fetched(subscription: KafkaSubscription, count: int) -> dict[bytes, int]:
    """Tokens by value."""
    found: dict[bytes, int] = {}
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < count:
            found |= {delivery.value: delivery.token for delivery in await subscription.fetch(100)}
    return found


async def test_where_somebody_else_went_on_reading_starts_from_there(
    subscription: KafkaSubscription, consumer: FakeConsumer
) -> None:
    consumer.brings(A, 0, 1, 2, 3)
    tokens = await fetched(subscription, 4)
    await subscription.ack([tokens[b"0"]])
    await rebalance(subscription, consumer, B)
    consumer.offsets[A] = 3
    await rebalance(subscription, consumer, A, B)
    assert consumer.sought == {}, "nothing is known of it any more, so the group's offset is used anyway"
    consumer.brings(A, 3)
    assert list(await fetched(subscription, 1)) == [b"3"]


async def test_an_assignment_that_was_missed_is_noticed_by_the_offset(
    subscription: KafkaSubscription, consumer: FakeConsumer
) -> None:
    """Others had the partition while this process was thought dead: what it read ahead since must not be lost."""
    consumer.brings(A, 0, 1, 2, 3)
    tokens = await fetched(subscription, 4)
    await subscription.ack([tokens[b"0"]])
    consumer.offsets[A] = 2
    consumer.brings(A, 4)
    await rebalance(subscription, consumer, A, B)
    assert consumer.sought == {A: 2}
    consumer.brings(A, 2, 3, 4)
    async with asyncio.timeout(DEADLINE_S):
        while b"2" not in (again := await fetched(subscription, 1)):
            pass
    await subscription.ack([tokens[b"1"], again[b"2"]])
    assert consumer.offsets[A] == 3


async def test_what_is_given_back_goes_on(subscription: KafkaSubscription, consumer: FakeConsumer) -> None:
    consumer.brings(A, 0, 1)
    tokens = await fetched(subscription, 2)
    await subscription.ack([tokens[b"0"]])
    await rebalance(subscription, consumer, A)
    consumer.brings(A, 1, 2)
    assert list(await fetched(subscription, 1)) == [b"2"]
    await subscription.ack([tokens[b"1"]])
    assert consumer.offsets[A] == 2


async def test_acks_of_a_lost_partition_are_ignored(subscription: KafkaSubscription, consumer: FakeConsumer) -> None:
    consumer.brings(A, 0)
    consumer.brings(B, 7)
    tokens = await fetched(subscription, 2)
    await rebalance(subscription, consumer, B)
    await subscription.ack(list(tokens.values()))
    assert consumer.offsets == {B: 8}


async def test_records_of_a_lost_partition_that_a_poll_still_brought_dont_block_acks(
    subscription: KafkaSubscription, consumer: FakeConsumer
) -> None:
    await rebalance(subscription, consumer, B)
    consumer.brings(A, 0)
    consumer.brings(B, 7)
    tokens = await fetched(subscription, 2)
    await asyncio.wait_for(subscription.ack(list(tokens.values())), DEADLINE_S)
    assert consumer.offsets == {B: 8}


async def test_an_ack_waits_for_the_rebalance_to_end(subscription: KafkaSubscription, consumer: FakeConsumer) -> None:
    consumer.brings(A, 0)
    tokens = await fetched(subscription, 1)
    consumer.refusals = 3
    await subscription.ack(list(tokens.values()))
    assert consumer.offsets == {A: 1}


async def test_an_ack_that_can_not_be_made_durable_says_so(
    subscription: KafkaSubscription, consumer: FakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMMIT_S_MAX", 0.05)
    consumer.brings(A, 0)
    tokens = await fetched(subscription, 1)
    consumer.refusals = 1_000
    with pytest.raises(Unavailable):
        await subscription.ack(list(tokens.values()))
    consumer.refusals = 0
    await subscription.ack(list(tokens.values()))
    assert consumer.offsets == {A: 1}


async def test_errors_of_the_consumer_reach_whoever_fetches_and_pass(
    subscription: KafkaSubscription, consumer: FakeConsumer
) -> None:
    consumer.incoming.put_nowait(KafkaError("not authorized"))
    with pytest.raises(Unavailable):
        await asyncio.wait_for(subscription.fetch(1), DEADLINE_S)
    consumer.brings(A, 0)
    await fetched(subscription, 1)


async def test_a_reader_ahead_that_ends_leaves_nobody_waiting(
    subscription: KafkaSubscription, consumer: FakeConsumer
) -> None:
    waiting = asyncio.create_task(subscription.fetch(1))
    await asyncio.sleep(0)
    consumer.incoming.put_nowait(ValueError("a bug"))
    with pytest.raises(Unavailable):
        await asyncio.wait_for(waiting, DEADLINE_S)


async def test_no_more_is_read_ahead_than_nobody_has_asked_for(consumer: FakeConsumer) -> None:
    """What is done behind a gap counts for the other bound, which is far above."""
    subscription = KafkaSubscription(consumer, ["topic"], 1_000, 3)
    await subscription.start()
    await rebalance(subscription, consumer, A)
    consumer.brings(A, 0, 1, 2)
    consumer.brings(A, *range(3, 50))
    async with asyncio.timeout(DEADLINE_S):
        for _ in range(50):
            await asyncio.sleep(0)
        assert consumer.incoming.qsize() == 1
        first, *others = await subscription.fetch(3)
        await subscription.ack([delivery.token for delivery in others])
        assert len(await subscription.fetch(100)) == 47
    assert first.value == b"0"
    await subscription.close()
