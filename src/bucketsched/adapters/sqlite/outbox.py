"""Committed messages on their way from the journal to the subscriptions.

What a commit wrote is handed to the queue's subscription from memory, up to a bound; beyond it, and after a start, the
subscription reads the table, in the same order. A message's number is its place in that order. Numbers are given by
the writer, so they ascend in commit order; they may be used again after a restart, when nobody remembers them.
"""

from __future__ import annotations

import sqlite3
import struct
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from ...core.errors import Unavailable
from ...core.message import Headers, Message
from ...ports import Delivery
from .database import Database
from .writer import ROWS_PER_COMMIT_WHEN_SHORT

MESSAGES_IN_MEMORY_MAX = 2_000
BYTES_IN_MEMORY_MAX = 4 * 1024 * 1024
"""Both of one queue: what was committed and not fetched yet."""
BYTES_PER_READ_MAX = 4 * 1024 * 1024
ROWS_PER_STATEMENT_MAX = 100

_U16 = struct.Struct(">H")
_READ = """SELECT message_id, headers, value FROM outbox
    WHERE namespace_id = ? AND queue = ? AND message_id > ? ORDER BY message_id LIMIT ?"""
_DELETE = "DELETE FROM outbox WHERE message_id IN (SELECT value FROM json_each(?))"

Place = tuple[bytes, str]
"""Namespace id and name of a queue."""


def pack_headers(headers: Headers) -> bytes:
    """count u16 | (name length u32 | value length u32) * | (name | value) *"""
    cells = [cell for name, value in headers for cell in (name.encode(), value)]
    return struct.pack(f">H{len(cells)}I", len(headers), *map(len, cells)) + b"".join(cells)


def unpack_headers(packed: bytes) -> Headers:
    """Reverse of `pack_headers`."""
    (count,) = _U16.unpack_from(packed)
    at, headers = _U16.size + 8 * count, []
    lengths = struct.unpack_from(f">{2 * count}I", packed, _U16.size)
    for i in range(0, 2 * count, 2):
        middle, end = at + lengths[i], at + lengths[i] + lengths[i + 1]
        headers.append((packed[at:middle].decode(), packed[middle:end]))
        at = end
    return headers


class Backlog:
    """What one subscription has not fetched yet: a bounded row of newest messages in memory, the older ones on disk."""

    def __init__(self) -> None:
        self._messages: deque[Delivery] = deque()
        self._bytes = 0
        self.cursor = 0
        """Everything up to this number was fetched."""
        self.on_disk = True
        """There may be messages behind the cursor and those in memory that only the table has."""
        self.arrivals = 0
        """Counts commits for this queue: who reads the table sees by it whether he has seen everything."""

    def add(self, number: int, message: Message) -> None:
        """A message was committed."""
        self.arrivals += 1
        if self.on_disk or number <= self.cursor:
            return
        if len(self._messages) >= MESSAGES_IN_MEMORY_MAX or self._bytes >= BYTES_IN_MEMORY_MAX:
            self.on_disk = True
            return
        self._messages.append(Delivery(number, message.headers, message.value))
        self._bytes += message.size

    def take(self, limit: int) -> list[Delivery]:
        """The oldest that are in memory."""
        taken = [self._messages.popleft() for _ in range(min(limit, len(self._messages)))]
        if taken:
            self.cursor = taken[-1].token
        if not self._messages:
            self._bytes = 0
        return taken


class Waker(Protocol):
    """A subscription, as the outbox needs it."""

    backlog: Backlog

    def wake(self) -> None:
        """There is something new."""
        ...

    def interrupt(self) -> None:
        """It may have missed something: it ends, and another one begins at what is stored."""
        ...


class Outbox:
    """What the journals and subscriptions of one database share."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._last = -1
        self._subscribers: dict[Place, Waker] = {}

    def append(self, connection: sqlite3.Connection, rows: list[tuple[bytes, str, bytes, bytes]]) -> int:
        """Within a transaction of the writer: stores (namespace id, queue, headers, value); the first one's number.

        Raises NoRoom.
        """
        if rows:
            self._database.room.check_dispatch(connection)
        if self._last < 0:
            (self._last,) = connection.execute("SELECT coalesce(max(message_id), 0) FROM outbox").fetchone()
        first = self._last + 1
        self._last += len(rows)
        for i in range(0, len(rows), ROWS_PER_STATEMENT_MAX):
            part = rows[i : i + ROWS_PER_STATEMENT_MAX]
            cells = [cell for n, row in enumerate(part, start=first + i) for cell in (n, *row)]
            connection.execute(_insert_statement(len(part)), cells)
        return first

    def publish(self, first: int, messages: Sequence[Message]) -> None:
        """These messages were committed, numbered from `first` on."""
        wakened = {}
        for number, message in enumerate(messages, start=first):
            place = (message.queue.namespace_id, message.queue.name)
            if (subscriber := self._subscribers.get(place)) is not None:
                subscriber.backlog.add(number, message)
                wakened[place] = subscriber
        for subscriber in wakened.values():
            subscriber.wake()

    def interrupt(self) -> None:
        """Ends every subscription: what was committed is not known any more."""
        for subscriber in list(self._subscribers.values()):
            subscriber.interrupt()

    def attach(self, place: Place, subscriber: Waker) -> None:
        """From now on the queue's messages go to this subscriber. Raises Unavailable where there is one already."""
        if place in self._subscribers:
            raise Unavailable(f"queue {place[1]} has a subscription")
        self._subscribers[place] = subscriber

    def detach(self, place: Place) -> None:
        """The queue has no subscriber any more."""
        self._subscribers.pop(place, None)

    async def read(self, place: Place, after: int, limit: int) -> tuple[list[Delivery], bool]:
        """Stored messages behind a number, and whether those are all. Raises Unavailable."""

        def read(connection: sqlite3.Connection) -> tuple[list[Delivery], bool]:
            found: list[Delivery] = []
            size = 0
            for number, headers, value in connection.execute(_READ, (*place, after, limit)):
                found.append(Delivery(number, unpack_headers(headers), value))
                size += len(headers) + len(value)
                if size >= BYTES_PER_READ_MAX:
                    return found, False
            return found, len(found) < limit

        return await self._database.read(read)

    async def delete(self, numbers: Sequence[int]) -> None:
        """Removes messages durably. Raises NotWritten, OutcomeUnknown."""
        start = 0
        while start < len(numbers):
            size = ROWS_PER_COMMIT_WHEN_SHORT if self._database.room.short else len(numbers)
            part = numbers[start : start + size]
            await self._database.write(partial(_delete, numbers=part), rows=len(part))
            start += len(part)


def _delete(connection: sqlite3.Connection, numbers: Sequence[int]) -> None:
    connection.execute(_DELETE, ("[" + ",".join(map(str, numbers)) + "]",))


def _insert_statement(rows: int) -> str:
    values = ", ".join(["(?, ?, ?, ?, ?)"] * rows)
    return f"INSERT INTO outbox (message_id, namespace_id, queue, headers, value) VALUES {values}"
