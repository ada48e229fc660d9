"""Task rows in Cassandra.

A row's statement carries values that are encoded here, once: they go into the batch's frame as they are.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Any

from ...config import CassandraSettings
from ...core.errors import NotWritten, OutcomeUnknown, Unavailable
from ...core.execution import Attempt
from ...core.presence import OUTLIVES_S, KnownPresences, Partition, Presence, presence_of
from ...core.task import NO_BODY, NO_FACTS, FactKind, Facts, Mark, RowRef, StoredTask, TaskRow, bucket_end_ms, bucket_of
from ...core.task_id import shard_in
from ...encoding.rows import decode_body, encode_body
from ...ports import ATTEMPTS_READ_MAX, Clock, Page
from .executions import ExecutionsTable
from .group_commit import Answer, GroupCommit, Limits, Write
from .presence import PresenceTable
from .session import CassandraSession, Row

TTL_S_MIN = 3_600
TTL_S_MAX = 20 * 365 * 86_400
"""The server refuses more."""
EXPIRES_S_MAX = (1 << 31) - 2 - 86_400
"""The last second, since the Unix epoch, at which the server lets a cell expire, less a day for clocks that differ."""
BUCKET_MAX = (1 << 31) - 1
"""What the column holds: the year 6053. Ids reach farther."""
FACTS_OUTLIVE_S = 86_400
"""A fact expires that much after its row, so that no row is ever seen without its facts."""
MARK_ROWS_MAX = 100
"""Marks in one batch: they are small."""
MARK_BATCHES_IN_FLIGHT_MAX = 16
MARKS_WAITING_MAX = 50_000
READ_BYTES_TARGET = 4 * 1024 * 1024
"""Bodies that one read brings, about."""
READ_ROWS_MIN = 16
BODY_BYTES_GUESS_MAX = 1024 * 1024
DECODE_ROWS_PER_TURN = 200
"""Rows made from one read before others get the event loop."""

SCANS_IN_FLIGHT_MAX = 32
"""Partitions that listings read at the same time."""

_I32, _I64 = struct.Struct(">i"), struct.Struct(">q")
_PARTITION = struct.Struct(">HiBHiB")
_NONE = [None] * 7
"""The facts of a row that has none."""
_PLACE = ("bucket", "shard", "due_at", "namespace_id", "task_id")

_INSERT = (
    "INSERT INTO @tasks (bucket, shard, due_at, namespace_id, task_id, body, generation, attempt) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?) USING TTL ?"
)
_COLUMNS = (
    "due_at, namespace_id, task_id, body, generation, attempt, "
    "dispatched_at, cancelled_at, failed_at, failed_reason, succeeded_at, expired_at, moved_to"
)
_GET = f"SELECT {_COLUMNS} FROM @tasks WHERE " + " AND ".join(f"{column} = ?" for column in _PLACE)
_READ_START = f"SELECT {_COLUMNS} FROM @tasks WHERE bucket = ? AND shard = ? AND due_at < ? LIMIT ?"
_READ_AFTER = (
    f"SELECT {_COLUMNS} FROM @tasks WHERE bucket = ? AND shard = ? "
    "AND (due_at, namespace_id, task_id) > (?, ?, ?) AND (due_at) < (?) LIMIT ?"
)
_SCAN, _SCAN_BACK = (
    f"SELECT {_COLUMNS} FROM @tasks WHERE bucket = ? AND shard = ? "
    f"AND (due_at, namespace_id, task_id) {behind} (?, ?, ?){order} LIMIT ?"
    for behind, order in ((">", ""), ("<", " ORDER BY due_at DESC, namespace_id DESC, task_id DESC"))
)
_PENDING = (
    "SELECT due_at, namespace_id, task_id, generation, attempt, "
    "dispatched_at, cancelled_at, failed_at, succeeded_at, expired_at, moved_to "
    "FROM @tasks WHERE bucket = ? AND shard IN ? AND due_at >= ? AND due_at < ?"
)
_FACT_COLUMNS = {
    FactKind.DISPATCHED: ("dispatched_at",),
    FactKind.CANCELLED: ("cancelled_at",),
    FactKind.FAILED: ("failed_at", "failed_reason"),
    FactKind.MOVED: ("moved_to",),
    FactKind.RETRIED: ("moved_to",),
    FactKind.SUCCEEDED: ("succeeded_at",),
    FactKind.EXPIRED: ("expired_at",),
}


def _update(columns: tuple[str, ...]) -> str:
    sets = ", ".join(f"{column} = ?" for column in columns)
    return f"UPDATE @tasks USING TTL ? SET {sets} WHERE " + " AND ".join(f"{column} = ?" for column in _PLACE)


class CassandraTaskStore:
    """Implements TaskStore. Made by `open`."""

    def __init__(
        self,
        session: CassandraSession,
        settings: CassandraSettings,
        clock: Clock,
        retention_ms: int,
        statements: dict[str, Any],
        facts: dict[FactKind, Any],
        presence: PresenceTable,
        executions: ExecutionsTable,
    ) -> None:
        self._session = session
        self._clock = clock
        self._retention_s = retention_ms // 1000
        self._statements = statements
        self._facts = facts
        self._presence = presence
        self._executions = executions
        self._known = KnownPresences()
        self._scans = asyncio.Semaphore(SCANS_IN_FLIGHT_MAX)
        self._body_bytes = 1_024.0  # of late, on average
        limits = Limits(
            settings.batch_rows_max,
            settings.batch_bytes_max,
            settings.batch_delay_ms_max / 1000,
            settings.batches_in_flight_max,
            settings.rows_waiting_max,
        )
        self._inserts = GroupCommit(session.write_batch, session.group_of, limits)
        limits = Limits(MARK_ROWS_MAX, settings.batch_bytes_max, 0, MARK_BATCHES_IN_FLIGHT_MAX, MARKS_WAITING_MAX)
        self._marks = GroupCommit(session.write_batch, session.group_of, limits)

    @classmethod
    async def open(
        cls, session: CassandraSession, settings: CassandraSettings, clock: Clock, retention_ms: int
    ) -> CassandraTaskStore:
        """Prepares its statements. Raises ConfigError where the tables are missing, Unavailable."""
        texts = {
            "insert": _INSERT,
            "get": _GET,
            "read_start": _READ_START,
            "read_after": _READ_AFTER,
            "pending": _PENDING,
            "scan": _SCAN,
            "scan_back": _SCAN_BACK,
        }
        statements = {name: await session.prepare(text) for name, text in texts.items()}
        facts = {kind: await session.prepare(_update(columns)) for kind, columns in _FACT_COLUMNS.items()}
        presence, executions = await PresenceTable.open(session), await ExecutionsTable.open(session)
        return cls(session, settings, clock, retention_ms, statements, facts, presence, executions)

    # ------------------------------------------------------------ writing

    async def insert(self, rows: Sequence[TaskRow]) -> list[NotWritten | OutcomeUnknown | None]:
        """See TaskStore. A row due later than the server can keep is NotWritten."""
        now_s = self._clock.now_ms() // 1000
        last_due_ms = min(EXPIRES_S_MAX, now_s + TTL_S_MAX) * 1000
        kept = [row for row in rows if row.due_ms < last_due_ms]
        answers = await self._write(kept, now_s)
        if len(kept) == len(rows):
            return answers
        answer = iter(answers)
        late = NotWritten("cassandra: due later than a row can be kept")
        return [next(answer) if row.due_ms < last_due_ms else late for row in rows]

    async def _write(self, rows: Sequence[TaskRow], now_s: int) -> list[Answer]:
        """Rows, and the presences that are not known yet: a row is stored once both are."""
        missing = self._known.missing(rows)
        writes = [self._insertion(row, now_s) for row in rows]
        written = await self._inserts.write(writes + [self._presence_insertion(p, now_s) for p in missing])
        answers = written[: len(rows)]
        if not missing:
            return answers
        absent = {p: answer for p, answer in zip(missing, written[len(rows) :], strict=True) if answer is not None}
        # one that is as short-lived as a row of its partition may be (TTL_S_MIN) is written with each row
        self._known.add(p for p in missing if p not in absent and self._presence_ttl_s(p, now_s) > TTL_S_MIN)
        if absent:
            for at, row in enumerate(rows):
                if answers[at] is None and presence_of(row) in absent:
                    answers[at] = OutcomeUnknown(f"stored, but not its presence: {absent[presence_of(row)]}")
        return answers

    def _presence_insertion(self, presence: Presence, now_s: int) -> Write:
        return self._presence.insertion(presence, self._presence_ttl_s(presence, now_s))

    def _presence_ttl_s(self, presence: Presence, now_s: int) -> int:
        return _ttl_s(bucket_end_ms(presence.bucket) // 1000 + self._retention_s + OUTLIVES_S, now_s)

    def _insertion(self, row: TaskRow, now_s: int) -> Write:
        body = encode_body(row.body)
        key, place = _placed(row.due_ms, row.namespace_id, row.task_id)
        ttl_s = _ttl_s(row.due_ms // 1000 + self._retention_s, now_s)
        values = (*place, body, _I32.pack(row.generation), _I32.pack(row.attempt), _I32.pack(ttl_s))
        return Write(key, self._statements["insert"], values, len(body) + 64)

    async def mark(self, marks: Sequence[Mark]) -> None:
        """See TaskStore."""
        now_s = self._clock.now_ms() // 1000
        await self._add([self._fact(mark, now_s) for mark in marks])

    async def _add(self, writes: list[Write]) -> None:
        for answer in await self._marks.write(writes):
            if answer is not None:
                raise Unavailable(str(answer)) from answer

    async def record_attempts(self, attempts: Sequence[Attempt]) -> None:
        """See TaskStore."""
        now_s = self._clock.now_ms() // 1000
        ttls = [_ttl_s(attempt.latest_ms // 1000 + self._retention_s, now_s) for attempt in attempts]
        await self._add([self._executions.write(*pair) for pair in zip(attempts, ttls, strict=True)])

    async def attempts(self, namespace_id: bytes, task_id: bytes, limit: int = ATTEMPTS_READ_MAX) -> list[Attempt]:
        """See TaskStore."""
        return await self._executions.read(namespace_id, task_id, limit)

    def _fact(self, mark: Mark, now_s: int) -> Write:
        ref = RowRef.unpack(mark.ref)
        key, place = _placed(ref.due_ms, ref.namespace_id, ref.task_id)
        last_ms = max(ref.due_ms, mark.at_ms)
        ttl_s = _ttl_s(last_ms // 1000 + self._retention_s + FACTS_OUTLIVE_S, now_s)
        reason = (mark.reason.encode(),) if mark.kind is FactKind.FAILED else ()
        values = (_I32.pack(ttl_s), _I64.pack(mark.at_ms), *reason, *place)
        return Write(key, self._facts[mark.kind], values, 80 + len(mark.reason) * 4)

    # ------------------------------------------------------------ reading

    async def get(self, due_ms: int, namespace_id: bytes, task_id: bytes) -> StoredTask | None:
        """See TaskStore."""
        if bucket_of(due_ms) > BUCKET_MAX:
            return None
        place = (bucket_of(due_ms), shard_in(task_id), due_ms, namespace_id, task_id)
        rows = await self._session.read(self._statements["get"], place)
        if rows and (len(rows) > 1 or rows[0][:3] != place[2:]):
            raise self._session.distrust("another task's row")
        found = next(iter(_decode(rows)), None)
        if found is None and rows and (moved_to := rows[0][-1]) is not None:
            return StoredTask(TaskRow(due_ms, namespace_id, task_id, NO_BODY), Facts(moved_to_ms=moved_to))
        return found

    async def read_partition(self, bucket: int, shard: int, after: bytes | None, until_ms: int, limit: int) -> Page:
        """See TaskStore. May return fewer than `limit` where bodies are large."""
        assert limit > 0, limit
        until_ms = min(until_ms, bucket_end_ms(bucket))
        start = RowRef.unpack(after)[:3] if after is not None else None
        if start is not None and start[0] >= until_ms:
            return Page([], complete=True)
        rows_max = min(limit, max(READ_ROWS_MIN, int(READ_BYTES_TARGET / self._body_bytes)))
        while True:
            rows = await self._read(bucket, shard, start, until_ms, rows_max)
            tasks = await self._decode_in_turns(rows)
            if tasks or len(rows) < rows_max:
                return Page(tasks, complete=len(rows) < rows_max)
            start = rows[-1][:3]  # nothing but facts without bodies: read on

    async def _read(self, bucket: int, shard: int, start: Row | None, until_ms: int, limit: int) -> list[Row]:
        values: Row = (bucket, shard, until_ms, limit) if start is None else (bucket, shard, *start, until_ms, limit)
        statement = self._statements["read_start" if start is None else "read_after"]
        try:
            rows = await self._session.read(statement, values)
        except Unavailable:
            self._body_bytes = min(self._body_bytes * 2, BODY_BYTES_GUESS_MAX)  # next time, ask for less
            raise
        self._check(rows, bucket, (shard,))
        if rows:
            seen = sum(len(row[3]) for row in rows if row[3] is not None) / len(rows)
            self._body_bytes = max(1.0, seen, (seen + self._body_bytes) / 2)
        return rows

    async def _decode_in_turns(self, rows: list[Row]) -> list[StoredTask]:
        tasks = _decode(rows[:DECODE_ROWS_PER_TURN])
        for at in range(DECODE_ROWS_PER_TURN, len(rows), DECODE_ROWS_PER_TURN):
            await asyncio.sleep(0)
            tasks += _decode(rows[at : at + DECODE_ROWS_PER_TURN])
        return tasks

    async def pending_refs(self, bucket: int, shards: Sequence[int], from_ms: int, until_ms: int) -> list[bytes]:
        """See TaskStore."""
        if not shards:
            return []
        rows = await self._session.read(self._statements["pending"], (bucket, list(shards), from_ms, until_ms))
        self._check(rows, bucket, shards)
        return [
            RowRef(due_ms, namespace_id, task_id, generation, attempt).pack()
            for due_ms, namespace_id, task_id, generation, attempt, *facts in rows
            if generation is not None and not any(fact is not None for fact in facts)
        ]

    async def partitions(
        self, namespace_id: bytes, queue: str, from_bucket: int, until_bucket: int, limit: int, descending: bool = False
    ) -> list[Partition]:
        """See TaskStore."""
        until_bucket = min(until_bucket, BUCKET_MAX)
        return await self._presence.partitions(namespace_id, queue, from_bucket, until_bucket, limit, descending)

    async def scan(
        self, partitions: Sequence[Partition], start: bytes, limit: int, descending: bool = False
    ) -> list[Page]:
        """See TaskStore."""
        place = RowRef.unpack(start)[:3]
        return list(await asyncio.gather(*(self._scan(each, place, limit, descending) for each in partitions)))

    async def _scan(self, partition: Partition, place: Row, limit: int, descending: bool) -> Page:
        bucket, shard = partition
        rows_max = min(limit, max(READ_ROWS_MIN, int(READ_BYTES_TARGET / self._body_bytes)))
        statement = self._statements["scan_back" if descending else "scan"]
        while True:
            async with self._scans:
                rows = await self._session.read(statement, (bucket, shard, *place, rows_max))
            self._check(rows, bucket, (shard,))
            tasks = await self._decode_in_turns(rows)
            if tasks or len(rows) < rows_max:
                return Page(tasks, complete=len(rows) < rows_max)
            place = rows[-1][:3]  # nothing but facts without bodies: read on

    def _check(self, rows: list[Row], bucket: int, shards: Sequence[int]) -> None:
        """Raises Unavailable if these are rows of other partitions: whose they are is no business of who asked."""
        if not rows:
            return
        found = {shard_in(row[2]) for row in rows}
        if not found.issubset(shards) or {bucket_of(rows[0][0]), bucket_of(rows[-1][0])} != {bucket}:
            raise self._session.distrust("another partition's rows")


def _placed(due_ms: int, namespace_id: bytes, task_id: bytes) -> tuple[bytes, tuple[bytes, ...]]:
    """The routing key of a row's partition, and the encoded columns of its primary key."""
    bucket, shard = bucket_of(due_ms), shard_in(task_id)
    key = _PARTITION.pack(4, bucket, 0, 4, shard, 0)
    return key, (key[2:6], key[9:13], _I64.pack(due_ms), namespace_id, task_id)


def _ttl_s(expires_s: int, now_s: int) -> int:
    return max(TTL_S_MIN, min(TTL_S_MAX, expires_s - now_s, EXPIRES_S_MAX - now_s))


def _facts(
    dispatched: int | None,
    cancelled: int | None,
    failed: int | None,
    reason: str | None,
    succeeded: int | None,
    expired: int | None,
    moved: int | None,
) -> Facts:
    return Facts(dispatched, cancelled, failed, reason or "", moved, succeeded, expired)


def _decode(rows: list[Row]) -> list[StoredTask]:
    tasks = []
    for due_ms, namespace_id, task_id, body, generation, attempt, *facts in rows:
        if body is None:
            continue
        row = TaskRow(due_ms, namespace_id, task_id, decode_body(body), generation or 0, attempt or 0)
        tasks.append(StoredTask(row, NO_FACTS if facts == _NONE else _facts(*facts)))
    return tasks
