"""The journal of the embedded mode: a dispatch is one SQLite transaction of its record and its messages."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from functools import partial

from ...core import failpoints
from ...core.errors import NotWritten, OutcomeUnknown, OwnershipLost
from ...core.journal_record import written_ms
from ...core.message import Message
from ...ports import CommitRefused, JournalEntry
from .database import Database, as_unavailable
from .outbox import Outbox, pack_headers

MESSAGE_BYTES_MAX = 64 * 1024 * 1024
RECORDS_PER_READ_MAX = 64
TRIM_RECORDS_MAX = 1_000
"""Removed by one call of `trim`."""

_NOT_INITIALISED = -1
_TAKE = """INSERT INTO lanes (lane, producer, start_offset, next_offset) VALUES (?, 1, 0, 0)
    ON CONFLICT (lane) DO UPDATE SET producer = producer + 1"""
_RECORD = "SELECT record FROM journal WHERE lane = ? AND offset = ?"
_READ = "SELECT offset, record FROM journal WHERE lane = ? AND offset >= ? AND offset < ? ORDER BY offset LIMIT ?"


class SqliteJournal:
    """See ports.Journal. Each init of a lane makes a new producer number; a commit of an older one is refused."""

    def __init__(
        self,
        database: Database,
        outbox: Outbox,
        name: str,
        lane: int = 0,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        self._database = database
        self._outbox = outbox
        self._name = name
        self._lane = lane
        self._message_bytes_max = message_bytes_max
        self._producer = _NOT_INITIALISED

    @property
    def name(self) -> str:
        """See ports.Journal."""
        return self._name

    @property
    def lane(self) -> int:
        """See ports.Journal."""
        return self._lane

    async def init(self) -> None:
        """See ports.Journal."""
        self._producer = await self._take(self._lane)

    async def fence(self, lane: int) -> None:
        """See ports.Journal."""
        await self._take(lane)

    async def _take(self, lane: int) -> int:
        def take(connection: sqlite3.Connection) -> int:
            connection.execute(_TAKE, (lane,))
            return int(connection.execute("SELECT producer FROM lanes WHERE lane = ?", (lane,)).fetchone()[0])

        with as_unavailable():
            return await self._database.write(take, urgent=True)

    async def commit(self, messages: Sequence[Message], record: bytes) -> int:
        """See ports.Journal."""
        self._refuse_oversized(messages)
        rows = [(m.queue.namespace_id, m.queue.name, pack_headers(m.headers), m.value) for m in messages]
        producer = self._producer

        def commit(connection: sqlite3.Connection) -> tuple[int, int]:
            offset = self._append(connection, producer, record)
            first = self._outbox.append(connection, rows)
            failpoints.reach("dispatch.produced")
            return offset, first

        def publish(committed: tuple[int, int]) -> None:
            self._outbox.publish(committed[1], messages)

        try:
            offset, _ = await self._database.write(commit, rows=len(rows) + 1, urgent=True, on_commit=publish)
        except NotWritten as error:
            raise CommitRefused(str(error)) from error
        except OutcomeUnknown:
            self._outbox.interrupt()  # if it was committed, nobody was told of its messages
            raise
        return offset

    def _append(self, connection: sqlite3.Connection, producer: int, record: bytes) -> int:
        query = "SELECT producer, next_offset FROM lanes WHERE lane = ?"
        standing, offset = connection.execute(query, (self._lane,)).fetchone() or (0, 0)
        if standing != producer:
            raise OwnershipLost(f"lane {self._lane} has another producer")
        connection.execute("INSERT INTO journal (lane, offset, record) VALUES (?, ?, ?)", (self._lane, offset, record))
        connection.execute("UPDATE lanes SET next_offset = ? WHERE lane = ?", (offset + 1, self._lane))
        return int(offset)

    def _refuse_oversized(self, messages: Sequence[Message]) -> None:
        limit = self._message_bytes_max
        culprits = {i: f"larger than {limit} bytes" for i, message in enumerate(messages) if message.size > limit}
        if culprits:
            raise CommitRefused("too large", culprits)

    async def start(self, lane: int) -> int:
        """See ports.Journal."""
        return (await self._bounds(lane))[0]

    async def end(self, lane: int) -> int:
        """See ports.Journal."""
        return (await self._bounds(lane))[1]

    async def _bounds(self, lane: int) -> tuple[int, int]:
        query = "SELECT start_offset, next_offset FROM lanes WHERE lane = ?"
        row = await self._database.read(lambda connection: connection.execute(query, (lane,)).fetchone())
        return row or (0, 0)

    async def read(self, lane: int, start: int) -> AsyncIterator[list[JournalEntry]]:
        """See ports.Journal."""
        end = await self.end(lane)
        while start < end:
            entries = await self._database.read(partial(_read, place=(lane, start, end)))
            if not entries:
                return
            yield entries
            start = entries[-1].offset + 1

    async def find(self, lane: int, at_ms: int) -> int | None:
        """See ports.Journal. Offsets have no gaps here, and times rise with them."""
        start, end = await self._bounds(lane)

        def find(connection: sqlite3.Connection) -> int | None:
            def written(offset: int) -> int:
                return written_ms(connection.execute(_RECORD, (lane, offset)).fetchone()[0])

            found = bisect_left(range(start, end), at_ms, key=written) + start
            return found if found < end else None

        return await self._database.read(find)

    async def trim(self, lane: int, before: int) -> bool:
        """See ports.Journal. Forgets at most TRIM_RECORDS_MAX records at a call."""

        def trim(connection: sqlite3.Connection) -> bool:
            start, end = connection.execute(
                "SELECT start_offset, next_offset FROM lanes WHERE lane = ?", (lane,)
            ).fetchone() or (0, 0)
            until = min(before, end, start + TRIM_RECORDS_MAX)
            if until > start:
                connection.execute("DELETE FROM journal WHERE lane = ? AND offset < ?", (lane, until))
                connection.execute("UPDATE lanes SET start_offset = ? WHERE lane = ?", (until, lane))
            return bool(until < min(before, end))

        with as_unavailable():
            return await self._database.write(trim)

    async def close(self) -> None:
        """See ports.Journal. Nothing is ever left open."""
        self._producer = _NOT_INITIALISED


def _read(connection: sqlite3.Connection, place: tuple[int, int, int]) -> list[JournalEntry]:
    return [JournalEntry(*row) for row in connection.execute(_READ, (*place, RECORDS_PER_READ_MAX))]
