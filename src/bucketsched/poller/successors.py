"""What the journal says: facts, rows that moves and retries have made, and entries of the execution log; for whoever
has only the journal's word for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import structlog

from ..core import task_id as ids
from ..core.execution import Attempt
from ..core.journal_record import JournalCorrupt, JournalRecord, Other, Section
from ..core.task import NO_BODY, FactKind, Mark, RowRef, Stage, TaskBody, TaskRow, at_stage, stage_of
from ..encoding.attempts import decode_outcome
from ..encoding.rows import decode_body
from ..ports import TaskStore

log = structlog.get_logger(__name__)


class Moved(NamedTuple):
    """A move, or the retry of an attempt, as the journal has it. `body` is the encoded one of the new row; empty: that
    of the old row. `spawned`: `ref` is that of the new row, and there was none before it."""

    ref: bytes
    new_due_ms: int
    body: bytes = b""
    spawned: bool = False


def marks_of(record: JournalRecord, section: Section) -> list[Mark]:
    """The facts that a section of a record proves. Raises JournalCorrupt."""
    marks = [Mark(ref, FactKind.DISPATCHED, record.at_ms) for ref in section.dispatched]
    return marks + [_mark_of(record, other) for other in section.others if other.kind is not FactKind.SPAWNED]


def _mark_of(record: JournalRecord, other: Other) -> Mark:
    at_ms = other.new_due_ms or record.at_ms
    reason = other.reason
    if other.kind is FactKind.FAILED and stage_of(other.ref) is Stage.OUTCOME:
        reason = _attempt(other).reason
    return Mark(other.ref, other.kind, at_ms, reason)


def moves_of(section: Section) -> list[Moved]:
    """The rows that a section of a record makes."""
    with_body = (FactKind.MOVED, FactKind.SPAWNED)
    return [
        Moved(o.ref, o.new_due_ms, o.body if o.kind in with_body else b"", o.kind is FactKind.SPAWNED)
        for o in section.others
        if o.new_due_ms
    ]


def attempts_of(section: Section) -> list[Attempt]:
    """What a section of a record adds to the execution log. Raises JournalCorrupt."""
    return [_attempt(other) for other in section.others if stage_of(other.ref) is Stage.OUTCOME]


def _attempt(other: Other) -> Attempt:
    try:
        return decode_outcome(other.body)
    except ValueError as error:
        raise JournalCorrupt(f"an outcome can't be decoded: {error}") from error


async def successors(store: TaskStore, moved: Sequence[Moved]) -> list[TaskRow]:
    """The rows at the new due times. Writing them again is idempotent.

    Raises Unavailable.
    """
    rows = []
    for packed, new_due_ms, encoded, spawned in moved:
        ref = RowRef.unpack(packed)
        if spawned:
            body = decode_body(encoded)
            rows.append(TaskRow(new_due_ms, ref.namespace_id, ref.task_id, body, ref.generation, ref.attempt))
            continue
        if encoded:
            rows.append(successor(packed, new_due_ms, decode_body(encoded)))
            continue
        stored = await store.get(ref.due_ms, ref.namespace_id, ref.task_id)
        if stored is None or stored.row.body == NO_BODY:
            log.critical("a moved task's row has expired: it can't be dispatched", task=ids.text(ref.task_id))
            continue
        rows.append(successor(packed, new_due_ms, stored.row.body))
    return rows


def successor(ref: bytes, new_due_ms: int, body: TaskBody) -> TaskRow:
    """The row that comes of a move (one generation up), of an outcome (the next attempt), or of doing a task all over
    (one generation up, its first attempt), as the stage in the reference tells."""
    stage = stage_of(ref)
    old = RowRef.unpack(at_stage(ref, Stage.DISPATCH))
    retried = stage is Stage.OUTCOME
    generation = old.generation if retried else old.generation + 1
    attempt = 1 if stage is Stage.REDRIVE else old.attempt + retried
    return TaskRow(new_due_ms, old.namespace_id, old.task_id, body, generation, attempt)
