"""The simulation's journal for the suite."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from journal_harness import worker_queue
from simulated_world import network, real_time
from tests.simulation.broker import Broker, SimJournal

from bucketsched.core.catalog import Queue
from bucketsched.core.message import Headers, Message
from bucketsched.ports import Journal


class Nobody:
    """Takes no note."""

    def committed(self, lane: int, offset: int, record: bytes, messages: Sequence[Message]) -> None: ...

    def fenced(self, lane: int) -> None: ...


class SimulatedHarness:
    """See JournalHarness."""

    message_bytes_max = 20_000

    def __init__(self) -> None:
        loop = real_time()
        self.network = network(loop)
        self.broker = Broker(loop, random.Random(7), 3, Nobody(), self.message_bytes_max)

    def open(self, lane: int) -> Journal:
        return SimJournal(self.broker, self.network, "node", lane)

    async def make_queue(self) -> Queue:
        return worker_queue()

    async def visible(self, queue: Queue, count: int) -> list[tuple[Headers, bytes]]:
        return [(m.headers, m.value) for m in self.broker.queue_messages(queue.namespace_id, queue.name)]


@asynccontextmanager
async def journal_harness(request: pytest.FixtureRequest) -> AsyncIterator[SimulatedHarness]:
    yield SimulatedHarness()
