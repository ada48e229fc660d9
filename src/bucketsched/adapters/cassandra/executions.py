"""The execution log of tasks, in statements that travel with those of others."""

from __future__ import annotations

import struct
from typing import Any

from ...core.execution import Attempt, AttemptEnd
from .group_commit import Write
from .session import CassandraSession, Row

_KEY = ("namespace_id", "task_id", "generation", "attempt")
_STARTED = ("started_at", "worker")
_ENDED = (*_STARTED, "ended_at", "ended", "error_type", "error_message", "error_trace", "result", "retry_at")
_I32, _I64 = struct.Struct(">i"), struct.Struct(">q")
_PARTITION = struct.Struct(">H16sBH16sB")
_READ = (
    f"SELECT {', '.join((*_KEY, *_ENDED))} FROM @executions WHERE namespace_id = ? AND task_id = ? "
    "ORDER BY generation DESC, attempt DESC LIMIT ?"
)


def _update(columns: tuple[str, ...]) -> str:
    sets = ", ".join(f"{column} = ?" for column in columns)
    return f"UPDATE @executions USING TTL ? SET {sets} WHERE " + " AND ".join(f"{column} = ?" for column in _KEY)


class ExecutionsTable:
    """Made by `open`."""

    def __init__(self, session: CassandraSession, started: Any, ended: Any, read: Any) -> None:
        self._session, self._started, self._ended, self._read = session, started, ended, read

    @classmethod
    async def open(cls, session: CassandraSession) -> ExecutionsTable:
        """Prepares its statements. Raises ConfigError where the table is missing, Unavailable."""
        started, ended = await session.prepare(_update(_STARTED)), await session.prepare(_update(_ENDED))
        return cls(session, started, ended, await session.prepare(_READ))

    def write(self, attempt: Attempt, ttl_s: int) -> Write:
        """What adds the entry: its beginning, or all of it once it has ended."""
        key = (attempt.namespace_id, attempt.task_id, _I32.pack(attempt.generation), _I32.pack(attempt.attempt))
        said: tuple[bytes, ...] = (_I64.pack(attempt.started_ms), attempt.worker.encode())
        statement = self._started
        if attempt.end is not None:
            statement = self._ended
            texts = (attempt.end.value, attempt.error_type, attempt.error_message, attempt.error_trace)
            encoded = tuple(text.encode(errors="replace") for text in texts)
            said += (_I64.pack(attempt.ended_ms), *encoded, attempt.result, _I64.pack(attempt.retry_ms))
        routing_key = _PARTITION.pack(16, attempt.namespace_id, 0, 16, attempt.task_id, 0)
        size = 80 + sum(len(value) for value in said)
        return Write(routing_key, statement, (_I32.pack(ttl_s), *said, *key), size)

    async def read(self, namespace_id: bytes, task_id: bytes, limit: int) -> list[Attempt]:
        """The last entries of the log of one task, oldest first. Raises Unavailable."""
        rows = await self._session.read(self._read, (namespace_id, task_id, limit))
        if any(row[:2] != (namespace_id, task_id) for row in rows):
            raise self._session.distrust("another task's attempts")
        return [_attempt(row) for row in reversed(rows)]


def _attempt(row: Row) -> Attempt:
    namespace_id, task_id, generation, attempt, started, worker, ended, end, type_, message, trace, result, retry = row
    return Attempt(
        namespace_id,
        task_id,
        generation,
        attempt,
        started or 0,
        ended or 0,
        AttemptEnd(end) if end else None,
        worker or "",
        type_ or "",
        message or "",
        trace or "",
        result or b"",
        retry or 0,
    )
