"""Idempotency keys: a caller's own name for a create, under which it happens once."""

from __future__ import annotations

import hashlib
import json
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
    yield from _later_parts(task)


def _later_parts(task: NewTask) -> Iterator[bytes]:
    """Nothing of what was not asked for, so that digests of older versions stay right. No key of metadata begins so."""
    if (retry := task.retry) is not None:
        numbers = retry.tries_max, retry.delay_ms_first, retry.delay_ms_max, retry.elapsed_ms_max, retry.multiplier
        yield b"\0retry %d %d %d %d %r" % numbers
        yield json.dumps(retry.final_errors).encode()
    if task.start_by_ms is not None:
        yield b"\0start by %d" % task.start_by_ms
    if task.expire_after_ms is not None:
        yield b"\0expire after %d" % task.expire_after_ms
    for rule in task.notices:
        yield b"\0notice %d %s" % (rule.late_ms, rule.queue.encode())
        yield json.dumps(rule.events).encode()
