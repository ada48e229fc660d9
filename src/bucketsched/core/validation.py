"""What a task, a queue and a namespace may be: one validator for every way in (gRPC, REST, CLI).

Metadata travels as Kafka headers and as HTTP headers, so its keys are HTTP tokens that differ by more than case, and
its values have no control characters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from . import task_id as ids
from .catalog import DEFAULT_NAMESPACE, DEFAULT_QUEUE
from .durations import DAY_MS, in_words
from .errors import InvalidArgument
from .notice_rule import NoticeRule
from .retry import RetryPolicy
from .retry_check import check_retry
from .task import Priority

TYPE_LENGTH_MAX = 200
CONTENT_TYPE_LENGTH_MAX = 200
KEY_LENGTH_MAX = 200
TOPIC_LENGTH_MAX = 240
"""Kafka's limit is 249; ".normal" and the like must fit behind."""
PARTITIONS_MAX = 1_000
REPLICATION_MAX = 9
ID_AHEAD_MS_MAX = 60_000
"""How far the clock of a client that mints ids may be ahead."""
ID_DRIFT_MS_MAX = 600_000
"""How far an id may be from now + delay: the client's clock error, and the age of a request that is sent again."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]+")
_KEY = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_UNCLEAN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_CONTENT_TYPE = re.compile(rf'{_TOKEN}/{_TOKEN}(?: *; *{_TOKEN}=(?:{_TOKEN}|"[ !#-\[\]-~]*"))*')


@dataclass(frozen=True, slots=True)
class Limits:
    """What this service accepts. Sizes in bytes of UTF-8."""

    payload_bytes_max: int = 64 * 1024
    metadata_entries_max: int = 32
    metadata_bytes_max: int = 8 * 1024
    delay_ms_max: int = 400 * DAY_MS
    batch_tasks_max: int = 1_000
    create_timeout_ms: int = 10_000


@dataclass(slots=True)
class NewTask:
    """A task as it was asked for. At most one of `due_ms` and `delay_ms`; neither: now. `task_id` "": to be minted."""

    type: str
    namespace: str = DEFAULT_NAMESPACE
    queue: str = DEFAULT_QUEUE
    payload: bytes = b""
    metadata: dict[str, str] = field(default_factory=dict)
    due_ms: int | None = None
    delay_ms: int | None = None
    priority: Priority = Priority.NORMAL
    task_id: str = ""
    content_type: str = ""
    idempotency_key: str = ""
    retry: RetryPolicy | None = None
    start_by_ms: int | None = None
    expire_after_ms: int | None = None
    """After it is due. At most one of this and `start_by_ms`."""
    notices: tuple[NoticeRule, ...] = ()
    """Checked by `notice_check`."""


class Placement(NamedTuple):
    """Where a valid task goes. `due_ms` is its row's; `task_id` is None where the service is to mint it."""

    due_ms: int
    nominal_due_ms: int
    task_id: bytes | None
    expires_ms: int = 0


def validate(task: NewTask, limits: Limits, now_ms: int, shards: int, retention_ms: int) -> Placement:
    """Where the task goes. Raises InvalidArgument with the field at fault and what is allowed."""
    check_name(task.namespace, "namespace")
    check_name(task.queue, "queue")
    _check_type(task.type)
    check_payload(task.payload, limits)
    if task.metadata:
        check_metadata(task.metadata, limits)
    if task.content_type:
        check_content_type(task.content_type)
    if task.idempotency_key:
        check_idempotency_key(task.idempotency_key)
    if task.retry is not None:
        check_retry(task.retry, "retry")
    asked_ms = resolve_due_ms(task.due_ms, task.delay_ms, limits, now_ms)
    nominal_due_ms = now_ms if asked_ms is None else asked_ms
    if task.task_id:
        place = _placed_by_id(task, nominal_due_ms, now_ms, shards, retention_ms)
    else:
        place = Placement(max(nominal_due_ms, now_ms), nominal_due_ms, None)
    _check_expiry(task, place.nominal_due_ms, limits)
    return place._replace(expires_ms=expiry_ms(task, place.nominal_due_ms))


def expiry_ms(task: NewTask, nominal_due_ms: int) -> int:
    """Until when a valid task that is due then may be started; 0: it never expires."""
    if task.expire_after_ms is not None:
        return max(1, nominal_due_ms + task.expire_after_ms)
    return 0 if task.start_by_ms is None else max(1, task.start_by_ms)


def _check_expiry(task: NewTask, nominal_due_ms: int, limits: Limits) -> None:
    """A task of an idempotency key whose due time is relative may be sent again when `start_by` is past: what counts
    then is the due time of the first create."""
    if task.expire_after_ms is not None:
        if task.start_by_ms is not None:
            raise InvalidArgument("expire_after", "must not be given together with start_by")
        if not 0 < task.expire_after_ms <= limits.delay_ms_max:
            raise InvalidArgument("expire_after", f"must be more than 0 and at most {in_words(limits.delay_ms_max)}")
    if task.start_by_ms is None:
        return
    if task.start_by_ms > nominal_due_ms + limits.delay_ms_max:
        raise InvalidArgument("start_by", f"must be at most {in_words(limits.delay_ms_max)} after the task is due")
    if task.start_by_ms < nominal_due_ms and not (task.idempotency_key and task.due_ms is None):
        raise InvalidArgument("start_by", "must not be before the task is due")


