"""A task's row, the facts about it, and the state that they fold to."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple

BUCKET_MS = 60_000
"""A bucket is one minute of due times."""

_REF = struct.Struct(">Q16s16sII")
REF_BYTES = _REF.size
"""Length of a packed row reference: 48."""


class Priority(IntEnum):
    """Lower goes first."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


class TaskState(StrEnum):
    """What a task is, seen from outside."""

    PENDING = "PENDING"
    DISPATCHED = "DISPATCHED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"


@dataclass(slots=True)
class TaskBody:
    """All of a task that never changes. `nominal_due_ms` is the due time asked for; the row's may be later."""

    namespace: str
    queue: str
    type: str
    payload: bytes = b""
    metadata: dict[str, str] = field(default_factory=dict)
    priority: Priority = Priority.NORMAL
    nominal_due_ms: int = 0
    created_ms: int = 0
    content_type: str = ""
    idempotency_key: str = ""


NO_BODY = TaskBody("", "", "")
"""Of a row that has expired, and of which only a fact is left."""


class RowRef(NamedTuple):
    """What names one dispatch of one task, and, by due time and task id, the place of its row."""

    due_ms: int
    namespace_id: bytes
    task_id: bytes
    generation: int
    attempt: int

    def pack(self) -> bytes:
        """48 bytes that sort by due time: the key of every set of rows, and the entry in the journal."""
        return _REF.pack(*self)

    @classmethod
    def unpack(cls, packed: bytes) -> RowRef:
        """Reverse of `pack`."""
        return cls(*_REF.unpack(packed))


@dataclass(slots=True)
class TaskRow:
    """One row of the tasks table: a task at one due time, with everything that its dispatch needs.

    `namespace_id` and `task_id` are 16 bytes each. The partition is (bucket of `due_ms`, shard in `task_id`).
    """

    due_ms: int
    namespace_id: bytes
    task_id: bytes
    body: TaskBody
    generation: int = 0
    attempt: int = 1
    ref: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.ref = _REF.pack(self.due_ms, self.namespace_id, self.task_id, self.generation, self.attempt)

    @property
    def bucket(self) -> int:
        """The minute in which it is due, in minutes since the Unix epoch."""
        return self.due_ms // BUCKET_MS


@dataclass(slots=True, frozen=True)
class Facts:
    """What happened to a row; each is added once and never taken back. Times in ms; None: did not happen."""

    dispatched_ms: int | None = None
    cancelled_ms: int | None = None
    failed_ms: int | None = None
    failed_reason: str = ""
    moved_to_ms: int | None = None
    """The task's row now lives at this due time, one generation up."""

    @property
    def settled(self) -> bool:
        """True if this row must not be dispatched (any more)."""
        return not (
            self.dispatched_ms is None
            and self.cancelled_ms is None
            and self.failed_ms is None
            and self.moved_to_ms is None
        )


NO_FACTS = Facts()


@dataclass(slots=True)
class StoredTask:
    """A row as it was read, with its facts."""

    row: TaskRow
    facts: Facts = NO_FACTS


class FactKind(IntEnum):
    """The kinds of facts, as numbers of the journal's entries."""

    DISPATCHED = 1
    CANCELLED = 2
    FAILED = 3
    MOVED = 4


@dataclass(slots=True)
class Mark:
    """A fact to be written beside a row. `at_ms`: when; for MOVED: the new due time."""

    ref: bytes
    kind: FactKind
    at_ms: int
    reason: str = ""


def fold(facts: Facts) -> TaskState:
    """The state of a row. A commit in the journal decides between dispatch and cancel, so they exclude each other."""
    if facts.failed_ms is not None:
        return TaskState.FAILED
    if facts.dispatched_ms is not None:
        return TaskState.DISPATCHED
    if facts.cancelled_ms is not None:
        return TaskState.CANCELLED
    return TaskState.PENDING


def bucket_of(due_ms: int) -> int:
    """The bucket of a due time."""
    return due_ms // BUCKET_MS


def bucket_start_ms(bucket: int) -> int:
    """The first instant of a bucket."""
    return bucket * BUCKET_MS


def bucket_end_ms(bucket: int) -> int:
    """The first instant after a bucket."""
    return (bucket + 1) * BUCKET_MS
