"""Topics on a real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import uuid4

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from kafka_world import NAMESPACE_ID, KafkaWorld, message
from tools.stack import Addresses

from bucketsched import config
from bucketsched.adapters.kafka import topics as module
from bucketsched.adapters.kafka.topics import KafkaTopics
from bucketsched.core.catalog import Queue, QueueKind
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.errors import ConfigError, InvalidArgument, Unavailable

pytestmark = pytest.mark.stack


@pytest.fixture
async def world(stack: Addresses, topic_prefix: str) -> AsyncIterator[KafkaWorld]:
    world = KafkaWorld(config.load(str(stack.settings)).kafka, topic_prefix)
    await world.start()
    yield world
    await world.close()


@pytest.fixture
async def admin(stack: Addresses) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=stack.kafka)
    await admin.start()
    yield admin
    await admin.close()


async def partitions(admin: AIOKafkaAdminClient, topic: str) -> int:
    [described] = await admin.describe_topics([topic])
    return len(described["partitions"])


# ---------------------------------------------------------------- queues


async def test_a_queue_gets_its_topic_and_can_be_written_at_once(world: KafkaWorld, admin: AIOKafkaAdminClient) -> None:
    made = await world.topics.ensure(world.queue(partitions=3))
    assert (made.partitions, made.replication) == (3, 1)
    assert await partitions(admin, made.topic) == 3
    journal = await world.started(0)
    await journal.commit([message(made, b"x")], b"record")
    assert await world.visible(made, 1) == [b"x"]


async def test_defaults_come_from_the_settings(world: KafkaWorld, admin: AIOKafkaAdminClient) -> None:
    made = await world.topics.ensure(replace(world.queue(), partitions=0, replication=0))
    assert (made.partitions, made.replication) == (world.settings.partitions, world.settings.replication)
    assert await partitions(admin, made.topic) == world.settings.partitions


async def test_a_kafka_queues_topic_is_named_after_it_by_default(world: KafkaWorld, topic_prefix: str) -> None:
    queue = Queue(NAMESPACE_ID, topic_prefix, "q", QueueKind.KAFKA, partitions=1)
    assert (await world.topics.ensure(queue)).topic == f"{topic_prefix}.q"


async def test_priorities_get_topics_of_their_own(world: KafkaWorld) -> None:
    made = await world.topics.ensure(replace(world.queue(), priority_topics=True))
    assert made.topics == [f"{made.topic}.high", made.topic, f"{made.topic}.low"]
    assert set(made.topics) <= set(await world.topic_names())


async def test_a_topic_that_exists_is_taken_as_it_is(world: KafkaWorld, admin: AIOKafkaAdminClient) -> None:
    queue = world.queue(partitions=5)
    await admin.create_topics([NewTopic(queue.topic, 2, 1)])
    made = await world.topics.ensure(queue)
    assert made.partitions == 2
    assert await partitions(admin, queue.topic) == 2
    assert await world.topics.ensure(queue) == made


async def test_worker_queues_never_share_a_topic(
    world: KafkaWorld, admin: AIOKafkaAdminClient, topic_prefix: str
) -> None:
    """Names may contain whatever could separate them."""
    pairs = [("a-b", "c"), ("a", "b-c"), ("a.b", "c"), ("a_b", "c")]
    queues = [Queue(NAMESPACE_ID, namespace, name, QueueKind.WORKER, partitions=1) for namespace, name in pairs]
    made = [(await world.topics.ensure(queue)).topic for queue in queues]
    try:
        assert len(set(made)) == 4
        assert all(topic.startswith(f"bucketsched-{world.constants.cluster_id.hex[:8]}-") for topic in made)
    finally:
        await admin.delete_topics(made)


@pytest.mark.parametrize("topic", ["__consumer_offsets", "bucketsched-x-journal", "a/b", "ü", ".", "..", "x" * 241])
async def test_internal_and_impossible_names_are_refused(world: KafkaWorld, topic: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await world.topics.ensure(replace(world.queue(), topic=topic))
    assert refused.value.field == "topic"


async def test_more_replicas_than_brokers_are_refused(world: KafkaWorld) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await world.topics.ensure(replace(world.queue(), replication=9))
    assert refused.value.field == "replication"


async def test_a_name_that_kafka_takes_for_another_is_refused(world: KafkaWorld, topic_prefix: str) -> None:
    await world.topics.ensure(replace(world.queue(), topic=f"{topic_prefix}.a"))
    with pytest.raises(InvalidArgument) as refused:
        await world.topics.ensure(replace(world.queue(), topic=f"{topic_prefix}_a"))
    assert refused.value.field == "topic"


async def test_without_a_broker_it_says_so(world: KafkaWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CREATE_S_MAX", 2.0)
    topics = KafkaTopics(world.settings.model_copy(update={"bootstrap": "127.0.0.1:1"}), world.constants)
    with pytest.raises(Unavailable):
        await topics.ensure(world.queue())
    await topics.close()


# ---------------------------------------------------------------- the journal


@pytest.fixture
async def constants(admin: AIOKafkaAdminClient) -> AsyncIterator[ClusterConstants]:
    constants = ClusterConstants(uuid4(), lanes=4)
    yield constants
    await admin.delete_topics([constants.journal_name])


async def test_the_journal_has_a_partition_per_lane_and_forgets_nothing(
    world: KafkaWorld, admin: AIOKafkaAdminClient, constants: ClusterConstants
) -> None:
    topics = KafkaTopics(world.settings, constants)
    await topics.ensure_journal()
    await topics.ensure_journal()
    assert await partitions(admin, constants.journal_name) == 4
    settings = await topics._config(constants.journal_name, ["retention.ms", "cleanup.policy", "min.insync.replicas"])
    assert settings == {"retention.ms": "-1", "cleanup.policy": "delete", "min.insync.replicas": "1"}
    await topics.close()


async def test_partitions_are_added_where_lanes_are_more(
    world: KafkaWorld, admin: AIOKafkaAdminClient, constants: ClusterConstants
) -> None:
    few = KafkaTopics(world.settings, ClusterConstants(constants.cluster_id, lanes=2))
    await few.ensure_journal()
    topics = KafkaTopics(world.settings, constants)
    await topics.ensure_journal()
    assert await partitions(admin, constants.journal_name) == 4
    await few.close()
    await topics.close()


async def test_a_journal_that_would_forget_is_refused(
    world: KafkaWorld, admin: AIOKafkaAdminClient, constants: ClusterConstants
) -> None:
    await admin.create_topics([NewTopic(constants.journal_name, 4, 1, topic_configs={"retention.ms": "1000"})])
    topics = KafkaTopics(world.settings, constants)
    with pytest.raises(ConfigError, match=r"retention\.ms"):
        await topics.ensure_journal()
    await topics.close()


async def test_a_journal_that_can_be_lost_with_one_broker_is_refused(
    world: KafkaWorld, admin: AIOKafkaAdminClient, constants: ClusterConstants
) -> None:
    config = {"retention.ms": "-1", "retention.bytes": "-1", "min.insync.replicas": "1"}
    await admin.create_topics([NewTopic(constants.journal_name, 4, 1, topic_configs=config)])
    topics = KafkaTopics(world.settings.model_copy(update={"min_insync_replicas": 2}), constants)
    with pytest.raises(ConfigError, match=r"min\.insync\.replicas"):
        await topics.ensure_journal()
    await topics.close()
