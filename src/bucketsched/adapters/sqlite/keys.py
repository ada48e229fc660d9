"""Idempotency keys."""

from __future__ import annotations

import sqlite3

from ...core.errors import NoRoom, StorageFull
from ...core.idempotency import Claim
from .database import Database, as_unavailable

PURGE_KEYS_MAX = 10_000
"""Removed by one call of `purge`."""

_COLUMNS = "task_id, due_ms, nominal_due_ms, created_ms, digest"
_CLAIM = f"INSERT INTO idempotency_keys (namespace_id, key, expires_ms, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_READ = f"SELECT {_COLUMNS} FROM idempotency_keys WHERE namespace_id = ? AND key = ?"
_EXPIRED = """DELETE FROM idempotency_keys WHERE (namespace_id, key) IN (
    SELECT namespace_id, key FROM idempotency_keys WHERE expires_ms < ? LIMIT ?)"""


class SqliteKeyStore:
    """See ports.KeyStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(self, namespace_id: bytes, key: str, claim: Claim, expires_ms: int) -> Claim:
        """See ports.KeyStore."""

        def write(connection: sqlite3.Connection) -> Claim:
            row = connection.execute(_READ, (namespace_id, key)).fetchone()
            if row is not None:
                return Claim(*row)
            self._database.room.check_create(connection)
            values = (claim.task_id, claim.due_ms, claim.nominal_due_ms, claim.created_ms, claim.digest)
            connection.execute(_CLAIM, (namespace_id, key, expires_ms, *values))
            return claim

        with as_unavailable():
            try:
                return await self._database.write(write)
            except NoRoom as error:
                raise StorageFull(f"nothing was stored: {error}") from error

    async def purge(self, now_ms: int) -> int:
        """Removes at most PURGE_KEYS_MAX keys that have expired; how many. Raises Unavailable."""
        with as_unavailable():
            parameters = (now_ms, PURGE_KEYS_MAX)
            return await self._database.write(lambda connection: connection.execute(_EXPIRED, parameters).rowcount)
