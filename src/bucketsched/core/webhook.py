"""The settings of a webhook queue: where its tasks are posted to, how they are signed, and how often it is tried."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from .errors import InvalidArgument
from .retry import DEFAULT_RETRY, RetryPolicy

SECRET_PREFIX = "whsec_"
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 24, 64
"""As Standard Webhooks has them."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where and how a queue's tasks are posted. Never shown with its secrets: `repr` leaves them out."""

    url: str
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """`whsec_<base64>` each; every one signs, so that a receiver can go from one to the next at its leisure."""
    timeout_ms: int = 15_000
    """Of one try, from looking up the name to the end of the answer."""
    concurrency: int = 16
    """Requests of the queue at once, in one process."""
    retry: RetryPolicy = DEFAULT_RETRY
    retried_statuses: tuple[int, ...] = (408, 425, 429)
    """Of 3xx and 4xx, those that are tried again; all others of them are final. 5xx always are tried again."""
    networks: tuple[str, ...] = ()
    """Networks (CIDR) that are not public and may be posted to all the same."""

    @property
    def host(self) -> str:
        """Host and port, as in a log: what stands behind them in a URL may be a secret."""
        parts = urlsplit(self.url)
        return f"{parts.hostname}:{port_of(parts)}"


def port_of(parts: SplitResult) -> int:
    """The port that a URL means."""
    if parts.port is not None:
        return parts.port
    return 443 if parts.scheme == "https" else 80


def key_of(secret: str) -> bytes:
    """The key that a secret stands for. Raises InvalidArgument, without the secret."""
    try:
        if not secret.startswith(SECRET_PREFIX):
            raise ValueError("no prefix")
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if not SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX:
        raise InvalidArgument(
            "webhook.secrets",
            f"must each be {SECRET_PREFIX} and the base64 of {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} random bytes",
        )
    return key
