"""Idempotency keys: a caller's own name for a create, under which it happens once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from .validation import NewTask


@dataclass(frozen=True, slots=True)
class Claim:
    """Which task a key stands for, fixed before the task is stored. `due_ms` and `task_id` are its home row's place.

    `digest` is that of the request: a key is not to be used for something else.
    """

    task_id: bytes
    due_ms: int
    nominal_due_ms: int
    created_ms: int
    digest: bytes


def digest(task: NewTask) -> bytes:
    """SHA-256 of what was asked for. A delay counts as it was given, not by the due time that it came to."""
    found = hashlib.sha256()
    for part in _parts(task):
        found.update(len(part).to_bytes(8, "big"))
        found.update(part)
    return found.digest()


def _parts(task: NewTask) -> Iterator[bytes]:
    yield from (task.queue.encode(), task.type.encode(), task.payload, task.content_type.encode())
    yield b"%d" % task.priority
    yield b"due %d" % task.due_ms if task.due_ms is not None else b"delay %d" % (task.delay_ms or 0)
    for key, value in sorted(task.metadata.items()):
        yield key.encode()
        yield value.encode()
