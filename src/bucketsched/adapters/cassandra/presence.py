"""Which partitions hold tasks of a queue, in Cassandra."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Any

from ...core.presence import BUCKETS_PER_DAY, Partition, Presence
from .group_commit import Write
from .session import CassandraSession

DAYS_AT_ONCE_MAX = 16
"""Read in parallel by one call."""

_I32 = struct.Struct(">i")
_INSERT = "INSERT INTO @presence (namespace_id, queue, day, bucket, shard) VALUES (?, ?, ?, ?, ?) USING TTL ?"
_READ, _READ_BACK = (
    "SELECT bucket, shard FROM @presence WHERE namespace_id = ? AND queue = ? AND day = ? "
    f"AND bucket >= ? AND bucket < ?{order} LIMIT ?"
    for order in ("", " ORDER BY bucket DESC, shard DESC")
)


class PresenceTable:
    """Its statements. Made by `open`."""

    def __init__(self, session: CassandraSession, statements: dict[str, Any]) -> None:
        self._session = session
        self._statements = statements

    @classmethod
    async def open(cls, session: CassandraSession) -> PresenceTable:
        """Prepares its statements. Raises ConfigError where the table is missing, Unavailable."""
        texts = {"insert": _INSERT, "read": _READ, "read_back": _READ_BACK}
        return cls(session, {name: await session.prepare(text) for name, text in texts.items()})

    def insertion(self, presence: Presence, ttl_s: int) -> Write:
        """Stores it for this long."""
        queue, day = presence.queue.encode(), _I32.pack(presence.day)
        key = b"".join(len(part).to_bytes(2, "big") + part + b"\0" for part in (presence.namespace_id, queue, day))
        place = (_I32.pack(presence.bucket), _I32.pack(presence.shard))
        values = (presence.namespace_id, queue, day, *place, _I32.pack(ttl_s))
        return Write(key, self._statements["insert"], values, 32 + len(queue))

    async def partitions(
        self, namespace_id: bytes, queue: str, from_bucket: int, until_bucket: int, limit: int, descending: bool
    ) -> list[Partition]:
        """See ports.TaskStore: day by day, a few of them at once."""
        days: Sequence[int] = range(from_bucket // BUCKETS_PER_DAY, (until_bucket - 1) // BUCKETS_PER_DAY + 1)
        if descending:
            days = days[::-1]
        statement = self._statements["read_back" if descending else "read"]
        found: list[Partition] = []
        for at in range(0, len(days), DAYS_AT_ONCE_MAX):
            reads = (
                self._session.read(statement, (namespace_id, queue, day, from_bucket, until_bucket, limit))
                for day in days[at : at + DAYS_AT_ONCE_MAX]
            )
            for rows in await asyncio.gather(*reads):
                found += [(bucket, shard) for bucket, shard in rows]
            if len(found) >= limit:
                break
        return found[:limit]
