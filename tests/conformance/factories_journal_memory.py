"""The in-memory journal for the suite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from journal_harness import worker_queue

from bucketsched.adapters.memory.journal import MemoryJournal, MemoryJournalWorld
from bucketsched.core.catalog import Queue
from bucketsched.core.message import Headers
from bucketsched.ports import Journal


class MemoryHarness:
    """See JournalHarness."""

    message_bytes_max = 20_000

    def __init__(self) -> None:
        self.world = MemoryJournalWorld(lanes=3, message_bytes_max=self.message_bytes_max)

    def open(self, lane: int) -> Journal:
        return MemoryJournal(self.world, lane)

    async def make_queue(self) -> Queue:
        return worker_queue()

    async def visible(self, queue: Queue, count: int) -> list[tuple[Headers, bytes]]:
        return [(m.headers, m.value) for m in self.world.queue_messages(queue.namespace_id, queue.name)]


@asynccontextmanager
async def journal_harness(request: pytest.FixtureRequest) -> AsyncIterator[MemoryHarness]:
    yield MemoryHarness()
