"""What an answer to a webhook means: done, to be tried again, or final."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum

from .webhook import Webhook

RETRY_AFTER_MS_MAX = 366 * 86_400_000
"""What asks for more is taken for this: longer than any queue waits."""
_DIGITS_MAX = 12


class Verdict(Enum):
    """What follows from a try."""

    DONE = "done"
    AGAIN = "again"
    FINAL = "final"


class Trouble(Enum):
    """Why there is no answer."""

    NONE = "none"
    CONNECTION = "connection failed"
    TIMEOUT = "timed out"
    REFUSED = "address refused"
    PROTOCOL = "not HTTP"


@dataclass(frozen=True, slots=True)
class Answer:
    """How a try ended: with a `status`, or with a `trouble`, in words in `detail`. `retry_after`: the header."""

    status: int = 0
    retry_after: str = ""
    trouble: Trouble = Trouble.NONE
    detail: str = ""

    @property
    def host_failed(self) -> bool:
        """True if nothing was heard of the host, so that others would not hear anything either."""
        return self.trouble in (Trouble.CONNECTION, Trouble.TIMEOUT)

    def __str__(self) -> str:
        return f"status {self.status}" if self.status else f"{self.trouble.value}: {self.detail}".removesuffix(": ")


def verdict(answer: Answer, webhook: Webhook) -> Verdict:
    """2xx is done, 5xx and silence are tried again, as are the statuses that the queue names; all others are final."""
    if answer.trouble is Trouble.REFUSED:
        return Verdict.FINAL
    if answer.trouble is not Trouble.NONE:
        return Verdict.AGAIN
    if 200 <= answer.status < 300:
        return Verdict.DONE
    if answer.status >= 500 or answer.status in webhook.retried_statuses:
        return Verdict.AGAIN
    return Verdict.FINAL


def retry_after_ms(value: str, now_ms: int) -> int:
    """How long from now the header asks to wait: a number of seconds, or an HTTP date. 0 where it says nothing."""
    value = value.strip()
    if value.isascii() and value.isdigit():
        return min(int(value[:_DIGITS_MAX]) * 1000, RETRY_AFTER_MS_MAX)
    try:
        at = parsedate_to_datetime(value)
        if at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        return min(max(0, int(at.timestamp() * 1000) - now_ms), RETRY_AFTER_MS_MAX)
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0
