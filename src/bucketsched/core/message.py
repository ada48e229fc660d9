"""What is handed on: CloudEvents 1.0 in Kafka's binary content mode (headers `ce_*` and content-type).

The same headers travel through Kafka and through the embedded outbox, so delivery reads one form. CloudEvents allows
only lower-case letters and digits in attribute names, so a task's metadata has headers of its own: `bs-meta-<key>`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from . import task_id as ids
from .catalog import Queue
from .lateness import LateReason
from .task import Priority, TaskRow

Headers = list[tuple[str, bytes]]
METADATA_PREFIX = "bs-meta-"
DEFAULT_CONTENT_TYPE = "application/octet-stream"
KINDS_CACHED_MAX = 1_024
"""Queues and types whose common headers are remembered."""
INSTANTS_CACHED_MAX = 16
_OURS = ("ce_", METADATA_PREFIX, "content-type")


@dataclass(slots=True)
class Message:
    """One record for one queue. `topic` is empty in embedded mode; `key` None: any partition."""

    ref: bytes
    queue: Queue
    topic: str
    key: bytes | None
    headers: Headers
    value: bytes

    @property
    def size(self) -> int:
        """Bytes on the wire, about."""
        size = 64 + len(self.value) + 4 * len(self.headers)
        for name, value in self.headers:
            size += len(name) + len(value)
        return size


@dataclass(slots=True)
class TaskEvent:
    """A message read back by whoever delivers it. `due_ms` is the due time that was asked for; `late_ms` and
    `late_reason` are those of a late message."""

    task_id: str
    namespace: str
    queue: str
    type: str
    payload: bytes
    metadata: dict[str, str]
    content_type: str
    priority: Priority
    generation: int
    attempt: int
    epoch: int
    due_ms: int
    dispatched_ms: int
    late_ms: int = 0
    late_reason: str = ""
    row_due_ms: int = 0
    """Where the attempt's row is: when this attempt was due."""
    expires_ms: int = 0
    """No attempt starts later; 0: it never expires."""
    notices: bool = False
    """Something is told of it."""


def rfc3339(ms: int) -> str:
    """An instant with milliseconds, UTC."""
    seconds, rest = divmod(ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC).isoformat()[:19]}.{rest:03d}Z"


@lru_cache(KINDS_CACHED_MAX)
def _headers_of_kind(namespace: str, queue: str, type_: str, priority: int, content_type: str) -> Headers:
    """Those that the tasks of a queue and type have in common. Not to be changed: it is shared."""
    return [
        ("ce_specversion", b"1.0"),
        ("ce_source", f"/bucketsched/{namespace}/{queue}".encode()),
        ("ce_type", type_.encode()),
        ("ce_priority", b"%d" % priority),
        ("ce_namespace", namespace.encode()),
        ("ce_queue", queue.encode()),
        ("content-type", (content_type or DEFAULT_CONTENT_TYPE).encode()),
    ]


@lru_cache(INSTANTS_CACHED_MAX)
def _headers_of_instant(dispatched_ms: int) -> Headers:
    """Those that all tasks of a transaction have in common. Not to be changed: it is shared."""
    return [("ce_time", rfc3339(dispatched_ms).encode()), ("ce_dispatched", b"%d" % dispatched_ms)]


def to_message(row: TaskRow, queue: Queue, epoch: int, dispatched_ms: int, late: LateReason | None = None) -> Message:
    """The message that dispatches `row`. `late`: why it does so too late, if it does."""
    body = row.body
    task_id, generation, attempt = ids.text(row.task_id).encode(), b"%d" % row.generation, b"%d" % row.attempt
    headers: Headers = [
        *_headers_of_kind(body.namespace, body.queue, body.type, body.priority, body.content_type),
        *_headers_of_instant(dispatched_ms),
        ("ce_id", b"%b/%b/%b" % (task_id, generation, attempt)),
        ("ce_taskid", task_id),
        ("ce_generation", generation),
        ("ce_attempt", attempt),
        ("ce_epoch", b"%d" % epoch),
        ("ce_due", b"%d" % body.nominal_due_ms),
    ]
    if row.due_ms != body.nominal_due_ms:
        headers.append(("ce_rowdue", b"%d" % row.due_ms))
    if body.notices:
        headers.append(("ce_notices", b"1"))
    if body.expires_ms:
        headers.append(("ce_expires", b"%d" % body.expires_ms))
    if late is not None:
        headers += [("ce_latems", b"%d" % (dispatched_ms - body.nominal_due_ms)), ("ce_latereason", late.encode())]
    if body.metadata:
        headers += [(METADATA_PREFIX + key, value.encode()) for key, value in body.metadata.items()]
    return Message(row.ref, queue, queue.topic_for(body.priority), None, headers, body.payload)


def from_headers(headers: Iterable[tuple[str, bytes]], value: bytes) -> TaskEvent:
    """Reverse of `to_message`. Headers that others added are passed over, in whatever encoding they are.

    Raises KeyError or ValueError where the headers are not bucketsched's.
    """
    plain = {name: raw.decode() for name, raw in headers if name.startswith(_OURS)}
    namespace, queue = plain["ce_namespace"], plain["ce_queue"]
    metadata = {k.removeprefix(METADATA_PREFIX): v for k, v in plain.items() if k.startswith(METADATA_PREFIX)}
    return TaskEvent(
        task_id=plain["ce_taskid"],
        namespace=namespace,
        queue=queue,
        type=plain["ce_type"],
        payload=value,
        metadata=metadata,
        content_type=plain["content-type"],
        priority=Priority(int(plain["ce_priority"])),
        generation=int(plain["ce_generation"]),
        attempt=int(plain["ce_attempt"]),
        epoch=int(plain["ce_epoch"]),
        due_ms=int(plain["ce_due"]),
        row_due_ms=int(plain.get("ce_rowdue", plain["ce_due"])),
        expires_ms=int(plain.get("ce_expires", 0)),
        notices="ce_notices" in plain,
        dispatched_ms=int(plain["ce_dispatched"]),
        late_ms=int(plain.get("ce_latems", 0)),
        late_reason=plain.get("ce_latereason", ""),
    )
