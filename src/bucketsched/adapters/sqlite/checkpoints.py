"""Range checkpoints."""

from __future__ import annotations

from ...core.checkpoint import Checkpoint
from ...encoding.checkpoints import decode_checkpoint, encode_checkpoint
from .database import Database, as_unavailable

SAVE = """INSERT INTO range_checkpoints (range_id, write_order, checkpoint) VALUES (?, ?, ?)
    ON CONFLICT (range_id) DO UPDATE SET write_order = excluded.write_order, checkpoint = excluded.checkpoint
    WHERE excluded.write_order >= write_order"""


def save_parameters(range_id: int, checkpoint: Checkpoint) -> tuple[int, int, bytes]:
    """What SAVE wants."""
    return range_id, checkpoint.order, encode_checkpoint(checkpoint)


class SqliteCheckpointStore:
    """See ports.CheckpointStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self, range_id: int) -> Checkpoint | None:
        """See ports.CheckpointStore."""
        query = "SELECT write_order, checkpoint FROM range_checkpoints WHERE range_id = ?"
        row = await self._database.read(lambda connection: connection.execute(query, (range_id,)).fetchone())
        return decode_checkpoint(range_id, *row) if row else None

    async def save(self, range_id: int, checkpoint: Checkpoint) -> None:
        """See ports.CheckpointStore."""
        parameters = save_parameters(range_id, checkpoint)
        with as_unavailable():
            await self._database.write(lambda connection: connection.execute(SAVE, parameters))
