"""What listings ask for: which tasks, and from which end."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import struct
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from .catalog import DEFAULT_NAMESPACE
from .errors import InvalidArgument
from .task import RowRef, StoredTask, TaskState, fold

FIRST_ID, LAST_ID = bytes(16), b"\xff" * 16
"""Before and behind all ids."""

_DIGEST_BYTES = 12
_TOKEN = struct.Struct(f">{_DIGEST_BYTES}sQ16s")


class TaskOrder(StrEnum):
    """Which tasks come first."""

    NEXT = "next"
    """The earliest due."""
    NEWEST = "newest"
    """The latest due."""


class Position(NamedTuple):
    """A place in the order of (due, task id) within a namespace. A listing goes on strictly behind it."""

    due_ms: int
    task_id: bytes

    def ref(self, namespace_id: bytes) -> bytes:
        """As a packed row reference."""
        return RowRef(self.due_ms, namespace_id, self.task_id, 0, 0).pack()


@dataclass(frozen=True, slots=True)
class TaskQuery:
    """Everything given must hold; what is empty or None is not asked for. Due times are rows': from <= due < until.

    `metadata`: each of these pairs is in the task's.
    """

    namespace: str = DEFAULT_NAMESPACE
    queue: str = ""
    type: str = ""
    state: TaskState | None = None
    due_from_ms: int | None = None
    due_until_ms: int | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    order: TaskOrder = TaskOrder.NEXT

    @property
    def folded(self) -> TaskState | None:
        """The state that rows are asked for. Which of the dispatched ones are RUNNING, their execution logs tell."""
        return TaskState.DISPATCHED if self.state is TaskState.RUNNING else self.state

    def matches(self, stored: StoredTask) -> bool:
        """True of a row of the namespace, and within the window, that is to be shown. One that moved is shown where the
        task is now."""
        body = stored.row.body
        return (
            stored.facts.moved_to_ms is None
            and self.queue in ("", body.queue)
            and self.type in ("", body.type)
            and (self.state is None or fold(stored.facts, stored.row.attempt) is self.folded)
            and self.metadata.items() <= body.metadata.items()
        )

    def token(self, position: Position) -> str:
        """What tells the same query where to go on."""
        return base64.urlsafe_b64encode(_TOKEN.pack(self._digest(), *position)).decode().rstrip("=")

    def position(self, token: str) -> Position | None:
        """Reverse; None of an empty token. Raises InvalidArgument for one that another query was given."""
        if not token:
            return None
        try:
            raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
            digest, due_ms, task_id = _TOKEN.unpack(raw)
        except (binascii.Error, struct.error, ValueError):
            raise InvalidArgument("page_token", "must be the next_page_token of an answer") from None
        if digest != self._digest():
            raise InvalidArgument("page_token", "is that of a listing with another order or other filters")
        return Position(due_ms, task_id)

    def _digest(self) -> bytes:
        asked = [self.namespace, self.queue, self.type, self.state, self.due_from_ms, self.due_until_ms, self.order]
        text = json.dumps([*asked, sorted(self.metadata.items())])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:_DIGEST_BYTES]
