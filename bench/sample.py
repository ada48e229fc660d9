"""Tasks as the scheduler has them inside, for measuring what the bare drivers do with the same bytes."""

from __future__ import annotations

import random
import secrets

from bucketsched.core import task_id as ids
from bucketsched.core.catalog import Queue, QueueKind
from bucketsched.core.message import Message, to_message
from bucketsched.core.task import TaskBody, TaskRow

from .load import PAYLOAD, TYPE, now_ms

SHARDS = 256
NAMESPACE = "default"
EPOCH = 1


def row(due_ms: int, namespace_id: bytes, queue: str) -> TaskRow:
    """The row of a task such as a load creates, in a random shard."""
    body = TaskBody(NAMESPACE, queue, TYPE, PAYLOAD, nominal_due_ms=due_ms, created_ms=now_ms())
    task_id = ids.mint(due_ms, random.randrange(SHARDS), secrets.randbits(64))
    return TaskRow(due_ms, namespace_id, task_id, body)


def message(queue: str, topic: str) -> Message:
    """The message that dispatches such a task."""
    namespace_id = secrets.token_bytes(16)
    target = Queue(namespace_id, NAMESPACE, queue, QueueKind.KAFKA, topic)
    return to_message(row(now_ms(), namespace_id, queue), target, EPOCH, now_ms())
