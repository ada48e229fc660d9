"""The simulation's stores, with three replicas, under the conformance suites."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from simulated_world import network, real_time
from store_adapters import CONSTANTS, StoresUnderTest
from tests.simulation.replicas import (
    Cassandra,
    SimCatalog,
    SimCheckpointStore,
    SimKeyStore,
    SimTaskStore,
    StoreObserver,
)

from bucketsched.adapters.memory.keys import MemoryKeyStore
from bucketsched.adapters.memory.store import MemoryCatalog
from bucketsched.core.task import TaskRow
from bucketsched.core.task_id import shard_in
from bucketsched.encoding.rows import decode_body

NAME = "simulated"
MARKS: list[pytest.MarkDecorator] = []


@asynccontextmanager
async def open_stores(request: pytest.FixtureRequest) -> AsyncIterator[StoresUnderTest]:
    loop = real_time()
    wires = network(loop)
    cassandra = Cassandra(loop, random.Random(7), StoreObserver())

    async def plant(row: TaskRow, body: bytes) -> None:
        planted = TaskRow(row.due_ms, row.namespace_id, row.task_id, decode_body(body), row.generation, row.attempt)
        for replica in cassandra.replicas:
            replica.put((row.bucket, shard_in(row.task_id)), [planted])

    async def plant_checkpoint(range_id: int, order: int, body: bytes) -> None:
        for replica in cassandra.replicas:
            replica.checkpoint(range_id, order, body)

    yield StoresUnderTest(
        SimTaskStore(cassandra, wires, "node"),
        SimCheckpointStore(cassandra, wires, "node"),
        SimCatalog(MemoryCatalog(CONSTANTS), wires, "node"),
        SimKeyStore(MemoryKeyStore(), wires, "node"),
        plant,
        plant_checkpoint,
    )
