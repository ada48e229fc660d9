"""What holds for all tasks of a queue and may be changed while it is in use."""

from __future__ import annotations

from dataclasses import dataclass

from .notice_rule import NoticeRule
from .retry import RetryPolicy


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """Defaults: nothing is held back."""

    retry: RetryPolicy | None = None
    """Of tasks without one of their own; None: the default, or what the queue's webhook says."""
    notices: tuple[NoticeRule, ...] = ()
    """What is told of all its tasks, besides what they have told themselves."""


NO_POLICY = QueuePolicy()
