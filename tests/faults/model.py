"""What the checker looks at. Times in ms by the rig's clock, `append_ms` by the brokers', which are on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple


class Op(StrEnum):
    """What a request asks for."""

    CREATE = "create"
    CANCEL = "cancel"
    GET = "get"


class Outcome(StrEnum):
    """What a client was told. UNKNOWN also stands for requests that were never answered."""

    OK = "ok"
    REJECTED = "rejected"
    UNKNOWN = "unknown"
    CANCELLED = "cancelled"
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


@dataclass(slots=True)
class Request:
    """One call of a client. `due_ms`, `queue` and `digest` of creates only. `end_ms` None: never answered."""

    op: Op
    task_id: str
    start_ms: int
    end_ms: int | None = None
    outcome: Outcome = Outcome.UNKNOWN
    due_ms: int = 0
    queue: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """A record that a `read_committed` consumer can see. `seen_ms` None: only a later reader saw it."""

    topic: str
    partition: int
    offset: int
    dispatch: Dispatch
    due_ms: int
    append_ms: int
    digest: str
    seen_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """A worker's handler began."""

    dispatch: Dispatch
    due_ms: int
    began_ms: int
    digest: str


class EntryKind(StrEnum):
    """The facts of a journal."""

    DISPATCHED = "dispatched"
    CANCELLED = "cancelled"
    FAILED = "failed"
    MOVED = "moved"


class Fact(NamedTuple):
    """One fact of a journal record about one row."""

    kind: EntryKind
    dispatch: Dispatch
    due_ms: int


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
    """A row of the store at the end, and the kinds of facts beside it. `has_body` False: facts without a task."""

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


def digest_of(
    namespace: str, queue: str, kind: str, payload: bytes, metadata: dict[str, str], content_type: str, priority: int
) -> str:
    """What must arrive unchanged, in a few characters."""
    parts: Iterable[bytes] = (
        *(text.encode() for text in (namespace, queue, kind, content_type, str(priority))),
        repr(sorted(metadata.items())).encode(),
        payload,
    )
    hasher = blake2b(digest_size=8)
    for part in parts:
        hasher.update(len(part).to_bytes(4) + part)
    return hasher.hexdigest()
