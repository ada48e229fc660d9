"""The settings of queues of kinds SQS and EMAIL as they are stored: JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from ..core.catalog import Queue, QueueKind
from ..core.errors import Unavailable
from ..core.mail import Email, Tls
from ..core.sqs import Sqs


def encode_settings(queue: Queue) -> str:
    """The cell queues.settings. Empty: the queue is of a kind without."""
    settings = queue.sqs or queue.email
    return "" if settings is None else json.dumps(asdict(settings))


def decode_settings(kind: QueueKind, text: str | None) -> tuple[Sqs | None, Email | None]:
    """Reverse of `encode_settings`. Raises Unavailable where a newer version has written it."""
    if not text or kind not in (QueueKind.SQS, QueueKind.EMAIL):
        return None, None
    try:
        found: dict[str, Any] = json.loads(text)
        if kind is QueueKind.SQS:
            return Sqs(**found), None
        found |= {"to": tuple(found["to"]), "tls": Tls(found["tls"])}
        return None, Email(**found)
    except (ValueError, TypeError, KeyError):
        raise Unavailable(f"a queue has {kind} settings that this version does not know: upgrade it") from None
