"""A task's row, the facts about it, and the state that they fold to."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import NamedTuple

from .notice_rule import NoticeRule
from .retry import RetryPolicy

BUCKET_MS = 60_000
"""A bucket is one minute of due times."""

_REF = struct.Struct(">Q16s16sII")
REF_BYTES = _REF.size
"""Length of a packed row reference: 48."""
_ATTEMPT = struct.Struct(">I")
_STAGE_SHIFT = 29
ATTEMPT_MAX = (1 << _STAGE_SHIFT) - 1


class Priority(IntEnum):
    """Lower goes first."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


class TaskState(StrEnum):
    """What a task is, seen from outside."""

    PENDING = "PENDING"
    DISPATCHED = "DISPATCHED"
    RUNNING = "RUNNING"
    """Dispatched, and an attempt at it has begun."""
    SUCCEEDED = "SUCCEEDED"
    RETRYING = "RETRYING"
    """An attempt has failed, and the next one waits for its due time."""
    FAILED = "FAILED"
    """It could not be dispatched, or no attempt is left: a dead letter."""
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"
    """It could not be started by the time until which it was of use."""


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
    retry: RetryPolicy | None = None
    """None: that of the queue."""
    expires_ms: int = 0
    """No attempt starts later; 0: it never expires."""
    notices: tuple[NoticeRule, ...] = ()
    """What is told of it, besides what its queue has told of all its tasks."""


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


class Stage(IntEnum):
    """What is to be decided about one attempt, each thing once. A packed reference carries it in the upper bits of the
    attempt, so that whoever settles references settles each of these by itself."""

    DISPATCH = 0
    """Whether it is dispatched."""
    OUTCOME = 1
    """How it ended, once it was dispatched."""
    REDRIVE = 2
    """Whether it is done all over, once it has failed for good."""


def at_stage(ref: bytes, stage: Stage) -> bytes:
    """The packed reference of an attempt at this stage; `ref` may be at any."""
    (attempt,) = _ATTEMPT.unpack_from(ref, REF_BYTES - 4)
    return ref[:-4] + _ATTEMPT.pack((attempt & ATTEMPT_MAX) | stage << _STAGE_SHIFT)


def stage_of(ref: bytes) -> Stage:
    """The stage in a packed reference. Raises ValueError where there is none such."""
    return Stage(_ATTEMPT.unpack_from(ref, REF_BYTES - 4)[0] >> _STAGE_SHIFT)


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
    """The task's row now lives at this due time, one generation or one attempt up."""
    succeeded_ms: int | None = None
    expired_ms: int | None = None

    @property
    def settled(self) -> bool:
        """True if this row must not be dispatched (any more)."""
        return self is not NO_FACTS and self != NO_FACTS

    @property
    def last(self) -> FactKind | None:
        """What has become of this row at last, but for where its task went on; None: nothing."""
        if self.failed_ms is not None:
            return FactKind.FAILED
        if self.succeeded_ms is not None:
            return FactKind.SUCCEEDED
        if self.expired_ms is not None:
            return FactKind.EXPIRED
        if self.dispatched_ms is not None:
            return FactKind.DISPATCHED
        return FactKind.CANCELLED if self.cancelled_ms is not None else None

    def with_mark(self, mark: Mark) -> Facts:
        """With one more fact."""
        match mark.kind:
            case FactKind.DISPATCHED:
                return replace(self, dispatched_ms=mark.at_ms)
            case FactKind.CANCELLED:
                return replace(self, cancelled_ms=mark.at_ms)
            case FactKind.FAILED:
                return replace(self, failed_ms=mark.at_ms, failed_reason=mark.reason)
            case FactKind.MOVED | FactKind.RETRIED:
                return replace(self, moved_to_ms=mark.at_ms)
            case FactKind.SUCCEEDED:
                return replace(self, succeeded_ms=mark.at_ms)
            case FactKind.EXPIRED:
                return replace(self, expired_ms=mark.at_ms)
            case FactKind.SPAWNED:
                raise AssertionError("no fact")


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
    """It can't be dispatched, or its last attempt has failed."""
    MOVED = 4
    SUCCEEDED = 5
    RETRIED = 6
    """An attempt has failed, and there will be another one. In the store: moved to its due time."""
    EXPIRED = 7
    SPAWNED = 8
    """No fact: a record has made this row, which nobody had asked for by its name. It is settled by others."""


@dataclass(slots=True)
class Mark:
    """A fact to be written beside a row. `at_ms`: when; for MOVED and RETRIED: the new due time."""

    ref: bytes
    kind: FactKind
    at_ms: int
    reason: str = ""


def fold(facts: Facts, attempt: int = 1) -> TaskState:
    """The state of a task by the facts about its newest row. A commit in the journal decides between dispatch and
    cancel, and between outcomes, so they exclude each other. Whether an attempt is RUNNING its execution log tells.
    """
    if (last := facts.last) is not None:
        return TaskState[last.name]
    return TaskState.PENDING if attempt == 1 else TaskState.RETRYING


def bucket_of(due_ms: int) -> int:
    """The bucket of a due time."""
    return due_ms // BUCKET_MS


def bucket_start_ms(bucket: int) -> int:
    """The first instant of a bucket."""
    return bucket * BUCKET_MS


def bucket_end_ms(bucket: int) -> int:
    """The first instant after a bucket."""
    return (bucket + 1) * BUCKET_MS
