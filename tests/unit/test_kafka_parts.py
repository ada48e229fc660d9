"""The pure parts of the Kafka adapters, and what they stand on in aiokafka."""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from bucketsched.adapters.kafka import topic_map
from bucketsched.adapters.kafka.batches import SEQUENCES, Item, Producer, pack, size_of
from bucketsched.adapters.kafka.codes import CERTAINLY_NOT_APPENDED, FENCED, PASSING, TOO_LARGE, Code
from bucketsched.adapters.kafka.connection import Connection, client_arguments
from bucketsched.adapters.kafka.progress import NOTHING, Progress
from bucketsched.adapters.kafka.routes import partition_of
from bucketsched.adapters.kafka.topic_map import TopicMap
from bucketsched.config import KafkaSettings
from bucketsched.core.errors import Unavailable

PRODUCER = Producer(77, 3)
PLACE = ("topic", 0)


# ---------------------------------------------------------------- batches


def read_back(data: bytes) -> list[tuple[bytes | None, bytes, tuple[tuple[str, bytes], ...]]]:
    records = PartitionRecords(TopicPartition(*PLACE), MemoryRecords(data), [], 0, None, None, True, READ_COMMITTED)
    return [(record.key, record.value, record.headers) for record in records]


items = st.builds(
    Item,
    st.just(0),
    st.none() | st.binary(max_size=20),
    st.binary(max_size=300),
    st.lists(st.tuples(st.text(max_size=10), st.binary(max_size=20)), max_size=4),
)


@given(st.lists(items, min_size=1, max_size=60), st.integers(0, SEQUENCES - 1))
def test_what_is_packed_is_read_back_in_batches_that_follow_each_other(packed: list[Item], sequence: int) -> None:
    for index, item in enumerate(packed):
        item.index = index
    batches = pack(PLACE, packed, PRODUCER, sequence, bytes_max=1_000)
    found = [record for batch in batches for record in read_back(batch.data)]
    assert found == [(item.key, item.value, tuple(item.headers)) for item in packed]
    assert [index for batch in batches for index in batch.indices] == list(range(len(packed)))
    for batch in batches:
        header = DefaultRecordBatch(batch.data)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, sequence)
        assert header.is_transactional
        assert len(batch.data) <= 1_000 or len(batch.indices) == 1
        sequence = batch.next_sequence


@given(items)
def test_the_estimated_size_is_an_upper_bound(item: Item) -> None:
    [batch] = pack(PLACE, [item], PRODUCER, 0, 1)
    assert len(batch.data) <= size_of(item.key, item.value, item.headers)


def test_sequence_numbers_start_again() -> None:
    [batch] = pack(PLACE, [Item(0, None, b"", [])] * 3, PRODUCER, SEQUENCES - 1, 10_000)
    assert batch.next_sequence == 2


# ---------------------------------------------------------------- routes and codes


@pytest.mark.parametrize(
    ("key", "hashed"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536), (b"abc", 479470107)],
)
def test_keys_go_where_kafkas_own_clients_put_them(key: bytes, hashed: int) -> None:
    """Reference values from the tests of org.apache.kafka.common.utils.Utils.murmur2."""
    assert partition_of(key, 10) == (hashed & 0x7FFFFFFF) % 10


def test_the_groups_of_codes_do_not_contradict_each_other() -> None:
    assert not FENCED & PASSING
    assert not FENCED & CERTAINLY_NOT_APPENDED
    assert not TOO_LARGE & PASSING
    assert Code.NOT_LEADER not in CERTAINLY_NOT_APPENDED, "it also comes after an append that was not replicated"
    assert Code(12_345) is Code.UNKNOWN


class FakeConnection:
    """Knows the topics that it is given, by name and leaders; keeps what was asked."""

    def __init__(self, **leaders: list[int]) -> None:
        self.leaders = leaders
        self.asked: list[MetadataRequest] = []
        self.broken = False

    async def send_anywhere(self, request: MetadataRequest) -> SimpleNamespace:
        self.asked.append(request)
        if self.broken:
            raise Unavailable("broken")
        topics: list[Any] = [
            (Code.NONE, name, False, [(Code.NONE, p, leader, [], [], []) for p, leader in enumerate(leaders)])
            for name, leaders in self.leaders.items()
        ]
        return SimpleNamespace(brokers=[1], topics=topics)


