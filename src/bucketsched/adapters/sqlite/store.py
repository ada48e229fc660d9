"""Task rows."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from ...core.errors import NotWritten, OutcomeUnknown
from ...core.execution import Attempt
from ...core.presence import OUTLIVES_S, KnownPresences, Partition, Presence
from ...core.task import (
    BUCKET_MS,
    NO_BODY,
    NO_FACTS,
    FactKind,
    Facts,
    Mark,
    RowRef,
    Stage,
    StoredTask,
    TaskRow,
    at_stage,
    bucket_of,
)
from ...core.task_id import shard_in
from ...encoding.rows import decode_body, encode_body
from ...ports import ATTEMPTS_READ_MAX, Page
from . import executions
from .database import Database, as_unavailable
from .presence import insert_presences, purge_presences, read_partitions
from .writer import ROWS_PER_COMMIT_WHEN_SHORT

ROWS_PER_OPERATION_MAX = 250
"""A row counts as one for each ROW_BYTES that it has, so that operations are bounded in bytes too."""
ROW_BYTES = 2_048
PAGE_BYTES_MAX = 8 * 1024 * 1024
"""`read_partition` stops there, before its limit."""
ROWS_PER_STATEMENT_MAX = 100
"""One step of SQLite inserts so many: each step gives up Python's lock and has to get it back."""
PURGE_ROWS_MAX = 10_000
"""Removed by one call of `purge`."""

_KEY = "bucket, shard, due_ms, namespace_id, task_id"
_COLUMNS = (
    "due_ms, namespace_id, task_id, generation, attempt, dispatched_ms, cancelled_ms, failed_ms, failed_reason, "
    "moved_to_ms, succeeded_ms, expired_ms, body"
)
_UNSETTLED = (
    "dispatched_ms IS NULL AND cancelled_ms IS NULL AND failed_ms IS NULL AND moved_to_ms IS NULL "
    "AND succeeded_ms IS NULL AND expired_ms IS NULL"
)
_FACT_COLUMNS = {
    FactKind.DISPATCHED: "dispatched_ms",
    FactKind.CANCELLED: "cancelled_ms",
    FactKind.FAILED: "failed_ms",
    FactKind.MOVED: "moved_to_ms",
    FactKind.RETRIED: "moved_to_ms",
    FactKind.SUCCEEDED: "succeeded_ms",
    FactKind.EXPIRED: "expired_ms",
}

_GET = f"SELECT {_COLUMNS} FROM tasks WHERE ({_KEY}) = (?, ?, ?, ?, ?)"
_READ = f"""SELECT {_COLUMNS} FROM tasks WHERE bucket = ? AND shard = ? AND due_ms < ?
    AND (due_ms, namespace_id, task_id) > (?, ?, ?) AND body IS NOT NULL
    ORDER BY due_ms, namespace_id, task_id LIMIT ?"""
_SCAN, _SCAN_BACK = (
    f"""SELECT {_COLUMNS} FROM tasks WHERE bucket = ? AND shard = ?
    AND (due_ms, namespace_id, task_id) {behind} (?, ?, ?) AND body IS NOT NULL
    ORDER BY due_ms {order}, namespace_id {order}, task_id {order} LIMIT ?"""
    for behind, order in ((">", "ASC"), ("<", "DESC"))
)
_PENDING = f"""SELECT due_ms, namespace_id, task_id, generation, attempt FROM tasks
    WHERE bucket = ? AND shard = ? AND due_ms >= ? AND due_ms < ? AND {_UNSETTLED} AND body IS NOT NULL
    ORDER BY due_ms, namespace_id, task_id"""
_EXPIRED = f"""DELETE FROM tasks WHERE rowid IN (SELECT rowid FROM tasks
    WHERE bucket <= ? AND due_ms < ? AND coalesce(moved_to_ms, 0) < ? AND (body IS NULL OR NOT ({_UNSETTLED}))
    LIMIT ?)"""
_BEFORE_ALL = (-1, b"", b"")


