"""What the owner of a range answers to questions about its tasks."""

from __future__ import annotations

from enum import Enum


class HintAnswer(Enum):
    """What an owner says to a hint or an admission."""

    TAKEN = "taken"
    NOT_OWNER = "not owner"
    NOT_READY = "not ready"
    NO_ROW = "no row"


class CancelResult(Enum):
    """What became of a cancel."""

    CANCELLED = "cancelled"
    ALREADY_DISPATCHED = "already dispatched"
    ALREADY_CANCELLED = "already cancelled"
    ALREADY_FAILED = "already failed"
    ALREADY_SUCCEEDED = "already succeeded"
    ALREADY_EXPIRED = "already expired"
    NOT_FOUND = "not found"
