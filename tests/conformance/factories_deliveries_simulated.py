"""The simulation's deliveries for the suite."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from factories_journal_simulated import Nobody
from journal_harness import worker_queue
from simulated_world import network, real_time
from tests.simulation.broker import Broker, SimJournal
from tests.simulation.consumers import ConsumerGroups, SimDeliveries
from tests.simulation.loop import CURRENT, Process

from bucketsched.core.catalog import Queue
from bucketsched.core.message import Message
from bucketsched.ports import Deliveries


class SimulatedHarness:
    """See DeliveriesHarness. What is done outlives a process here, so all instances share it."""

    acks_beyond_gaps_are_durable = True

    def __init__(self) -> None:
        loop = real_time()
        self.network = network(loop)
        self.broker = Broker(loop, random.Random(7), 1, Nobody(), 1_000_000)
        self.groups = ConsumerGroups(loop, self.network, self.broker)

    def open(self) -> Deliveries:
        CURRENT.set(Process("node"))
        return SimDeliveries(self.groups, self.network, "node")

    async def make_queue(self) -> Queue:
        return worker_queue()

    async def publish(self, messages: Sequence[Message]) -> None:
        journal = SimJournal(self.broker, self.network, "node", 0)
        await journal.init()
        await journal.commit(messages, b"record")


@asynccontextmanager
async def deliveries_harness(request: pytest.FixtureRequest) -> AsyncIterator[SimulatedHarness]:
    yield SimulatedHarness()