class SqliteTaskStore:
    """See ports.TaskStore."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known = KnownPresences()

    async def insert(self, rows: Sequence[TaskRow]) -> list[NotWritten | OutcomeUnknown | None]:
        """See ports.TaskStore. NoRoom where the disk is about to be full."""
        parts = [self._insert_part(part, weight) for part, weight in _parts(rows)]
        if len(parts) == 1:
            return await parts[0]
        return [answer for answers in await asyncio.gather(*parts) for answer in answers]

    async def _insert_part(self, rows: Sequence[TaskRow], weight: int) -> list[NotWritten | OutcomeUnknown | None]:
        try:
            await self._database.write(partial(self._insert, rows=rows), rows=weight, on_commit=self._known.add)
        except (NotWritten, OutcomeUnknown) as error:
            return [error] * len(rows)
        return [None] * len(rows)

    def _insert(self, connection: sqlite3.Connection, rows: Sequence[TaskRow]) -> list[Presence]:
        """Stores rows and presences; the presences that were not known."""
        if any(row.generation == 0 for row in rows):  # what was moved is no create: it was accepted before
            self._database.room.check_create(connection)
        _insert(connection, rows)
        presences = self._known.missing(rows)
        for start in range(0, len(presences), ROWS_PER_STATEMENT_MAX):
            insert_presences(connection, presences[start : start + ROWS_PER_STATEMENT_MAX])
        return presences

    async def get(self, due_ms: int, namespace_id: bytes, task_id: bytes) -> StoredTask | None:
        """See ports.TaskStore."""
        key = (bucket_of(due_ms), shard_in(task_id), due_ms, namespace_id, task_id)
        row = await self._database.read(lambda connection: connection.execute(_GET, key).fetchone())
        stored = _stored(row) if row else None
        return None if stored and row[-1] is None and stored.facts.moved_to_ms is None else stored

    async def read_partition(self, bucket: int, shard: int, after: bytes | None, until_ms: int, limit: int) -> Page:
        """See ports.TaskStore."""
        last = RowRef.unpack(after)[:3] if after is not None else _BEFORE_ALL
        parameters = (bucket, shard, until_ms, *last)
        return await self._database.read(lambda connection: _page(connection, _READ, parameters, limit))

    async def pending_refs(self, bucket: int, shards: Sequence[int], from_ms: int, until_ms: int) -> list[bytes]:
        """See ports.TaskStore."""

        def read(connection: sqlite3.Connection) -> list[bytes]:
            rows: list[Any] = []
            for shard in shards:
                rows += connection.execute(_PENDING, (bucket, shard, from_ms, until_ms)).fetchall()
            return [RowRef(*row).pack() for row in rows]

        return await self._database.read(read)

    async def partitions(
        self, namespace_id: bytes, queue: str, from_bucket: int, until_bucket: int, limit: int, descending: bool = False
    ) -> list[Partition]:
        """See ports.TaskStore."""
        parameters = (namespace_id, queue, from_bucket, until_bucket, limit)
        return await self._database.read(lambda connection: read_partitions(connection, parameters, descending))

    async def scan(
        self, partitions: Sequence[Partition], start: bytes, limit: int, descending: bool = False
    ) -> list[Page]:
        """See ports.TaskStore."""
        statement, place = _SCAN_BACK if descending else _SCAN, RowRef.unpack(start)[:3]

        def read(connection: sqlite3.Connection) -> list[Page]:
            return [_page(connection, statement, (*partition, *place), limit) for partition in partitions]

        return await self._database.read(read)

    async def mark(self, marks: Sequence[Mark]) -> None:
        """See ports.TaskStore."""
        start = 0
        with as_unavailable():
            while start < len(marks):
                # a fact moves its row with all of its payload: where room is short that must not be many at once
                size = ROWS_PER_COMMIT_WHEN_SHORT if self._database.room.short else ROWS_PER_OPERATION_MAX
                part = marks[start : start + size]
                await self._database.write(partial(_mark, marks=part), rows=len(part))
                start += len(part)

    async def record_attempts(self, attempts: Sequence[Attempt]) -> None:
        """See ports.TaskStore."""
        with as_unavailable():
            for start in range(0, len(attempts), ROWS_PER_OPERATION_MAX):
                part = attempts[start : start + ROWS_PER_OPERATION_MAX]
                await self._database.write(partial(executions.record, attempts=part), rows=len(part))

    async def attempts(self, namespace_id: bytes, task_id: bytes, limit: int = ATTEMPTS_READ_MAX) -> list[Attempt]:
        """See ports.TaskStore."""
        return await self._database.read(lambda connection: executions.read(connection, namespace_id, task_id, limit))

    async def purge(self, now_ms: int, retention_ms: int) -> int:
        """Removes at most PURGE_ROWS_MAX settled rows whose due (moved rows: new due) + retention has passed; how many.

        A row that still has to be dispatched stays, however old it is. Raises Unavailable.
        """
        before_ms, removed, step = now_ms - retention_ms, 0, ROWS_PER_OPERATION_MAX
        parameters = (before_ms // BUCKET_MS, before_ms, before_ms, step)
        with as_unavailable():
            while removed < PURGE_ROWS_MAX:
                count = await self._database.write(lambda c: c.execute(_EXPIRED, parameters).rowcount, rows=step)
                removed += count
                if count < step:
                    break
            forget = partial(executions.purge, before_ms=before_ms, limit=step)
            for _ in range(PURGE_ROWS_MAX // step):
                if await self._database.write(forget, rows=step) < step:
                    break
            purge = partial(self._purge_presences, bucket=(before_ms - OUTLIVES_S * 1000) // BUCKET_MS)
            for _ in range(PURGE_ROWS_MAX // step):
                if await self._database.write(purge, rows=step) < step:
                    break
        return removed

    def _purge_presences(self, connection: sqlite3.Connection, bucket: int) -> int:
        """Removes some presences from before this bucket whose partitions are empty; how many."""
        removed = purge_presences(connection, bucket, ROWS_PER_OPERATION_MAX)
        self._known.forget(removed)
        return len(removed)


def _page(connection: sqlite3.Connection, statement: str, parameters: tuple[Any, ...], limit: int) -> Page:
    found: list[StoredTask] = []
    size = 0
    for row in connection.execute(statement, (*parameters, limit + 1)):
        if len(found) == limit or size >= PAGE_BYTES_MAX:
            return Page(found, False)
        found.append(_stored(row))
        size += len(row[-1])
    return Page(found, True)


def _parts(rows: Sequence[TaskRow]) -> Iterator[tuple[Sequence[TaskRow], int]]:
    """Rows for one operation each, with what they weigh."""
    start, weight = 0, 0
    for i, row in enumerate(rows):
        own = 1 + len(row.body.payload) // ROW_BYTES
        if i > start and weight + own > ROWS_PER_OPERATION_MAX:
            yield rows[start:i], weight
            start, weight = i, 0
        weight += own
    if rows:
        yield rows[start:], weight


def _values(row: TaskRow) -> tuple[Any, ...]:
    return (
        row.bucket,
        shard_in(row.task_id),
        row.due_ms,
        row.namespace_id,
        row.task_id,
        row.generation,
        row.attempt,
        encode_body(row.body),
    )


def _insert(connection: sqlite3.Connection, rows: Sequence[TaskRow]) -> None:
    for i in range(0, len(rows), ROWS_PER_STATEMENT_MAX):
        part = rows[i : i + ROWS_PER_STATEMENT_MAX]
        connection.execute(_insert_statement(len(part)), [cell for row in part for cell in _values(row)])


def _insert_statement(rows: int) -> str:
    return f"""INSERT INTO tasks ({_KEY}, generation, attempt, body)
        VALUES {", ".join(["(?, ?, ?, ?, ?, ?, ?, ?)"] * rows)}
        ON CONFLICT ({_KEY}) DO UPDATE SET generation = excluded.generation, attempt = excluded.attempt,
        body = excluded.body"""


def _mark_statement(column: str, rows: int) -> str:
    """The first fact of a kind stays, but of moves the last. A fact may come before its row does."""
    old, new = column, f"excluded.{column}"
    first, second = (new, old) if column == _FACT_COLUMNS[FactKind.MOVED] else (old, new)
    return f"""INSERT INTO tasks ({_KEY}, generation, attempt, {column}, failed_reason)
        VALUES {", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?)"] * rows)}
        ON CONFLICT ({_KEY}) DO UPDATE SET {column} = coalesce({first}, {second}),
        failed_reason = coalesce(failed_reason, excluded.failed_reason)"""


def _mark(connection: sqlite3.Connection, marks: Sequence[Mark]) -> None:
    for kind, column in _FACT_COLUMNS.items():
        values = [_mark_values(mark) for mark in marks if mark.kind is kind]
        for i in range(0, len(values), ROWS_PER_STATEMENT_MAX):
            part = values[i : i + ROWS_PER_STATEMENT_MAX]
            connection.execute(_mark_statement(column, len(part)), [cell for row in part for cell in row])


def _mark_values(mark: Mark) -> tuple[Any, ...]:
    ref = RowRef.unpack(at_stage(mark.ref, Stage.DISPATCH))
    reason = mark.reason if mark.kind is FactKind.FAILED else None
    return (bucket_of(ref.due_ms), shard_in(ref.task_id), *ref, mark.at_ms, reason)


def _stored(columns: Iterable[Any]) -> StoredTask:
    due_ms, namespace_id, task_id, generation, attempt, *facts, body = columns
    row = TaskRow(due_ms, namespace_id, task_id, NO_BODY if body is None else decode_body(body), generation, attempt)
    return StoredTask(row, _facts(*facts))


def _facts(
    dispatched_ms: int | None,
    cancelled_ms: int | None,
    failed_ms: int | None,
    failed_reason: str | None,
    moved_to_ms: int | None,
    succeeded_ms: int | None,
    expired_ms: int | None,
) -> Facts:
    facts = Facts(dispatched_ms, cancelled_ms, failed_ms, failed_reason or "", moved_to_ms, succeeded_ms, expired_ms)
    return facts if facts.settled else NO_FACTS
