"""The SQLite stores under the conformance suites."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from store_adapters import CONSTANTS, StoresUnderTest

from bucketsched.adapters.sqlite.catalog import SqliteCatalog
from bucketsched.adapters.sqlite.checkpoints import SAVE, SqliteCheckpointStore
from bucketsched.adapters.sqlite.database import Database
from bucketsched.adapters.sqlite.keys import SqliteKeyStore
from bucketsched.adapters.sqlite.store import SqliteTaskStore
from bucketsched.core.task import TaskRow

NAME = "sqlite"
MARKS: list[pytest.MarkDecorator] = []


@asynccontextmanager
async def open_stores(request: pytest.FixtureRequest) -> AsyncIterator[StoresUnderTest]:
    directory: Path = request.getfixturevalue("tmp_path")
    database = Database.open(directory)
    tasks, catalog = SqliteTaskStore(database), SqliteCatalog(database)

    async def plant(row: TaskRow, body: bytes) -> None:
        await tasks.insert([row])
        statement = "UPDATE tasks SET body = ? WHERE due_ms = ? AND namespace_id = ? AND task_id = ?"
        parameters = (body, row.due_ms, row.namespace_id, row.task_id)
        await database.write(lambda connection: connection.execute(statement, parameters))

    async def plant_checkpoint(range_id: int, order: int, body: bytes) -> None:
        await database.write(lambda connection: connection.execute(SAVE, (range_id, order, body)))

    try:
        await catalog.establish(CONSTANTS, now_ms=1_740_000_000_000)
        yield StoresUnderTest(
            tasks, SqliteCheckpointStore(database), catalog, SqliteKeyStore(database), plant, plant_checkpoint
        )
    finally:
        await database.close()
