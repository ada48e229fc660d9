"""What can't be decoded or sent is set aside with its reason, and blocks nothing. On real servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from kafka_world import KafkaWorld, message, records
from tests.nodes import Cluster, until_state
from tests.recorder import Recorder
from tests.workload import workload
from tools.stack import Addresses

from bucketsched import CreatedTask, NewTask, QueueKind, TaskState, config
from bucketsched.adapters.cassandra.catalog import CassandraCatalog
from bucketsched.adapters.cassandra.session import CassandraSession
from bucketsched.adapters.sqlite.catalog import SqliteCatalog
from bucketsched.adapters.sqlite.database import Database
from bucketsched.core.catalog import Queue
from bucketsched.core.catalog import QueueKind as Kind
from bucketsched.core.errors import Unavailable
from bucketsched.core.task import TaskRow
from bucketsched.core.task_id import shard_in
from bucketsched.core.task_id import text as id_text
from bucketsched.ports import CommitRefused

stack_only = pytest.mark.stack


@pytest.fixture
async def world(stack: Addresses, topic_prefix: str) -> AsyncIterator[KafkaWorld]:
    opened = KafkaWorld(config.load(str(stack.settings)).kafka, topic_prefix)
    await opened.start()
    yield opened
    await opened.close()


# ---------------------------------------------------------------- single records that brokers refuse


@stack_only
async def test_a_record_that_its_topic_refuses_is_found_among_its_neighbours(world: KafkaWorld) -> None:
    """A compacted topic wants a key. The broker says only that something of the batch is invalid."""
    journal, topic = await world.started(0), await world.made(cleanup_policy="compact")
    good = [message(topic, b"%d" % i, b"key") for i in range(7)]
    batch = [*good[:3], message(topic, b"poison"), *good[3:]]
    blamed: dict[int, str] = {}
    for _ in range(12):
        left = [one for index, one in enumerate(batch) if index not in blamed]
        try:
            await journal.commit(left, b"record")
            break
        except CommitRefused as refused:
            assert not blamed
            blamed |= refused.culprits
    assert set(blamed) == {3}
    assert await world.visible(topic, 7) == [b"%d" % i for i in range(7)]
    assert await records(journal, 0) == [b"record"]


# ---------------------------------------------------------------- a queue of a later version


async def test_a_queue_of_a_kind_that_is_not_known_here_waits_for_who_knows_it(tmp_path: Path) -> None:
    """Its tasks are held, not failed: another version may have made it during a rolling upgrade."""
    database = Database.open(tmp_path)
    catalog = SqliteCatalog(database)
    queue = Queue(bytes(16), "ns", "later", Kind.KAFKA, "topic")
    await catalog.create_queue(queue)
    await catalog.create_queue(replace(queue, name="known"))
    await database.write(lambda connection: connection.execute("UPDATE queues SET kind = 'fax' WHERE name = 'later'"))
    with pytest.raises(Unavailable, match="'fax'"):
        await catalog.get_queue(bytes(16), "later")
    assert (await catalog.get_queue(bytes(16), "known")) == replace(queue, name="known")
    await database.close()


# ---------------------------------------------------------------- rows


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    cluster = make_cluster(shards=8, ranges=4, horizon_ms=60_000, grace_ms=2_000)
    cluster.start("node", "api,coordinator,poller", zookeeper__session_timeout_ms=10_000)
    return cluster


async def planted(cluster: Cluster, row: TaskRow, body: bytes, generation: int | None) -> None:
    """As somebody else would who writes into the keyspace, or a disk that lies."""
    session = await CassandraSession.connect(cluster.settings.cassandra)
    try:
        columns = "bucket, shard, due_at, namespace_id, task_id, body, generation, attempt"
        statement = await session.prepare(f"INSERT INTO @tasks ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)")
        place = (row.bucket, shard_in(row.task_id), row.due_ms, row.namespace_id, row.task_id)
        await session.write(statement, (*place, body, generation, generation and 1))
    finally:
        await session.close()


async def tight_queue(cluster: Cluster, name: str) -> None:
    """A topic that takes 3,000 bytes."""
    admin = AIOKafkaAdminClient(bootstrap_servers=cluster.kafka)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, 1, 1, topic_configs={"max.message.bytes": "3000"})])
    finally:
        await admin.close()


@stack_only
async def test_poison_is_failed_with_its_reason_and_its_neighbours_are_on_time(cluster: Cluster) -> None:
    address = await cluster.processes[0].ready()
    await cluster.settled(cluster.processes[0])
    async with workload(cluster, address) as work, cluster.rows() as rows:
        tight = f"{cluster.prefix}-tight"
        await tight_queue(cluster, tight)
        await work.client.create_queue(tight, QueueKind.KAFKA, topic=tight)
        good = await work.create([6 + 0.05 * i for i in range(40)])
        soon = good[20].due_ms
        garbage, headless, homeless = (rows.made(soon + i, work.queue) for i in range(3))
        homeless.body.queue = "nowhere"
        await planted(cluster, garbage, b"\xff\xff\xff", 0)
        await planted(cluster, headless, b"\x0a\x00", None)  # which no scan for what is pending tells of
        await rows.insert([homeless])
        (big,) = await work.client.create_many([NewTask("t", bytes(9_000), tight, delay=5)])
        assert isinstance(big, CreatedTask)
        expected = {
            id_text(garbage.task_id): "can't be decoded",
            id_text(homeless.task_id): "'nowhere' does not exist",
            big.id: "more than topic",
        }
        async with Recorder(cluster.kafka, (tight,)) as other:
            await work.recorder.exactly(good)
            for task_id, reason in expected.items():
                found = await until_state(work.client, CreatedTask(task_id, soon), TaskState.FAILED)
                assert reason in found.fail_reason
            assert other.seen == []


@stack_only
async def test_a_queue_of_a_later_version_is_held_in_cassandra_too(cluster: Cluster) -> None:
    session = await CassandraSession.connect(cluster.settings.cassandra)
    try:
        catalog = await CassandraCatalog.open(session)
        namespace = await catalog.get_namespace("default")
        assert namespace is not None
        columns = "namespace_id, name, namespace, kind, topic, partitions, replication, priority_topics"
        statement = await session.prepare(f"INSERT INTO @queues ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)")
        await session.write(statement, (namespace.namespace_id, "later", "default", "fax", "t", 1, 1, False))
        with pytest.raises(Unavailable, match="'fax'"):
            await catalog.get_queue(namespace.namespace_id, "later")
    finally:
        await session.close()
