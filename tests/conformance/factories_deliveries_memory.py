"""The in-memory deliveries for the suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from journal_harness import worker_queue

from bucketsched.adapters.memory.deliveries import MemoryDeliveries
from bucketsched.adapters.memory.journal import MemoryJournal, MemoryJournalWorld
from bucketsched.core.catalog import Queue
from bucketsched.core.message import Message
from bucketsched.ports import Deliveries


class MemoryHarness:
    """See DeliveriesHarness. What is done outlives a process here, so all instances share it."""

    acks_beyond_gaps_are_durable = True

    def __init__(self) -> None:
        self.world = MemoryJournalWorld(lanes=1)
        self.deliveries = MemoryDeliveries(self.world)

    def open(self) -> Deliveries:
        return self.deliveries

    async def make_queue(self) -> Queue:
        return worker_queue()

    async def publish(self, messages: Sequence[Message]) -> None:
        journal = MemoryJournal(self.world, 0)
        await journal.init()
        await journal.commit(messages, b"record")


@asynccontextmanager
async def deliveries_harness(request: pytest.FixtureRequest) -> AsyncIterator[MemoryHarness]:
    yield MemoryHarness()
