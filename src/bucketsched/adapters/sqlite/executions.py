"""The execution log of tasks."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from ...core.execution import Attempt, AttemptEnd

_SET = ["started_ms", "ended_ms", "ended", "worker", "error_type", "error_message", "error_trace", "result", "retry_ms"]
"""NULL: nobody has said."""
_COLUMNS = ["namespace_id", "task_id", "generation", "attempt", *_SET]
_RECORD = f"""INSERT INTO executions ({", ".join(_COLUMNS)}, latest_ms)
    VALUES ({", ".join("?" * (len(_COLUMNS) + 1))})
    ON CONFLICT (namespace_id, task_id, generation, attempt) DO UPDATE SET
    {", ".join(f"{column} = coalesce(excluded.{column}, {column})" for column in _SET)},
    latest_ms = max(latest_ms, excluded.latest_ms)"""
_READ = f"""SELECT {", ".join(_COLUMNS)} FROM executions WHERE namespace_id = ? AND task_id = ?
    ORDER BY generation DESC, attempt DESC LIMIT ?"""
_PURGE = "DELETE FROM executions WHERE rowid IN (SELECT rowid FROM executions WHERE latest_ms < ? LIMIT ?)"


def record(connection: sqlite3.Connection, attempts: Sequence[Attempt]) -> None:
    """Adds what is set in these."""
    connection.executemany(_RECORD, [_values(attempt) for attempt in attempts])


def read(connection: sqlite3.Connection, namespace_id: bytes, task_id: bytes, limit: int) -> list[Attempt]:
    """The last entries of the log of one task, oldest first."""
    rows = connection.execute(_READ, (namespace_id, task_id, limit)).fetchall()
    return [_attempt(*row) for row in reversed(rows)]


def purge(connection: sqlite3.Connection, before_ms: int, limit: int) -> int:
    """Removes some entries whose latest time is before this; how many."""
    return connection.execute(_PURGE, (before_ms, limit)).rowcount


def _values(attempt: Attempt) -> tuple[Any, ...]:
    said = (
        attempt.started_ms,
        attempt.ended_ms,
        attempt.end.value if attempt.end else None,
        attempt.worker,
        attempt.error_type,
        attempt.error_message,
        attempt.error_trace,
        attempt.result,
        attempt.retry_ms,
    )
    key = (attempt.namespace_id, attempt.task_id, attempt.generation, attempt.attempt)
    return (*key, *(value or None for value in said), attempt.latest_ms)


def _attempt(namespace_id: bytes, task_id: bytes, generation: int, attempt: int, *said: Any) -> Attempt:
    started_ms, ended_ms, end, worker, type_, message, trace, result, retry_ms = said
    return Attempt(
        namespace_id,
        task_id,
        generation,
        attempt,
        started_ms or 0,
        ended_ms or 0,
        AttemptEnd(end) if end else None,
        worker or "",
        type_ or "",
        message or "",
        trace or "",
        result or b"",
        retry_ms or 0,
    )
