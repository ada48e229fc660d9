"""The in-memory stores under the conformance suites."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from store_adapters import CONSTANTS, StoresUnderTest

from bucketsched.adapters.memory.keys import MemoryKeyStore
from bucketsched.adapters.memory.store import MemoryCatalog, MemoryCheckpointStore, MemoryTaskStore
from bucketsched.core.task import TaskRow

NAME = "memory"
MARKS: list[pytest.MarkDecorator] = []


@asynccontextmanager
async def open_stores(request: pytest.FixtureRequest) -> AsyncIterator[StoresUnderTest]:
    tasks, checkpoints = MemoryTaskStore(), MemoryCheckpointStore()

    async def plant(row: TaskRow, body: bytes) -> None:
        tasks.plant(row, body)

    async def plant_checkpoint(range_id: int, order: int, body: bytes) -> None:
        checkpoints.plant(range_id, order, body)

    yield StoresUnderTest(tasks, checkpoints, MemoryCatalog(CONSTANTS), MemoryKeyStore(), plant, plant_checkpoint)
