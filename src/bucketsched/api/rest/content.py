"""What is said of a task, in a create and in an update: payload, times, priority."""

from __future__ import annotations

import base64

from ...core.durations import instant_ms, length_ms, seconds_ms
from ...core.errors import InvalidArgument
from ...core.task import Priority
from . import models
from .errors import JSON
from .json_text import Members

BASE64_FIELDS = {"payload": "payload_base64"}


def payload_of(body: models.Content, found: Members) -> tuple[bytes, str] | None:
    """The payload and its content type; None: there is none. Raises InvalidArgument."""
    given, written = body.content_type or "", found.get("payload")
    if body.payload_base64 is not None:
        if written is not None:
            raise InvalidArgument("payload_base64", "must not be given together with payload")
        try:
            return base64.b64decode(body.payload_base64, validate=True), given
        except ValueError:
            raise InvalidArgument("payload_base64", "must be base64, with its padding") from None
    if written is None:
        return None
    if given and not is_json_type(given):
        raise InvalidArgument("content_type", "must be one of JSON with payload; other bytes go into payload_base64")
    return written.text.encode(), given or JSON


def run_at_ms(body: models.Content) -> int | None:
    """Raises InvalidArgument."""
    return instant_or_none_ms(body.run_at, "run_at")


def delay_ms(body: models.Content) -> int | None:
    """Raises InvalidArgument."""
    return length_or_none_ms(body.delay, "delay")


def instant_or_none_ms(text: str | None, field: str) -> int | None:
    """Raises InvalidArgument."""
    return None if text is None else instant_ms(text, field)


def length_or_none_ms(length: str | float | None, field: str) -> int | None:
    """A length of time as text, or in seconds. Raises InvalidArgument."""
    if length is None:
        return None
    return length_ms(length, field) if isinstance(length, str) else seconds_ms(length, field)


def priority_of(body: models.Content) -> Priority | None:
    """None: it was not given."""
    return models.PRIORITIES[body.priority] if body.priority else None


def is_json_type(content_type: str) -> bool:
    """True for application/json, and for anything+json."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON or kind.endswith("+json")


def renamed(found: Members) -> dict[str, str] | None:
    """Names of fields that this request used another one for."""
    return BASE64_FIELDS if "payload_base64" in found else None
