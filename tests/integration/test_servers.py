"""What the rest of the tests take for granted of the servers that tools.stack starts."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from cassandra.cluster import Cluster
from kazoo.client import KazooClient
from tools.stack import Addresses, Stack

from bucketsched.config import load

pytestmark = pytest.mark.stack


@contextmanager
def cassandra(address: str) -> Iterator[Any]:
    host, _, port = address.rpartition(":")
    cluster = Cluster([host], port=int(port))
    try:
        yield cluster.connect()
    finally:
        cluster.shutdown()


@contextmanager
def zookeeper(address: str) -> Iterator[KazooClient]:
    client = KazooClient(address, timeout=1.0)
    client.start(timeout=15)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def eventually(condition: Callable[[], bool], within_s: float = 30) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)


def test_the_settings_file_is_valid(stack: Addresses) -> None:
    settings = load(str(stack.settings))
    assert settings.cassandra.contact_points == (stack.cassandra,)
    assert settings.kafka.bootstrap == stack.kafka
    assert settings.zookeeper.hosts == stack.zookeeper
    assert settings.kafka.replication == settings.kafka.min_insync_replicas == settings.cassandra.replication == 1


def test_cassandra_acknowledges_what_is_on_disk(stack: Addresses) -> None:
    with cassandra(stack.cassandra) as session:
        rows = session.execute("SELECT name, value FROM system_views.settings")
        found = {row.name: row.value for row in rows}
    assert found["commitlog_sync"] == "group"
    assert found["commitlog_sync_group_window"] == "2ms"
    assert found["paxos_variant"] == "v2"
    assert found["batch_size_fail_threshold"] == "64KiB"


def test_zookeeper_allows_sessions_of_one_second(stack: Addresses) -> None:
    with zookeeper(stack.zookeeper) as client:
        assert client._session_timeout == 1_000


async def test_kafka_makes_no_topics_by_itself(stack: Addresses, topic_prefix: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=stack.kafka)
    await admin.start()
    try:
        await admin.describe_topics([f"{topic_prefix}-none"])
        assert f"{topic_prefix}-none" not in await admin.list_topics()
    finally:
        await admin.close()


def test_a_killed_cassandra_still_has_its_rows(private_stack: Stack) -> None:
    keyspace = f"t_{uuid.uuid4().hex}"
    with cassandra(private_stack.cassandra.address) as session:
        session.execute(
            f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        )
        session.execute(f"CREATE TABLE {keyspace}.kept (id int PRIMARY KEY)")
        insert = session.prepare(f"INSERT INTO {keyspace}.kept (id) VALUES (?)")
        for answer in [session.execute_async(insert, [number]) for number in range(200)]:
            answer.result()
        private_stack.cassandra.kill()
    assert private_stack.cassandra.process is None
    private_stack.cassandra.start()
    with cassandra(private_stack.cassandra.address) as session:
        assert {row.id for row in session.execute(f"SELECT id FROM {keyspace}.kept")} == set(range(200))


def test_a_paused_zookeeper_goes_on_where_it_was(private_stack: Stack) -> None:
    with zookeeper(private_stack.zookeeper.address) as client:
        client.create("/kept", b"before")
        private_stack.zookeeper.pause()
        assert not private_stack.zookeeper.answers()
        assert not private_stack.healthy()
        private_stack.zookeeper.resume()
        eventually(private_stack.zookeeper.answers)
        eventually(lambda: bool(client.connected))
        assert client.retry(client.get, "/kept")[0] == b"before"


async def test_a_restarted_kafka_keeps_address_and_records(private_stack: Stack) -> None:
    address, topic = private_stack.kafka.address, f"t-{uuid.uuid4().hex}"
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 1, 1)])
    await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=address, transactional_id=topic)
    await producer.start()
    async with producer.transaction():
        await producer.send_and_wait(topic, b"kept")
    await producer.stop()
    await asyncio.to_thread(private_stack.kafka.restart)
    assert private_stack.kafka.address == address
    consumer = AIOKafkaConsumer(
        bootstrap_servers=address, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, 0)])
        record = await asyncio.wait_for(consumer.getone(), 30)
        assert record.value == b"kept"
    finally:
        await consumer.stop()
