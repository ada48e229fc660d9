"""A queue's policy as it is stored: JSON, without what is as by default."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

from ..core.errors import Unavailable
from ..core.notice_rule import NoticeEvent, NoticeRule
from ..core.queue_policy import NO_POLICY, QueuePolicy
from ..core.retry import RetryPolicy


def retry_of(found: dict[str, Any]) -> RetryPolicy:
    """Reverse of `dataclasses.asdict`, through JSON. Raises TypeError where there are other settings."""
    lists: dict[str, Any] = {name: tuple(value) for name, value in found.items() if isinstance(value, list)}
    return RetryPolicy(**found | lists)


def encode_policy(policy: QueuePolicy) -> str:
    """The cell queues.policy."""
    set_ = {f.name for f in fields(policy) if getattr(policy, f.name) != f.default}
    return json.dumps({name: value for name, value in asdict(policy).items() if name in set_}) if set_ else ""


def decode_policy(text: str | None) -> QueuePolicy:
    """Reverse of `encode_policy`. Raises Unavailable where a newer version has written it."""
    if not text:
        return NO_POLICY
    try:
        found: dict[str, Any] = json.loads(text)
        if "retry" in found:
            found["retry"] = retry_of(found["retry"])
        found["notices"] = tuple(
            NoticeRule(tuple(NoticeEvent(event) for event in rule["events"]), rule["queue"], rule["late_ms"])
            for rule in found.get("notices", ())
        )
        return QueuePolicy(**found)
    except (ValueError, TypeError, AttributeError, KeyError):
        raise Unavailable("a queue has a policy that this version does not know: upgrade it") from None
