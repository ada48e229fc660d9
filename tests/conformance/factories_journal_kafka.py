"""The journal on Kafka for the suite."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from journal_harness import worker_queue

from bucketsched import config
from bucketsched.adapters.kafka.journal import KafkaJournal
from bucketsched.adapters.kafka.topics import KafkaTopics
from bucketsched.core.catalog import Queue, QueueKind
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.message import Headers
from bucketsched.ports import Journal

DEADLINE_S = 20.0
LANES = 3
QUIET_MS = 250
"""Nothing within this: no more is visible."""


class KafkaHarness:
    """See JournalHarness. Every harness is a cluster of its own."""

    message_bytes_max = 200_000

    def __init__(self, settings: config.KafkaSettings, topic_prefix: str) -> None:
        self.settings = settings.model_copy(update={"message_bytes_max": self.message_bytes_max})
        self.constants = ClusterConstants(uuid4(), lanes=LANES)
        self.topics = KafkaTopics(self.settings, self.constants)
        self._prefix = topic_prefix
        self._journals: list[KafkaJournal] = []

    def open(self, lane: int) -> Journal:
        self._journals.append(KafkaJournal(self.settings, self.constants, lane))
        return self._journals[-1]

    async def make_queue(self) -> Queue:
        queue = replace(worker_queue(), kind=QueueKind.KAFKA, topic=f"{self._prefix}-{uuid4().hex}", partitions=1)
        return await self.topics.ensure(queue)

    async def visible(self, queue: Queue, count: int) -> list[tuple[Headers, bytes]]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.settings.bootstrap, isolation_level="read_committed", fetch_max_wait_ms=50
        )
        await consumer.start()
        place = TopicPartition(queue.topic, 0)
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        found: list[tuple[Headers, bytes]] = []
        deadline = asyncio.get_running_loop().time() + DEADLINE_S
        try:
            while asyncio.get_running_loop().time() < deadline:
                records = [r for rs in (await consumer.getmany(timeout_ms=QUIET_MS)).values() for r in rs]
                found += [(list(record.headers), record.value) for record in records]
                if not records and len(found) >= count:
                    break
            return found
        finally:
            await consumer.stop()

    async def close(self) -> None:
        await asyncio.gather(*(journal.close() for journal in self._journals))
        await self.topics.close()
        admin = AIOKafkaAdminClient(bootstrap_servers=self.settings.bootstrap)
        await admin.start()
        await admin.delete_topics([self.constants.journal_name])
        await admin.close()


@asynccontextmanager
async def journal_harness(request: pytest.FixtureRequest) -> AsyncIterator[KafkaHarness]:
    stack = request.getfixturevalue("stack")
    harness = KafkaHarness(config.load(stack.settings).kafka, request.getfixturevalue("topic_prefix"))
    await harness.topics.ensure_journal()
    yield harness
    await harness.close()