def check_name(name: str, field: str) -> None:
    """A namespace's or queue's name. Raises InvalidArgument."""
    if not _NAME.fullmatch(name):
        raise InvalidArgument(field, "must be 1 to 100 of A-Z a-z 0-9 . _ - and begin with a letter or digit")


def check_topic(topic: str, field: str = "topic") -> None:
    """The name of a Kafka topic that is not Kafka's or bucketsched's own. Raises InvalidArgument."""
    if len(topic) > TOPIC_LENGTH_MAX or not _TOPIC.fullmatch(topic) or not topic.strip("."):
        raise InvalidArgument(field, f"must be 1 to {TOPIC_LENGTH_MAX} of A-Z a-z 0-9 . _ - and not only dots")
    if topic.startswith(("__", "bucketsched-")):
        raise InvalidArgument(field, 'must not begin with "__" or "bucketsched-": those are internal topics')


def check_range(value: int, least: int, most: int, field: str) -> None:
    """A whole number within bounds. Raises InvalidArgument."""
    if not least <= value <= most:
        raise InvalidArgument(field, f"must be {least} to {most}, is {value}")


def _check_type(value: str) -> None:
    if not 1 <= len(value) <= TYPE_LENGTH_MAX or _UNCLEAN.search(value):
        raise InvalidArgument("type", f"must be 1 to {TYPE_LENGTH_MAX} characters, none of them a control character")


def check_payload(payload: bytes, limits: Limits) -> None:
    """Raises InvalidArgument."""
    if len(payload) > limits.payload_bytes_max:
        raise InvalidArgument("payload", f"must be at most {limits.payload_bytes_max} bytes, has {len(payload)}")


def check_metadata(metadata: dict[str, str], limits: Limits) -> None:
    """Metadata that is not empty. Raises InvalidArgument."""
    if len(metadata) > limits.metadata_entries_max:
        raise InvalidArgument("metadata", f"must have at most {limits.metadata_entries_max} entries")
    size = 0
    for key, value in metadata.items():
        if not _KEY.fullmatch(key):
            raise InvalidArgument("metadata", "must have keys of 1 to 100 of A-Z a-z 0-9 ! # $ % & ' * + - . ^ _ ` | ~")
        if _UNCLEAN.search(value):
            raise InvalidArgument("metadata", f"must have values without control characters; {key!r} has one")
        size += len(key) + (len(value) if value.isascii() else len(value.encode()))
    if size > limits.metadata_bytes_max:
        raise InvalidArgument("metadata", f"must be at most {limits.metadata_bytes_max} bytes in all, has {size}")
    if len({key.lower() for key in metadata}) != len(metadata):
        raise InvalidArgument("metadata", "must have keys that differ by more than upper and lower case")


def check_idempotency_key(value: str) -> None:
    """A caller's name for a create. Raises InvalidArgument."""
    if len(value) > KEY_LENGTH_MAX or _UNCLEAN.search(value):
        raise InvalidArgument(
            "idempotency_key", f"must be at most {KEY_LENGTH_MAX} characters, none of them a control character"
        )


def check_content_type(value: str) -> None:
    """A media type. Raises InvalidArgument."""
    if len(value) > CONTENT_TYPE_LENGTH_MAX or not _CONTENT_TYPE.fullmatch(value):
        raise InvalidArgument(
            "content_type", f"must be a media type such as application/json, at most {CONTENT_TYPE_LENGTH_MAX} long"
        )


def resolve_due_ms(due_ms: int | None, delay_ms: int | None, limits: Limits, now_ms: int) -> int | None:
    """When a task is asked to be due; None: nothing was said of it. Raises InvalidArgument."""
    if delay_ms is not None:
        if due_ms is not None:
            raise InvalidArgument("delay", "must not be given together with due_time")
        if delay_ms < 0:
            raise InvalidArgument("delay", "must not be negative")
        if delay_ms > limits.delay_ms_max:
            raise InvalidArgument("delay", f"must be at most {in_words(limits.delay_ms_max)}")
        return now_ms + delay_ms
    if due_ms is not None and due_ms > now_ms + limits.delay_ms_max:
        raise InvalidArgument("due_time", f"must be at most {in_words(limits.delay_ms_max)} from now")
    return due_ms


def _placed_by_id(task: NewTask, nominal_due_ms: int, now_ms: int, shards: int, retention_ms: int) -> Placement:
    """The place that a client's id names: it alone decides, so it has to agree with the due time asked for."""
    raw = ids.parse(task.task_id, shards)
    home_ms = ids.home_of(raw).due_ms
    if home_ms + retention_ms - min(DAY_MS, retention_ms // 2) < now_ms:
        raise InvalidArgument("task_id", "is that of a task whose record has expired: send the task with a new id")
    if task.due_ms is None:
        if abs(home_ms - nominal_due_ms) > ID_DRIFT_MS_MAX:
            raise InvalidArgument("task_id", f"must be due within {in_words(ID_DRIFT_MS_MAX)} of now + delay")
        return Placement(home_ms, home_ms, raw)
    minted_late = nominal_due_ms < home_ms <= now_ms + ID_AHEAD_MS_MAX
    if home_ms != nominal_due_ms and not minted_late:
        raise InvalidArgument("task_id", "must be minted for exactly due_time, or for the present if that is past")
    return Placement(home_ms, nominal_due_ms, raw)
