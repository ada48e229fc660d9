"""The outbox in SQLite for the suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from journal_harness import worker_queue

from bucketsched.adapters.sqlite.database import Database
from bucketsched.adapters.sqlite.deliveries import SqliteDeliveries
from bucketsched.adapters.sqlite.journal import SqliteJournal
from bucketsched.adapters.sqlite.outbox import Outbox
from bucketsched.core.catalog import Queue
from bucketsched.core.message import Message
from bucketsched.ports import Deliveries


class SqliteHarness:
    """See DeliveriesHarness. One process has the directory, so all instances share its outbox."""

    acks_beyond_gaps_are_durable = True

    def __init__(self, outbox: Outbox, journal: SqliteJournal) -> None:
        self.outbox = outbox
        self.journal = journal

    def open(self) -> Deliveries:
        return SqliteDeliveries(self.outbox)

    async def make_queue(self) -> Queue:
        return worker_queue()

    async def publish(self, messages: Sequence[Message]) -> None:
        await self.journal.commit(messages, b"record")


@asynccontextmanager
async def deliveries_harness(request: pytest.FixtureRequest) -> AsyncIterator[SqliteHarness]:
    database = Database.open(request.getfixturevalue("tmp_path"))
    outbox = Outbox(database)
    journal = SqliteJournal(database, outbox, "sqlite-journal")
    await journal.init()
    yield SqliteHarness(outbox, journal)
    await database.close()
