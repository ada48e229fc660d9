"""What is mailed: the payload as text, or attached, under a name that is the same for every attempt at a task."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Any

from .mail import Email, is_address
from .mail_subject import subject_of
from .message import TaskEvent
from .notices import TYPE_PREFIX

ATTACHED = "The payload is attached.\n"
_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_SUBTYPE = re.compile(r"([a-z]+)/([a-z0-9.+-]+)")


@dataclass(frozen=True, slots=True)
class Mail:
    """One mail. `content`: headers and body as they go over the wire. No recipients: the task names none."""

    sender: str
    recipients: tuple[str, ...]
    content: bytes


def mail_of(event: TaskEvent, email: Email, now_ms: int) -> Mail:
    """The mail that delivers a task."""
    recipients = recipients_of(event, email)
    found = _json_of(event)
    message = EmailMessage(policy=SMTP)
    message["From"] = email.sender
    message["To"] = ", ".join(recipients)
    message["Subject"] = subject_of(email.subject, _values(event, found))
    message["Date"] = format_datetime(datetime.fromtimestamp(now_ms / 1000, UTC))
    message["Message-ID"] = f"<{event.task_id}.{event.generation}@{email.sender.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"
    message["X-Bucketsched-Attempt"] = f"{event.task_id}/{event.generation}/{event.attempt}"
    _put_payload(message, event, found)
    return Mail(email.sender, recipients, message.as_bytes())


def recipients_of(event: TaskEvent, email: Email) -> tuple[str, ...]:
    """Whom the task names, else whom the queue does. Empty: what the task names is no address, or nobody is named."""
    named = event.metadata.get(email.to_key, "") if email.to_key else ""
    if not named:
        return email.to
    return (named,) if is_address(named) else ()


def _values(event: TaskEvent, found: Any) -> dict[str, str]:
    """What a subject may have in it. Of a notice: what it says of the task that it tells of."""
    values = {"type": event.type, "task_id": event.task_id, "queue": event.queue, "event": ""}
    if event.type.startswith(TYPE_PREFIX) and isinstance(found, dict):
        values |= {name: str(found[name]) for name in values if isinstance(found.get(name), str)}
    return values | {"namespace": event.namespace}


def _json_of(event: TaskEvent) -> Any:
    """The payload, where it is JSON and says so; else None."""
    if "json" not in event.content_type:
        return None
    try:
        return json.loads(event.payload)
    except (ValueError, RecursionError):
        return None


def _put_payload(message: EmailMessage, event: TaskEvent, found: Any) -> None:
    text = _text_of(event.payload) if found is None else json.dumps(found, ensure_ascii=False, indent=2) + "\n"
    if text is not None:
        message.set_content(text)
        return
    message.set_content(ATTACHED)
    matched = _SUBTYPE.match(event.content_type.lower())
    main, sub = matched.groups() if matched else ("application", "octet-stream")
    if main in ("text", "message", "multipart"):  # it says that it is text, and is not
        main, sub = "application", "octet-stream"
    message.add_attachment(event.payload, maintype=main, subtype=sub, filename="payload")


def _text_of(payload: bytes) -> str | None:
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    return None if _NOT_TEXT.search(text) else text
