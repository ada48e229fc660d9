"""The rows that moves have made, for whoever has only the journal's word for it."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from ..core import task_id as ids
from ..core.task import RowRef, TaskRow
from ..ports import TaskStore

log = structlog.get_logger(__name__)


async def successors(store: TaskStore, moved: Sequence[tuple[bytes, int]]) -> list[TaskRow]:
    """The rows at the new due times of these (packed reference, new due). Writing them again is idempotent.

    Raises Unavailable.
    """
    rows = []
    for packed, new_due_ms in moved:
        ref = RowRef.unpack(packed)
        stored = await store.get(ref.due_ms, ref.namespace_id, ref.task_id)
        if stored is None:
            log.critical("a moved task's home row has expired: it can't be dispatched", task=ids.text(ref.task_id))
            continue
        body, generation = stored.row.body, ref.generation + 1
        rows.append(TaskRow(new_due_ms, ref.namespace_id, ref.task_id, body, generation, ref.attempt))
    return rows
