"""Notices of what became of tasks: tasks themselves, so that they are as durable as what they tell of.

A rule names the events that are told and the queue that they go to: of workers, a Kafka topic (a dead-letter topic,
say), a webhook, e-mail. The notice is created by the record that journals the event, and never by itself told of.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from . import task_id as ids
from .execution import Attempt
from .message import rfc3339
from .notice_rule import NoticeEvent, NoticeRule
from .task import Priority, TaskBody, TaskRow

TYPE_PREFIX = "bucketsched."
"""Of the types of notices."""
CONTENT_TYPE = "application/json"
PAYLOAD_TEXT_CHARACTERS_MAX = 2_000
"""Of an error's trace in a notice; the execution log has more of it."""


def is_notice(body: TaskBody) -> bool:
    """True for a task that tells of another one."""
    return body.type.startswith(TYPE_PREFIX)


def notices(
    row: TaskRow,
    rules: Iterable[NoticeRule],
    event: NoticeEvent,
    now_ms: int,
    random_bits: Callable[[int], int],
    attempt: Attempt | None = None,
    more: Mapping[str, Any] | None = None,
) -> tuple[TaskRow, ...]:
    """The rows that tell of it, due now, in the shard of the task, one for each queue that a rule names."""
    queues = dict.fromkeys(rule.queue for rule in rules if event in rule.events)
    if not queues or is_notice(row.body):
        return ()
    payload = json.dumps(_told(row, event, now_ms, attempt) | dict(more or {}), ensure_ascii=False).encode()
    shard = ids.shard_in(row.task_id)
    return tuple(
        _notice(row, event, queue, payload, ids.mint(now_ms, shard, random_bits(ids.RANDOM_BITS)), now_ms)
        for queue in queues
    )


def _notice(row: TaskRow, event: NoticeEvent, queue: str, payload: bytes, task_id: bytes, now_ms: int) -> TaskRow:
    body = TaskBody(
        row.body.namespace,
        queue,
        TYPE_PREFIX + event.value.lower().replace("_", "-"),
        payload,
        {"task_id": ids.text(row.task_id), "queue": row.body.queue, "type": row.body.type},
        Priority.HIGH,
        now_ms,
        now_ms,
        CONTENT_TYPE,
    )
    return TaskRow(now_ms, row.namespace_id, task_id, body)


def _told(row: TaskRow, event: NoticeEvent, now_ms: int, attempt: Attempt | None) -> dict[str, Any]:
    body = row.body
    told: dict[str, Any] = {
        "event": event.value,
        "time": rfc3339(now_ms),
        "task_id": ids.text(row.task_id),
        "namespace": body.namespace,
        "queue": body.queue,
        "type": body.type,
        "metadata": body.metadata,
        "generation": row.generation,
        "attempt": row.attempt,
        "due_at": rfc3339(body.nominal_due_ms),
    }
    if attempt is None:
        return told
    if attempt.error_type or attempt.error_message:
        told["error"] = {
            "type": attempt.error_type,
            "message": attempt.error_message,
            "trace": attempt.error_trace[-PAYLOAD_TEXT_CHARACTERS_MAX:],
        }
    told |= {"worker": attempt.worker, "ended_at": rfc3339(attempt.ended_ms)}
    if attempt.retry_ms:
        told["next_attempt_at"] = rfc3339(attempt.retry_ms)
    return told
