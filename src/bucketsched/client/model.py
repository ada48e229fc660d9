"""What the client gives and takes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum
from typing import Any

from ..core.catalog import QueueKind
from ..core.execution import AttemptEnd as AttemptOutcome
from ..core.task import Priority, TaskState
from .mail import Email
from .notice_rule import NoticeRule
from .retry_policy import RetryPolicy
from .sqs import Sqs
from .webhook import Webhook

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_datetime(ms: int) -> datetime:
    """An instant, in UTC."""
    return EPOCH + timedelta(milliseconds=ms)


@dataclass(slots=True)
class NewTask:
    """A task to be created. At most one of `delay` (seconds or timedelta) and `due` (with a time zone); neither: now.

    `task_id`: from `Client.mint`, to be able to create the same task again after a crash; then it alone says when.
    `idempotency_key`: your own name for it, which does the same without anything being kept here: the first create with
    it counts, and says when a `delay` ends; another one with the same contents is the same task, with other contents
    AlreadyExists.
    `retry`: without it, what the queue has. `start_by`, or `expire_after` (seconds or timedelta, from its due time): if
    no attempt could be started by then, it is dropped and has EXPIRED. `notices`: what is told of it, at most 10 rules,
    besides those of its queue.
    """

    type: str
    payload: bytes = b""
    queue: str | None = None
    delay: float | timedelta | None = None
    due: datetime | None = None
    priority: Priority = Priority.NORMAL
    metadata: dict[str, str] | None = None
    task_id: str | None = None
    content_type: str = ""
    idempotency_key: str = ""
    retry: RetryPolicy | None = None
    start_by: datetime | None = None
    expire_after: float | timedelta | None = None
    notices: Sequence[NoticeRule] = ()


@dataclass(frozen=True, slots=True)
class CreatedTask:
    """A task that the server has accepted: it is on disk, and will be handed on at `due`, never before."""

    id: str
    due_ms: int
    state: TaskState = TaskState.PENDING

    @property
    def due(self) -> datetime:
        """The due time, UTC."""
        return to_datetime(self.due_ms)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One entry of a task's execution log. Instants in UTC; None: did not happen, or nobody said."""

    generation: int
    attempt: int
    started: datetime | None = None
    ended: datetime | None = None
    outcome: AttemptOutcome | None = None
    """None: nobody has said yet how it ended."""
    worker: str = ""
    error_type: str = ""
    error_message: str = ""
    error_trace: str = ""
    result: bytes = b""
    retry_due: datetime | None = None
    """When the next attempt is due, where another one follows."""

    def json(self) -> Any:
        """The result, parsed. Raises ValueError."""
        return json.loads(self.result)


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """A task as the server has it. Instants in UTC; None: did not happen.

    `Client.get` alone tells the last 20 attempts, the newest one last, and why the last one that failed did.
    """

    id: str
    namespace: str
    queue: str
    type: str
    payload: bytes
    metadata: dict[str, str]
    content_type: str
    priority: Priority
    state: TaskState
    due: datetime
    created: datetime
    generation: int
    attempt: int
    dispatched: datetime | None = None
    cancelled: datetime | None = None
    failed: datetime | None = None
    fail_reason: str = ""
    idempotency_key: str = ""
    succeeded: datetime | None = None
    expired: datetime | None = None
    start_by: datetime | None = None
    retry: RetryPolicy | None = None
    last_attempts: tuple[Attempt, ...] = ()
    last_error: str = ""
    notices: tuple[NoticeRule, ...] = ()


class CancelOutcome(StrEnum):
    """What became of a cancel."""

    CANCELLED = "CANCELLED"
    ALREADY_DISPATCHED = "ALREADY_DISPATCHED"
    ALREADY_CANCELLED = "ALREADY_CANCELLED"
    """By somebody, perhaps by an earlier try of this very call whose answer was lost."""
    ALREADY_FAILED = "ALREADY_FAILED"
    ALREADY_SUCCEEDED = "ALREADY_SUCCEEDED"
    ALREADY_EXPIRED = "ALREADY_EXPIRED"

    @property
    def cancelled(self) -> bool:
        """True if the task never was and never will be dispatched because of a cancel."""
        return self in (CancelOutcome.CANCELLED, CancelOutcome.ALREADY_CANCELLED)


class UpdateOutcome(StrEnum):
    """What became of a change."""

    UPDATED = "UPDATED"
    """It is as it was asked to be, and never goes as it was before."""
    ALREADY_DISPATCHED = "ALREADY_DISPATCHED"
    ALREADY_CANCELLED = "ALREADY_CANCELLED"
    ALREADY_FAILED = "ALREADY_FAILED"
    ALREADY_SUCCEEDED = "ALREADY_SUCCEEDED"
    ALREADY_EXPIRED = "ALREADY_EXPIRED"

    @property
    def updated(self) -> bool:
        """True if it was not too late."""
        return self is UpdateOutcome.UPDATED


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What became of an update. `task`: as it is now; None: it was too late."""

    outcome: UpdateOutcome
    task: TaskInfo | None = None


@dataclass(frozen=True, slots=True)
class TaskCount:
    """How many tasks match. Not `exact`: there are at least so many."""

    count: int
    exact: bool


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A named destination."""

    namespace: str
    name: str
    kind: QueueKind
    topic: str = ""
    partitions: int = 0
    replication: int = 0
    priority_topics: bool = False
    created: datetime = field(default=EPOCH, compare=False)
    webhook: Webhook | None = None
    retry: RetryPolicy | None = None
    """Of tasks without one of their own; None: that by default, or of the webhook."""
    sqs: Sqs | None = None
    email: Email | None = None
    notices: tuple[NoticeRule, ...] = ()
    """What is told of all its tasks."""


class Unchanged(Enum):
    """What is not said stays as it is."""

    UNCHANGED = "UNCHANGED"


UNCHANGED = Unchanged.UNCHANGED


@dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """A tenant."""

    name: str
    created: datetime = field(default=EPOCH, compare=False)


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What the server says of itself. `clock_offset_ms`: its clock minus ours; 0 while they agree within a second."""

    version: str
    mode: str
    shards: int
    payload_bytes_max: int
    batch_tasks_max: int
    delay_ms_max: int
    clock_offset_ms: int = 0
