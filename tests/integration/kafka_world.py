"""A cluster of its own on the real broker, for the tests of the Kafka adapters."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import uuid4

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from bucketsched.adapters.kafka.journal import KafkaJournal
from bucketsched.adapters.kafka.topics import KafkaTopics
from bucketsched.config import KafkaSettings
from bucketsched.core.catalog import Queue, QueueKind
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.message import Message
from bucketsched.ports import Journal

DEADLINE_S = 20.0
QUIET_MS = 250
NAMESPACE_ID = uuid4().bytes


class KafkaWorld:
    """Opens journals, makes queues, and looks at topics as a consumer of its own."""

    def __init__(self, settings: KafkaSettings, topic_prefix: str) -> None:
        self.settings = settings
        self.prefix = topic_prefix
        self.constants = ClusterConstants(uuid4(), lanes=3)
        self.topics = KafkaTopics(settings, self.constants)
        self._journals: list[KafkaJournal] = []
        self._admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)

    async def start(self) -> None:
        await self._admin.start()
        await self.topics.ensure_journal()

    async def close(self) -> None:
        await asyncio.gather(*(journal.close() for journal in self._journals))
        await self.topics.close()
        await self._admin.delete_topics([self.constants.journal_name])
        await self._admin.close()

    def journal(self, lane: int, **changes: object) -> KafkaJournal:
        """A journal with some settings changed."""
        settings = self.settings.model_copy(update=changes)
        self._journals.append(KafkaJournal(settings, self.constants, lane))
        return self._journals[-1]

    async def started(self, lane: int, **changes: object) -> KafkaJournal:
        journal = self.journal(lane, **changes)
        await journal.init()
        return journal

    def queue(self, name: str = "", partitions: int = 1) -> Queue:
        """A queue with a topic that does not exist yet."""
        name = name or uuid4().hex[:12]
        return Queue(NAMESPACE_ID, "ns", name, QueueKind.KAFKA, f"{self.prefix}-{name}", partitions, 1)

    async def made(self, partitions: int = 1, **config: str) -> Queue:
        """A queue with a topic; settings of the topic in snake case."""
        queue = self.queue(partitions=partitions)
        plain = {key.replace("_", "."): value for key, value in config.items()}
        await self._admin.create_topics([NewTopic(queue.topic, partitions, 1, topic_configs=plain)])
        return await self.topics.ensure(queue)

    async def topic_names(self) -> list[str]:
        return list(await self._admin.list_topics())

    async def trim(self, topic: str, partition: int, offset: int) -> None:
        """Deletes the records before an offset."""
        await self._admin.delete_records({TopicPartition(topic, partition): _before(offset)})

    async def visible(self, queue: Queue, count: int) -> list[bytes]:
        """What a `read_committed` consumer sees: waits for `count` messages, then for quiet."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.settings.bootstrap, isolation_level="read_committed", fetch_max_wait_ms=50
        )
        await consumer.start()
        places = [TopicPartition(queue.topic, partition) for partition in range(queue.partitions)]
        consumer.assign(places)
        await consumer.seek_to_beginning(*places)
        found: list[bytes] = []
        try:
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    records = [r for rs in (await consumer.getmany(timeout_ms=QUIET_MS)).values() for r in rs]
                    found += [record.value for record in records]
                    if not records and len(found) >= count:
                        return found
        finally:
            await consumer.stop()


def _before(offset: int) -> object:
    from aiokafka.admin import RecordsToDelete

    return RecordsToDelete(before_offset=offset)


def message(queue: Queue, value: bytes, key: bytes | None = None) -> Message:
    """A message to a queue."""
    return Message(uuid4().bytes, queue, queue.topic, key, [("ce_id", b"1")], value)


async def records(journal: Journal, lane: int) -> list[bytes]:
    """All committed records of a lane."""
    start = await journal.start(lane)

    async def collected() -> Sequence[bytes]:
        return [entry.value async for entries in journal.read(lane, start) for entry in entries]

    return list(await asyncio.wait_for(collected(), DEADLINE_S))
