"""The deliveries on Kafka for the suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import uuid4

import pytest
from factories_journal_kafka import KafkaHarness as Journals
from factories_journal_kafka import journal_harness
from journal_harness import worker_queue

from bucketsched.adapters.kafka.deliveries import KafkaDeliveries
from bucketsched.core.catalog import Queue, QueueKind
from bucketsched.core.message import Message
from bucketsched.ports import Deliveries, Journal


class KafkaHarness:
    """See DeliveriesHarness. One partition per queue, as only within one there is an order."""

    acks_beyond_gaps_are_durable = False

    def __init__(self, journals: Journals, topic_prefix: str) -> None:
        self.journals = journals
        self._prefix = topic_prefix
        self._writer: Journal | None = None

    def open(self) -> Deliveries:
        return KafkaDeliveries(self.journals.settings, self.journals.constants)

    async def make_queue(self) -> Queue:
        queue = replace(worker_queue(), kind=QueueKind.KAFKA, topic=f"{self._prefix}-{uuid4().hex}", partitions=1)
        return await self.journals.topics.ensure(queue)

    async def publish(self, messages: Sequence[Message]) -> None:
        if self._writer is None:
            self._writer = self.journals.open(0)
            await self._writer.init()
        await self._writer.commit(messages, b"record")


@asynccontextmanager
async def deliveries_harness(request: pytest.FixtureRequest) -> AsyncIterator[KafkaHarness]:
    async with journal_harness(request) as journals:
        yield KafkaHarness(journals, request.getfixturevalue("topic_prefix"))
