"""A queue's webhook settings as they are stored: JSON, with the secrets, as signing needs them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from ..core.errors import Unavailable
from ..core.webhook import Webhook
from .queue_policy import retry_of

NONE = ""
"""Of a queue of another kind."""


def encode_webhook(webhook: Webhook | None) -> str:
    """The cell queues.webhook."""
    return NONE if webhook is None else json.dumps(asdict(webhook))


def decode_webhook(text: str | None) -> Webhook | None:
    """Reverse of `encode_webhook`. Raises Unavailable, without what is stored, where a newer version has written it."""
    if not text:
        return None
    try:
        found: dict[str, Any] = json.loads(text)
        found["retry"] = retry_of(found["retry"])
        lists = {name: tuple(value) for name, value in found.items() if isinstance(value, list)}
        return Webhook(**found | lists)
    except (ValueError, TypeError, KeyError):
        raise Unavailable("a queue has webhook settings that this version does not know: upgrade it") from None
