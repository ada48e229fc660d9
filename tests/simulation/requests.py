"""What clients ask for: tasks, changes of tasks, and what they were told of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from bucketsched.core.task import Priority, TaskBody
from bucketsched.core.task_update import TaskUpdate
from bucketsched.ports import CancelResult

TAG_BYTES = 8
"""Every payload begins with the number of its request."""


class Told(Enum):
    """What a client knows of its create."""

    NOTHING = "nothing"
    ACKNOWLEDGED = "acknowledged"
    REJECTED = "rejected"


def tag(number: int) -> bytes:
    """What the payload of a request begins with."""
    return number.to_bytes(TAG_BYTES, "big")


def namespace_id(name: str) -> bytes:
    """Of a namespace of the simulation."""
    return name.encode().ljust(16, b"-")


@dataclass(slots=True)
class Wish:
    """A change of a task that a client asks for. `update` None: that it runs now."""

    update: TaskUpdate | None
    asked_ms: float
    """When it was asked for first: a delay ends no earlier than that, and itself."""

    @property
    def generation(self) -> int | None:
        """The only one that it is for."""
        return self.update.expected_generation if self.update else None

    def makes(self, before: TaskBody, after: TaskBody, now_ms: float, error_ms: float) -> bool:
        """True if a task with the one body is asked to have the other one. `error_ms`: of the clock that resolves a
        delay."""
        same = replace(after, created_ms=before.created_ms, nominal_due_ms=before.nominal_due_ms)
        return same == self._applied(before) and self.due(before, after, now_ms, error_ms)

    def fulfilled(self, body: TaskBody, now_ms: float, error_ms: float) -> bool:
        """True if the task is as it is asked to be."""
        same = replace(body, nominal_due_ms=0) == self._applied(replace(body, nominal_due_ms=0))
        return same and self.due(body, body, now_ms, error_ms)

    def due(self, before: TaskBody, after: TaskBody, now_ms: float, error_ms: float) -> bool:
        """True if the due time is the one asked for."""
        exact, delay_ms = (self.update.due_ms, self.update.delay_ms) if self.update else (None, 0)
        if exact is not None:
            return after.nominal_due_ms == exact
        if delay_ms is None:
            return after.nominal_due_ms == before.nominal_due_ms
        least_ms, most_ms = self.asked_ms + delay_ms - error_ms - 1, now_ms + delay_ms + error_ms + 1
        return least_ms <= after.nominal_due_ms <= most_ms

    def _applied(self, body: TaskBody) -> TaskBody:
        update = self.update or TaskUpdate()
        if update.payload is not None:
            body = replace(body, payload=update.payload)
        if update.content_type is not None:
            body = replace(body, content_type=update.content_type)
        if update.metadata is not None:
            body = replace(body, metadata=update.metadata)
        if update.priority is not None:
            body = replace(body, priority=update.priority)
        return body


@dataclass(slots=True)
class Request:
    """One task that a client asked for. `task_id` is empty until the client knows it."""

    number: int
    namespace: str
    queue: str
    type: str
    payload: bytes
    metadata: dict[str, str]
    due_ms: int
    exact_due_ms: float = 0.0
    """The due time asked for, before it was rounded."""
    delay_ms: int | None = None
    """Instead of a due time, which the first create with its key resolves."""
    due_told: bool = False
    key: str = ""
    """Its idempotency key."""
    spoiled: bool = False
    """It can't be accepted."""
    task_id: bytes = b""
    told: Told = Told.NOTHING
    cancels: list[CancelResult] = field(default_factory=list)
    wishes: list[Wish] = field(default_factory=list)
    told_ms: float = 0.0
    """When the client learned of it."""
    twin_of: Request | None = None
    """Another one, whose id it takes if that has one by then."""
    rival_of: Request | None = None
    """Another one, whose key it takes for something else."""
    contended: bool = False
    """Somebody takes its key for something else."""

    @property
    def name(self) -> str:
        """As the trace calls it."""
        return f"t{self.number}"

    @property
    def names(self) -> tuple[bytes, bytes]:
        """What names it in the journal."""
        return namespace_id(self.namespace), self.task_id

    @property
    def priority(self) -> Priority:
        """That it is created with."""
        return Priority(self.number % 3)

    def body(self) -> TaskBody:
        """As it was asked for at first."""
        return TaskBody(
            self.namespace,
            self.queue,
            self.type,
            self.payload,
            self.metadata,
            self.priority,
            self.due_ms,
            idempotency_key=self.key,
        )
