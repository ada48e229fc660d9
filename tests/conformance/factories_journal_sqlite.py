"""The journal in SQLite for the suite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from journal_harness import worker_queue

from bucketsched.adapters.sqlite.database import Database
from bucketsched.adapters.sqlite.deliveries import SqliteDeliveries
from bucketsched.adapters.sqlite.journal import SqliteJournal
from bucketsched.adapters.sqlite.outbox import Outbox
from bucketsched.core.catalog import Queue
from bucketsched.core.message import Headers
from bucketsched.ports import Journal


class SqliteHarness:
    """See JournalHarness. What a consumer sees is what the table holds."""

    message_bytes_max = 100_000

    def __init__(self, database: Database) -> None:
        self.database = database
        self.outbox = Outbox(database)

    def open(self, lane: int) -> Journal:
        return SqliteJournal(self.database, self.outbox, "sqlite-journal", lane, self.message_bytes_max)

    async def make_queue(self) -> Queue:
        return worker_queue()

    async def visible(self, queue: Queue, count: int) -> list[tuple[Headers, bytes]]:
        found, complete = await self.outbox.read((queue.namespace_id, queue.name), 0, 100_000)
        assert complete
        if found:
            subscription = await SqliteDeliveries(self.outbox).subscribe(queue)
            assert await subscription.fetch(100_000) == found
            await subscription.close()
        return [(delivery.headers, delivery.value) for delivery in found]


@asynccontextmanager
async def journal_harness(request: pytest.FixtureRequest) -> AsyncIterator[SqliteHarness]:
    database = Database.open(request.getfixturevalue("tmp_path"))
    yield SqliteHarness(database)
    await database.close()