async def test_asking_for_a_topic_never_creates_it() -> None:
    connection = FakeConnection(known=[1])
    await TopicMap(cast(Connection, connection)).know(["known"])
    [request] = connection.asked
    assert not request.prepare({3: (0, 5)}).allow_auto_topic_creation


async def test_partitions_without_a_leader_are_not_written_to() -> None:
    connection = FakeConnection(half=[-1, 7])
    topics = TopicMap(cast(Connection, connection))
    await topics.know(["half"])
    topic = topics.get("half")
    assert topic is not None
    assert topic.led == (1,)
    assert topics.leader("half", 0) == -1
    assert topics.leader("half", 1) == 7
    assert topics.leader("half", 2) == -1


async def test_a_topic_that_aged_is_used_while_brokers_dont_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = FakeConnection(known=[1])
    topics = TopicMap(cast(Connection, connection))
    await topics.know(["known"])
    monkeypatch.setattr(topic_map, "AGE_S_MAX", -1.0)
    connection.broken = True
    await topics.know(["known"])
    assert topics.leader("known", 0) == 1
    await asyncio.sleep(0)
    assert len(connection.asked) == 2, "asked in the background"
    await topics.close()


# ---------------------------------------------------------------- progress


@given(st.permutations(range(12)), st.integers(0, 12))
def test_the_offset_behind_the_unbroken_row_can_be_committed(order: list[int], stop: int) -> None:
    progress, offsets = Progress(), [3 * i + 1 for i in range(12)]
    for token, offset in enumerate(offsets):
        progress.add(offset, token)
    closed = sum(progress.finish(token) for token in order[:stop])
    row = next((i for i in range(12) if i not in order[:stop]), 12)
    assert closed == row
    assert progress.committable == (offsets[row - 1] + 1 if row else NOTHING)
    assert len(progress) == 12 - row
    assert sorted(progress.tokens) == sorted(set(range(12)) - set(order[:stop]))


def test_a_record_that_is_read_again_is_a_repeat() -> None:
    progress = Progress()
    assert not progress.is_repeat(0)
    progress.add(0, 1)
    progress.add(5, 2)
    assert progress.is_repeat(5)
    assert not progress.is_repeat(6)
    progress.finish(1)
    assert progress.uncommitted
    progress.committed = progress.committable
    assert not progress.uncommitted
    assert progress.is_repeat(0)


# ---------------------------------------------------------------- settings


def test_security_reaches_the_client() -> None:
    settings = KafkaSettings(
        bootstrap="a:1,b:2",
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        username="u",
        password=SecretStr("p"),
    )
    arguments = client_arguments(settings)
    assert arguments.pop("ssl_context").check_hostname
    assert arguments == {
        "bootstrap_servers": "a:1,b:2",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "u",
        "sasl_plain_password": "p",
    }
    assert set(client_arguments(KafkaSettings())) == {"bootstrap_servers", "security_protocol"}


# ---------------------------------------------------------------- what the adapters stand on


def test_aiokafka_still_speaks_the_protocol_versions_that_the_stream_expects() -> None:
    """From EndTxn v5 on, an answer carries a new epoch to be used; newer Produce registers partitions by itself."""
    versions = {
        InitProducerIdRequest: InitProducerIdRequest("id", 1),
        AddPartitionsToTxnRequest: AddPartitionsToTxnRequest("id", 1, 1, []),
        EndTxnRequest: EndTxnRequest("id", 1, 1, True),
    }
    for kind, request in versions.items():
        assert request.prepare({kind.API_KEY: (0, 99)}).API_VERSION == 0, kind
    assert ProduceRequest("id", -1, 1, []).prepare({0: (0, 99)}).API_VERSION <= 8


def test_aiokafkas_client_sends_a_request_once() -> None:
    """The stream counts on it: what is repeated, and what must not be, is decided there."""
    source = inspect.getsource(AIOKafkaClient.send)
    assert source.count(".send(") == 1
    assert "while" not in source
