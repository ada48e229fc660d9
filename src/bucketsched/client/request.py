"""Create requests from what the caller gives: due times resolved, ids minted, text checked."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from ..core import task_id as ids
from ..core.durations import in_words, timestamp_ms
from ..core.errors import InvalidArgument
from ..core.task import Priority
from ..stubs.v1 import task_pb2 as pb
from .fields import check_text, instant_message, length_message
from .model import EPOCH, NewTask, ServerInfo
from .notice_message import to_messages
from .retry_message import to_message

NS_PER_MS = 1_000_000
_MICROSECOND = timedelta(microseconds=1)
_TO_PRIORITY: dict[Priority, pb.Priority.ValueType] = {
    Priority.HIGH: pb.PRIORITY_HIGH,
    Priority.NORMAL: pb.PRIORITY_NORMAL,
    Priority.LOW: pb.PRIORITY_LOW,
}
_DELAY_S_MAX = 1e12
_ENTROPY_BYTES = 10
_OVERHEAD_BYTES = 200


class CreateRequest(NamedTuple):
    """A request, and about how many bytes it takes."""

    message: pb.CreateTaskRequest
    size: int


def build(task: NewTask, namespace: str, queue: str, now_ns: int, server: ServerInfo) -> CreateRequest:
    """The request for a task. Raises InvalidArgument with the name of the parameter at fault.

    A delay is resolved here, once: sent again, the request is still the same task at the same time.
    """
    due_ms, task_id = _place(task, now_ns, server)
    metadata = task.metadata or {}
    payload = _to_bytes(task.payload)
    queue = task.queue if task.queue is not None else queue
    check_text("type", task.type)
    check_text("queue", queue)
    check_text("content_type", task.content_type)
    check_text("idempotency_key", task.idempotency_key)
    _check_metadata(metadata)
    message = pb.CreateTaskRequest(
        namespace=namespace,
        queue=queue,
        type=task.type,
        payload=payload,
        metadata=metadata,
        priority=_to_priority(task.priority),
        task_id=task_id,
        content_type=task.content_type,
        idempotency_key=task.idempotency_key,
        retry=to_message(task.retry),
        notices=to_messages(task.notices),
        **_expiry(task),
    )
    if task.idempotency_key and task.due is None and task.task_id is None:
        message.delay.CopyFrom(_duration(task.delay, server.delay_ms_max))  # the first create with this key resolves it
    else:
        message.due_time.CopyFrom(to_timestamp(due_ms))
    size = (
        len(payload)
        + _OVERHEAD_BYTES
        + message.retry.ByteSize()
        + sum(rule.ByteSize() + 4 for rule in message.notices)
        + 3 * sum(len(key) + len(value) + 4 for key, value in metadata.items())
    )
    return CreateRequest(message, size)


def build_update(
    namespace: str,
    task_id: str,
    payload: bytes | None,
    metadata: Mapping[str, str] | None,
    priority: Priority | None,
    content_type: str | None,
    due_ms: int | None,
    expected_generation: int | None,
    start_by: datetime | None,
) -> pb.UpdateTaskRequest:
    """The request for an update; what is None stays as it is. Raises InvalidArgument."""
    given: dict[str, object] = {
        "payload": payload,
        "metadata": metadata,
        "priority": priority,
        "content_type": content_type,
    }
    given |= {"due_time": due_ms, "start_by": start_by}
    mask = [field for field, value in given.items() if value is not None]
    contents = b"" if payload is None else _to_bytes(payload)
    if content_type is not None:
        check_text("content_type", content_type)
    _check_metadata(metadata or {})
    generation = expected_generation
    if generation is not None and not (isinstance(generation, int) and 0 <= generation < 2**31):
        raise InvalidArgument("expected_generation", f"must be a number from 0 on, is {generation!r}")
    return pb.UpdateTaskRequest(
        namespace=namespace,
        task_id=task_id,
        update_mask=FieldMask(paths=mask),
        payload=contents,
        metadata=metadata or {},
        priority=pb.PRIORITY_UNSPECIFIED if priority is None else _to_priority(priority),
        content_type=content_type or "",
        due_time=None if due_ms is None else to_timestamp(due_ms),
        expected_generation=generation,
        start_by=instant_message("start_by", start_by),
    )


def mint(due_ms: int, now_ns: int, shards: int) -> str:
    """A fresh id for a task due then, or now if that is past; in a random shard."""
    bits = int.from_bytes(os.urandom(_ENTROPY_BYTES), "big")
    home_ms = max(due_ms, now_ns // NS_PER_MS)
    return ids.text(ids.mint(home_ms, (bits >> ids.RANDOM_BITS) % shards, bits))


def due_ms_of(
    delay: float | timedelta | None, due: datetime | None, now_ns: int, delay_ms_max: int
) -> int:  # fmt: skip
    """When a task is due, in whole milliseconds, rounded up. Raises InvalidArgument."""
    if delay is not None and due is not None:
        raise InvalidArgument("delay", "must not be given together with due")
    if due is not None:
        return _instant_ms(due, now_ns, delay_ms_max)
    return _up_to_ms(now_ns + (0 if delay is None else _delay_ns(delay, delay_ms_max)))


def to_timestamp(ms: int) -> Timestamp:
    """An instant as protobuf has it."""
    seconds, rest = divmod(ms, 1000)
    return Timestamp(seconds=seconds, nanos=rest * NS_PER_MS)


def from_timestamp(value: Timestamp) -> int:
    """Reverse of `to_timestamp`."""
    return value.seconds * 1000 + value.nanos // NS_PER_MS


def _place(task: NewTask, now_ns: int, server: ServerInfo) -> tuple[int, str]:
    """Due time and id."""
    if task.task_id is None:
        due_ms = due_ms_of(task.delay, task.due, now_ns, server.delay_ms_max)
        return due_ms, mint(due_ms, now_ns, server.shards)
    home_ms = ids.home_of(ids.parse(task.task_id, server.shards)).due_ms
    if task.delay is not None:
        raise InvalidArgument("delay", "must not be given together with task_id, which says when the task is due")
    return home_ms if task.due is None else _instant_ms(task.due, now_ns, server.delay_ms_max), task.task_id


def _expiry(task: NewTask) -> dict[str, Any]:
    """Fields of the request."""
    if task.start_by is None:
        return {"expire_after": length_message("expire_after", task.expire_after)}
    if task.expire_after is not None:
        raise InvalidArgument("expire_after", "must not be given together with start_by")
    return {"start_by": instant_message("start_by", task.start_by)}


def _to_bytes(payload: bytes) -> bytes:
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidArgument("payload", f"must be bytes, is {type(payload).__name__}")
    return bytes(payload)


def _check_metadata(metadata: Mapping[str, str]) -> None:
    for key, value in metadata.items():
        check_text("metadata", key)
        check_text("metadata", value)


def _to_priority(priority: Priority) -> pb.Priority.ValueType:
    try:
        return _TO_PRIORITY[priority]
    except (KeyError, TypeError) as error:
        raise InvalidArgument("priority", "must be HIGH, NORMAL or LOW") from error


def _delay_ns(delay: float | timedelta, delay_ms_max: int) -> int:
    if isinstance(delay, timedelta):
        delay_ns = delay // _MICROSECOND * 1_000
    elif isinstance(delay, bool) or not isinstance(delay, int | float):
        raise InvalidArgument("delay", f"must be seconds or a timedelta, is {type(delay).__name__}")
    elif not math.isfinite(delay):
        raise InvalidArgument("delay", f"must be a finite number of seconds, is {delay}")
    else:
        delay_ns = math.ceil(min(delay, _DELAY_S_MAX) * 1_000_000_000)
    if delay_ns < 0:
        raise InvalidArgument("delay", "must not be negative")
    if delay_ns > delay_ms_max * NS_PER_MS:
        raise InvalidArgument("delay", f"must be at most {in_words(delay_ms_max)}")
    return delay_ns


def _duration(delay: float | timedelta | None, delay_ms_max: int) -> Duration:
    ms = _up_to_ms(0 if delay is None else _delay_ns(delay, delay_ms_max))
    return Duration(seconds=ms // 1000, nanos=ms % 1000 * NS_PER_MS)


def _instant_ms(due: datetime, now_ns: int, delay_ms_max: int) -> int:
    if not isinstance(due, datetime):
        raise InvalidArgument("due", f"must be a datetime, is {type(due).__name__}")
    if due.utcoffset() is None:
        raise InvalidArgument("due", "must have a time zone")
    due_ms = _up_to_ms((due - EPOCH) // _MICROSECOND * 1_000)
    if due_ms > now_ns // NS_PER_MS + delay_ms_max:
        raise InvalidArgument("due", f"must be at most {in_words(delay_ms_max)} from now")
    return timestamp_ms(due_ms // 1000, due_ms % 1000 * NS_PER_MS, "due")


def _up_to_ms(ns: int) -> int:
    return -(-ns // NS_PER_MS)
