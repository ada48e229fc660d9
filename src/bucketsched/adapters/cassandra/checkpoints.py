"""Range checkpoints in Cassandra: the server itself keeps the one of highest order, by the write's time stamp."""

from __future__ import annotations

from typing import Any

from ...core.checkpoint import Checkpoint
from ...core.errors import NotWritten, OutcomeUnknown, Unavailable
from ...encoding.checkpoints import decode_checkpoint, encode_checkpoint
from .session import CassandraSession

_LOAD = "SELECT range_id, body, epoch, sequence FROM @range_checkpoints WHERE range_id = ?"
_SAVE = "INSERT INTO @range_checkpoints (range_id, epoch, sequence, body) VALUES (?, ?, ?, ?) USING TIMESTAMP ?"


class CassandraCheckpointStore:
    """Implements CheckpointStore. Made by `open`."""

    def __init__(self, session: CassandraSession, load: Any, save: Any) -> None:
        self._session = session
        self._load = load
        self._save = save

    @classmethod
    async def open(cls, session: CassandraSession) -> CassandraCheckpointStore:
        """Prepares its statements. Raises ConfigError where the table is missing, Unavailable."""
        return cls(session, await session.prepare(_LOAD), await session.prepare(_SAVE))

    async def load(self, range_id: int) -> Checkpoint | None:
        """See CheckpointStore."""
        rows = await self._session.read(self._load, (range_id,))
        if not rows:
            return None
        found_id, body, epoch, sequence = rows[0]
        if found_id != range_id:
            raise self._session.distrust("another range's checkpoint")
        return decode_checkpoint(range_id, (epoch << 32) + sequence + 1, body)

    async def save(self, range_id: int, checkpoint: Checkpoint) -> None:
        """See CheckpointStore."""
        body = encode_checkpoint(checkpoint)
        values = (range_id, checkpoint.epoch, checkpoint.sequence, body, checkpoint.order)
        try:
            await self._session.write(self._save, values)
        except (NotWritten, OutcomeUnknown) as error:
            raise Unavailable(str(error)) from error
