"""The rows that moves have made, for whoever has only the journal's word for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import structlog

from ..core import task_id as ids
from ..core.task import NO_BODY, RowRef, TaskBody, TaskRow
from ..encoding.rows import decode_body
from ..ports import TaskStore

log = structlog.get_logger(__name__)


class Moved(NamedTuple):
    """A move as the journal has it. `body` is the encoded one of the new row; empty: that of the old row."""

    ref: bytes
    new_due_ms: int
    body: bytes = b""


async def successors(store: TaskStore, moved: Sequence[Moved]) -> list[TaskRow]:
    """The rows at the new due times. Writing them again is idempotent.

    Raises Unavailable.
    """
    rows = []
    for packed, new_due_ms, encoded in moved:
        ref = RowRef.unpack(packed)
        if encoded:
            rows.append(_successor(ref, new_due_ms, decode_body(encoded)))
            continue
        stored = await store.get(ref.due_ms, ref.namespace_id, ref.task_id)
        if stored is None or stored.row.body == NO_BODY:
            log.critical("a moved task's row has expired: it can't be dispatched", task=ids.text(ref.task_id))
            continue
        rows.append(_successor(ref, new_due_ms, stored.row.body))
    return rows


def _successor(ref: RowRef, new_due_ms: int, body: TaskBody) -> TaskRow:
    return TaskRow(new_due_ms, ref.namespace_id, ref.task_id, body, ref.generation + 1, ref.attempt)
