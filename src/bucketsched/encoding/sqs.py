"""The settings of an SQS queue as they are stored: JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from ..core.errors import Unavailable
from ..core.sqs import Sqs


def encode_sqs(sqs: Sqs | None) -> str:
    """The cell queues.settings. Empty: the queue is of another kind."""
    return "" if sqs is None else json.dumps(asdict(sqs))


def decode_sqs(text: str | None) -> Sqs | None:
    """Reverse of `encode_sqs`. Raises Unavailable where a newer version has written it."""
    if not text:
        return None
    try:
        return Sqs(**json.loads(text))
    except (ValueError, TypeError):
        raise Unavailable("a queue has SQS settings that this version does not know: upgrade it") from None
