"""Idempotency keys in Cassandra, by lightweight transactions."""

from __future__ import annotations

from typing import Any

from ...core.idempotency import Claim
from ...ports import Clock
from .insert_once import insert_once
from .session import CassandraSession

TTL_S_MIN = 3_600
TTL_S_MAX = 20 * 365 * 86_400
"""The server refuses more."""

_COLUMNS = "task_id, due_at, nominal_due_at, created_at, digest"
_CLAIM = (
    f"INSERT INTO @idempotency_keys (namespace_id, key, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?) "
    "IF NOT EXISTS USING TTL ?"
)
_READ = f"SELECT {_COLUMNS} FROM @idempotency_keys WHERE namespace_id = ? AND key = ?"


class CassandraKeyStore:
    """Implements KeyStore. Made by `open`."""

    def __init__(self, session: CassandraSession, clock: Clock, claim: Any, read: Any) -> None:
        self._session, self._clock, self._claim, self._read = session, clock, claim, read

    @classmethod
    async def open(cls, session: CassandraSession, clock: Clock) -> CassandraKeyStore:
        """Prepares its statements. Raises ConfigError where the table is missing, Unavailable."""
        return cls(session, clock, await session.prepare(_CLAIM), await session.prepare(_READ, serial=True))

    async def claim(self, namespace_id: bytes, key: str, claim: Claim, expires_ms: int) -> Claim:
        """See KeyStore."""
        ttl_s = max(TTL_S_MIN, min(TTL_S_MAX, (expires_ms - self._clock.now_ms()) // 1000))
        values = (
            namespace_id,
            key,
            claim.task_id,
            claim.due_ms,
            claim.nominal_due_ms,
            claim.created_ms,
            claim.digest,
            ttl_s,
        )
        what = "an idempotency key"
        stored = await insert_once(self._session, self._claim, values, self._read, (namespace_id, key), what)
        return claim if stored is None else Claim(*stored)
