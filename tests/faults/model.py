"""What the checker looks at. Times in ms by the rig's clock, `append_ms` by the brokers', which are on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

from bucketsched.core.message import DEFAULT_CONTENT_TYPE


class Op(StrEnum):
    """What a request asks for."""

    CREATE = "create"
    CANCEL = "cancel"
    GET = "get"
    UPDATE = "update"
    RUN_NOW = "run-now"


class Outcome(StrEnum):
    """What a client was told. UNKNOWN also stands for requests that were never answered.

    EXISTS: the idempotency key is another create's. CONFLICT: the task is of another generation than expected.
    """

    OK = "ok"
    REJECTED = "rejected"
    EXISTS = "exists"
    UNKNOWN = "unknown"
    CANCELLED = "cancelled"
    UPDATED = "updated"
    CONFLICT = "conflict"
    TOO_LATE = "too-late"
    FAILED = "failed"
    PENDING = "pending"
    DISPATCHED = "dispatched"
    NOT_FOUND = "not-found"


class Dispatch(NamedTuple):
    """What names one dispatch of one task."""

    task_id: str
    generation: int
    attempt: int


class Change(NamedTuple):
    """What an update asks for, in the terms of `Body`; None: as it is. `expected`: only if it is of this generation."""

    payload: str | None = None
    metadata: str | None = None
    content_type: str | None = None
    priority: int | None = None
    due_ms: int | None = None
    expected: int | None = None


class Body(NamedTuple):
    """What must arrive as it was asked for: digests, and what is short. `fixed`: namespace, queue and type."""

    fixed: str
    payload: str
    metadata: str
    content_type: str
    priority: int
    due_ms: int

    def changed(self, change: Change) -> Body:
        """What an update makes of it."""
        asked = change._asdict()
        del asked["expected"]
        return self._replace(**{field: value for field, value in asked.items() if value is not None})


class Version(NamedTuple):
    """A task as it was at one time."""

    generation: int
    body: Body


@dataclass(slots=True)
class Request:
    """One call of a client. `end_ms` None: never answered.

    Of creates: `queue`, `body` (its due time 0 where a delay was asked for) and `key`, an idempotency key; then
    `task_id` is what was answered, empty if nothing was. `due_ms`: what a create with a key was told.
    Of updates: `change`. `version`: what an update or a read was told.
    """

    op: Op
    task_id: str
    start_ms: int
    end_ms: int | None = None
    outcome: Outcome = Outcome.UNKNOWN
    queue: str = ""
    body: Body | None = None
    key: str = ""
    delay_ms: int | None = None
    due_ms: int = 0
    change: Change | None = None
    version: Version | None = None

    def before(self, at_ms: int) -> bool:
        """Whether it was answered by then."""
        return self.end_ms is not None and self.end_ms < at_ms


@dataclass(frozen=True, slots=True)
class Message:
    """A record that a `read_committed` consumer can see. `seen_ms` None: only a later reader saw it."""

    topic: str
    partition: int
    offset: int
    dispatch: Dispatch
    body: Body
    append_ms: int
    seen_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """A worker's handler began."""

    dispatch: Dispatch
    body: Body
    began_ms: int


class EntryKind(StrEnum):
    """The facts of a journal. The first five say what became of a row that waited, the next four how an attempt ended
    that was dispatched, the last one that what had failed is done all over.
    """

    DISPATCHED = "dispatched"
    CANCELLED = "cancelled"
    FAILED = "failed"
    MOVED = "moved"
    EXPIRED = "expired"
    SUCCEEDED = "succeeded"
    RETRIED = "retried"
    ATTEMPT_FAILED = "attempt-failed"
    ATTEMPT_EXPIRED = "attempt-expired"
    REDRIVEN = "redriven"


class Fact(NamedTuple):
    """One fact of a journal record about one row. `due_ms`: the row's. `body`: what a MOVED makes of the task, if it
    changes more than its place. `next_due_ms`: of the row that follows, where one does.
    """

    kind: EntryKind
    dispatch: Dispatch
    due_ms: int
    body: Body | None = None
    next_due_ms: int = 0


@dataclass(frozen=True, slots=True)
class Section:
    """What one committed journal record says about one range. `partition` is the lane."""

    partition: int
    offset: int
    append_ms: int
    range_id: int
    epoch: int
    facts: tuple[Fact, ...] = ()
    closed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the store at the end, and the facts beside it: each stands for one kind or another of the journals'.

    `has_body` False: facts without a task.
    """

    range_id: int
    bucket: int
    dispatch: Dispatch
    has_body: bool = True
    facts: frozenset[EntryKind] = frozenset()


@dataclass(frozen=True, slots=True)
class Span:
    """A fault, from its beginning to its end."""

    kind: str
    target: str
    begin_ms: int
    end_ms: int


@dataclass(slots=True)
class History:
    """A whole run."""

    requests: list[Request] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    journal: list[Section] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    faults: list[Span] = field(default_factory=list)
    worker_queues: frozenset[str] = frozenset()
    differences: list[tuple[str, str]] = field(default_factory=list)
    """What `admin fsck` has found: tasks, and what is the matter with them."""


def body_of(
    namespace: str,
    queue: str,
    kind: str,
    payload: bytes,
    metadata: Mapping[str, str],
    content_type: str,
    priority: int,
    due_ms: int,
) -> Body:
    """The same for a request, a message, a row and an answer about one and the same."""
    return Body(
        digest_of(*(text.encode() for text in (namespace, queue, kind))),
        digest_of(payload),
        metadata_digest(metadata),
        content_type or DEFAULT_CONTENT_TYPE,
        int(priority),
        due_ms,
    )


def metadata_digest(metadata: Mapping[str, str]) -> str:
    """Whatever the order of its keys."""
    return digest_of(repr(sorted(metadata.items())).encode())


def digest_of(*parts: bytes) -> str:
    """In a few characters."""
    hasher = blake2b(digest_size=8)
    for part in parts:
        hasher.update(len(part).to_bytes(4) + part)
    return hasher.hexdigest()
