"""The Cassandra stores under the conformance suites: one keyspace for the whole run, one connection a test."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from store_adapters import CONSTANTS, StoresUnderTest, WallClock

from bucketsched.adapters.cassandra.catalog import CassandraCatalog
from bucketsched.adapters.cassandra.checkpoints import CassandraCheckpointStore
from bucketsched.adapters.cassandra.keys import CassandraKeyStore
from bucketsched.adapters.cassandra.migrations import files_directory, migrate
from bucketsched.adapters.cassandra.session import CassandraSession
from bucketsched.adapters.cassandra.store import CassandraTaskStore
from bucketsched.config import CassandraSettings, load
from bucketsched.core.checkpoint import epoch_of, sequence_of
from bucketsched.core.task import TaskRow
from bucketsched.core.task_id import shard_in

NAME = "cassandra"
MARKS = [pytest.mark.stack]

_migrated: dict[str, CassandraSettings] = {}


def _settings(request: pytest.FixtureRequest) -> CassandraSettings:
    """The stack's, with a keyspace of this run's that is dropped at its end."""
    stack = request.getfixturevalue("stack")
    given = load(str(stack.settings)).cassandra
    return given.model_copy(update={"keyspace": f"conformance_{uuid.uuid4().hex[:12]}", "request_timeout_ms": 10_000})


async def _migrate(request: pytest.FixtureRequest) -> CassandraSettings:
    if NAME not in _migrated:
        settings = _settings(request)
        await migrate(settings, CONSTANTS, files_directory(), WallClock())
        _migrated[NAME] = settings
        request.session.addfinalizer(lambda: asyncio.run(_drop(settings)))  # type: ignore[attr-defined]
    return _migrated[NAME]


async def _drop(settings: CassandraSettings) -> None:
    session = await CassandraSession.connect(settings)
    await session.change_schema(f"DROP KEYSPACE IF EXISTS {settings.keyspace}", keyspace="")
    await session.close()


@asynccontextmanager
async def open_stores(request: pytest.FixtureRequest) -> AsyncIterator[StoresUnderTest]:
    settings = await _migrate(request)
    session = await CassandraSession.connect(settings)
    try:
        tasks = await CassandraTaskStore.open(session, settings, WallClock(), CONSTANTS.retention_ms)
        checkpoints = await CassandraCheckpointStore.open(session)
        catalog = await CassandraCatalog.open(session)
        keys = await CassandraKeyStore.open(session, WallClock())
        columns = "bucket, shard, due_at, namespace_id, task_id, body, generation, attempt"
        planted = await session.prepare(f"INSERT INTO @tasks ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)")

        async def plant(row: TaskRow, body: bytes) -> None:
            place = (row.bucket, shard_in(row.task_id), row.due_ms, row.namespace_id, row.task_id)
            await session.write(planted, (*place, body, row.generation, row.attempt))

        saved = await session.prepare(
            "INSERT INTO @range_checkpoints (range_id, epoch, sequence, body) VALUES (?, ?, ?, ?) USING TIMESTAMP ?"
        )

        async def plant_checkpoint(range_id: int, order: int, body: bytes) -> None:
            await session.write(saved, (range_id, epoch_of(order), sequence_of(order), body, order))

        yield StoresUnderTest(tasks, checkpoints, catalog, keys, plant, plant_checkpoint)
    finally:
        await session.close()
