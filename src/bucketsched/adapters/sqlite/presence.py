"""Which partitions hold tasks of a queue."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from ...core.presence import Partition, Presence

_READ, _READ_BACK = (
    f"""SELECT bucket, shard FROM presence WHERE namespace_id = ? AND queue = ? AND bucket >= ? AND bucket < ?
    ORDER BY bucket {order}, shard {order} LIMIT ?"""
    for order in ("ASC", "DESC")
)
_EXPIRED = """SELECT p.namespace_id, p.queue, p.bucket, p.shard FROM queues CROSS JOIN presence AS p
    WHERE p.namespace_id = queues.namespace_id AND p.queue = queues.name AND p.bucket < ?
    AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.bucket = p.bucket AND tasks.shard = p.shard) LIMIT ?"""
_REMOVE = "DELETE FROM presence WHERE (namespace_id, queue, bucket, shard) = (?, ?, ?, ?)"


def insert_presences(connection: sqlite3.Connection, presences: Sequence[Presence]) -> None:
    """Stores them, unless they are there."""
    values = ", ".join(["(?, ?, ?, ?)"] * len(presences))
    cells = [cell for presence in presences for cell in presence]
    connection.execute(f"INSERT OR IGNORE INTO presence VALUES {values}", cells)


def read_partitions(
    connection: sqlite3.Connection, parameters: tuple[bytes, str, int, int, int], descending: bool
) -> list[Partition]:
    """`parameters`: namespace, queue, first bucket, the one behind the last, limit. See ports.TaskStore.partitions."""
    return connection.execute(_READ_BACK if descending else _READ, parameters).fetchall()


def purge_presences(connection: sqlite3.Connection, before_bucket: int, limit: int) -> list[Presence]:
    """Removes at most `limit` of empty partitions; which."""
    found = [Presence(*row) for row in connection.execute(_EXPIRED, (before_bucket, limit))]
    connection.executemany(_REMOVE, found)
    return found
