"""What is sent to SQS: the payload as text where SQS takes it so, and what a message says as attributes.

SQS allows ten attributes, none of them empty: those that consumers need one by one, and all metadata in one.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256

from .message import TaskEvent
from .sqs import Sqs, is_group

MESSAGE_BYTES_MAX = 1024 * 1024
"""What SQS takes at most: body and attributes. A queue may be set to take less."""
BATCH_MESSAGES_MAX = 10
BATCH_BYTES_MAX = 256 * 1024
"""Of a request with several messages: what every server takes. A larger message goes alone."""
NO_BODY = "-"
"""SQS takes no empty body."""
_NOT_IN_SQS = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ATTRIBUTE_TYPE = "String"


@dataclass(frozen=True, slots=True)
class SqsMessage:
    """One message. `group`, `deduplication`: empty but for FIFO queues."""

    body: str
    attributes: dict[str, str]
    group: str = ""
    deduplication: str = ""

    @property
    def size(self) -> int:
        """Bytes as SQS counts them."""
        return len(self.body.encode()) + sum(
            len(name) + len(_ATTRIBUTE_TYPE) + len(value.encode()) for name, value in self.attributes.items()
        )


def message_of(event: TaskEvent, sqs: Sqs) -> SqsMessage:
    """The message that delivers a task to a queue."""
    body, encoding = _body_of(event.payload)
    name = f"{event.task_id}/{event.generation}"
    attributes = {
        "ce_id": f"{name}/{event.attempt}",
        "ce_type": _clean(event.type),
        "ce_source": f"/bucketsched/{event.namespace}/{event.queue}",
        "ce_due": str(event.due_ms),
        "ce_dispatched": str(event.dispatched_ms),
        "ce_attempt": str(event.attempt),
        "idempotency-key": name,
        "content-type": event.content_type,
        "content-encoding": encoding,
        "bs-metadata": json.dumps(event.metadata) if event.metadata else "",
    }
    present = {key: value for key, value in attributes.items() if value}
    if not sqs.fifo:
        return SqsMessage(body, present)
    return SqsMessage(body, present, group_of(event, sqs), name)


def group_of(event: TaskEvent, sqs: Sqs) -> str:
    """The group whose order a task keeps. What SQS does not take for one is named by its hash."""
    group = event.metadata.get(sqs.group_key, "") or sqs.group or event.type
    return group if is_group(group) else sha256(group.encode()).hexdigest()


def batches(messages: Iterable[tuple[int, SqsMessage]]) -> Iterator[list[tuple[int, SqsMessage]]]:
    """Messages, each with a number of its own, in requests that SQS takes, in the same order."""
    batch: list[tuple[int, SqsMessage]] = []
    size = 0
    for number, message in messages:
        if batch and (len(batch) == BATCH_MESSAGES_MAX or size + message.size > BATCH_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append((number, message))
        size += message.size
    if batch:
        yield batch


def _body_of(payload: bytes) -> tuple[str, str]:
    """The body, and how it is encoded: "" for text as it is."""
    if not payload:
        return NO_BODY, "empty"
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = ""
    if text and not _NOT_IN_SQS.search(text):
        return text, ""
    return base64.b64encode(payload).decode(), "base64"


def _clean(text: str) -> str:
    return _NOT_IN_SQS.sub("\ufffd", text)
