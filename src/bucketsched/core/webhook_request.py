"""What is posted: the payload as it was given, what a message says as headers, and Standard Webhooks' signatures."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from .message import METADATA_PREFIX, TaskEvent, rfc3339
from .webhook import key_of

_PLAIN = frozenset(range(0x21, 0x7F)) - {ord('"'), ord("%")}


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """One POST. Header values are printable ASCII."""

    url: str
    headers: dict[str, str]
    body: bytes


def webhook_id(event: TaskEvent) -> str:
    """`<task id>/<generation>`: the same for every attempt at a task, whoever makes it."""
    return f"{event.task_id}/{event.generation}"


def signature(secret: str, webhook_id: str, timestamp_s: int, body: bytes) -> str:
    """`v1,<base64 of HMAC-SHA256 of id.timestamp.body>`."""
    content = b"%b.%d.%b" % (webhook_id.encode(), timestamp_s, body)
    return "v1," + base64.b64encode(hmac.digest(key_of(secret), content, sha256)).decode()


def request_of(event: TaskEvent, url: str, secrets: Sequence[str], now_ms: int) -> WebhookRequest:
    """The request that delivers a message now."""
    name = webhook_id(event)
    headers = {
        "content-type": event.content_type,
        "idempotency-key": name,
        "webhook-id": name,
        "webhook-timestamp": str(now_ms // 1000),
        **{name: percent_encoded(value) for name, value in _event_headers(event).items()},
    }
    if secrets:
        headers["webhook-signature"] = " ".join(
            signature(secret, name, now_ms // 1000, event.payload) for secret in secrets
        )
    return WebhookRequest(url, headers, event.payload)


def _event_headers(event: TaskEvent) -> dict[str, str]:
    """CloudEvents' binary mode over HTTP: as in Kafka, with `ce-` where that has `ce_`."""
    headers = {
        "ce-specversion": "1.0",
        "ce-source": f"/bucketsched/{event.namespace}/{event.queue}",
        "ce-type": event.type,
        "ce-id": f"{event.task_id}/{event.generation}/{event.attempt}",
        "ce-taskid": event.task_id,
        "ce-generation": str(event.generation),
        "ce-attempt": str(event.attempt),
        "ce-namespace": event.namespace,
        "ce-queue": event.queue,
        "ce-priority": str(int(event.priority)),
        "ce-due": str(event.due_ms),
        "ce-time": rfc3339(event.dispatched_ms),
        "ce-dispatched": str(event.dispatched_ms),
        "ce-epoch": str(event.epoch),
    }
    if event.late_reason:
        headers |= {"ce-latems": str(event.late_ms), "ce-latereason": event.late_reason}
    return headers | {METADATA_PREFIX + key: value for key, value in event.metadata.items()}


def percent_encoded(text: str) -> str:
    """As CloudEvents has it for HTTP: space, double quote, percent and what is not printable ASCII, as UTF-8 bytes."""
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in text.encode())
