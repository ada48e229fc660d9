"""What holds for all tasks of a queue and may be changed while it is in use."""

from __future__ import annotations

from dataclasses import dataclass

from .retry import RetryPolicy


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """Defaults: nothing is held back."""

    retry: RetryPolicy | None = None
    """Of tasks without one of their own; None: the default, or what the queue's webhook says."""


NO_POLICY = QueuePolicy()
