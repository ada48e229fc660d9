"""The settings of a webhook queue, as the client gives and takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..core.retry import DEFAULT_RETRY
from ..core.webhook import Webhook as Settings

_DEFAULT = Settings("")


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where and how the tasks of a queue are posted. Lengths in seconds.

    `secrets`: `whsec_<base64>` each; every one signs. The server never shows them again: what it gives has
    `secret_count` only. `retried_statuses`: of 300 to 499, those that are tried again; all others of them are final.
    `networks`: those (CIDR) that are not public and may be posted to all the same, if the server allows it, too.
    """

    url: str
    secrets: Sequence[str] = field(default=(), repr=False)
    timeout: float = _DEFAULT.timeout_ms / 1000
    concurrency: int = _DEFAULT.concurrency
    tries_max: int = DEFAULT_RETRY.tries_max
    delay_first: float = DEFAULT_RETRY.delay_ms_first / 1000
    delay_max: float = DEFAULT_RETRY.delay_ms_max / 1000
    elapsed_max: float = DEFAULT_RETRY.elapsed_ms_max / 1000
    retried_statuses: Sequence[int] = _DEFAULT.retried_statuses
    networks: Sequence[str] = ()
    secret_count: int = 0
