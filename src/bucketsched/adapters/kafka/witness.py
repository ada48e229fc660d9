"""Kafka's brokers as witnesses of the time: the append time that each gives to a record, in a topic made for this."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from ...config import KafkaSettings
from ...core.clock_discipline import NS_PER_MS, Testimony
from ...core.clock_votes import Interval
from ...core.cluster import ClusterConstants
from ...core.errors import Unavailable
from .batches import MAGIC, NO_COMPRESSION
from .codes import Code
from .connection import Connection
from .topic_map import TopicMap

ACKS_LEADER = 1
TIMEOUT_MS = 1_000
BATCH_BYTES = 1_024
NO_PRODUCER = -1


class KafkaWitnesses:
    """Port TimeWitness: every broker that leads a partition of the topic."""

    def __init__(self, settings: KafkaSettings, constants: ClusterConstants) -> None:
        self._topic = constants.clock_topic
        self._connection = Connection(settings, "bucketsched-clock")
        self._topics = TopicMap(self._connection)

    async def testify(self, boot_ns: Callable[[], int]) -> list[Testimony]:
        """What the brokers say that answer. Raises Unavailable where none does."""
        await self._topics.know([self._topic])
        topic = self._topics.get(self._topic)
        if topic is None or not topic.usable:
            raise Unavailable(f"topic {self._topic} can't be written: run `bucketsched admin migrate`")
        partitions = {topic.leaders[partition]: partition for partition in topic.led}
        asked = (self._ask(leader, partition, boot_ns) for leader, partition in partitions.items())
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found = [answer for answer in answers if isinstance(answer, Testimony)]
        if not found:
            self._topics.forget([self._topic])
            raise Unavailable(f"no Kafka broker tells the time: {answers[0]!r}")
        return found

    async def close(self) -> None:
        """Lets go of the brokers."""
        await self._topics.close()
        await self._connection.close()

    async def _ask(self, leader: int, partition: int, boot_ns: Callable[[], int]) -> Testimony:
        topics = [(self._topic, [(partition, _record())])]
        request = ProduceRequest(None, ACKS_LEADER, TIMEOUT_MS, topics)
        sent_ns = boot_ns()
        response: Any = await self._connection.send(leader, request)
        received_ns = boot_ns()
        [(_, [(_, number, _, appended_ms, *_)])] = response.topics
        if Code(number) is not Code.NONE:
            raise Unavailable(f"Kafka broker {leader}: {Code(number).name}")
        if appended_ms < 0:
            raise Unavailable(f"topic {self._topic} does not have message.timestamp.type=LogAppendTime")
        said = Interval(appended_ms * NS_PER_MS, (appended_ms + 1) * NS_PER_MS)
        return Testimony(f"kafka-{leader}", sent_ns, received_ns, said)


def _record() -> bytes:
    """An empty record; the broker gives it its time."""
    builder: Any = DefaultRecordBatchBuilder(
        MAGIC, NO_COMPRESSION, False, NO_PRODUCER, NO_PRODUCER, NO_PRODUCER, BATCH_BYTES
    )
    builder.append(0, 0, None, b"", [])
    return bytes(builder.build())
