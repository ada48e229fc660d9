"""Which events of tasks are told, and where."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

RULES_MAX = 10
"""Of a task, and of a queue."""


class NoticeEvent(StrEnum):
    """What may be told of a task."""

    SUCCEEDED = "SUCCEEDED"
    ATTEMPT_FAILED = "ATTEMPT_FAILED"
    """An attempt has failed, or timed out, and another one follows."""
    DEAD_LETTERED = "DEAD_LETTERED"
    """It has failed for good."""
    EXPIRED = "EXPIRED"
    LATE = "LATE"
    """It was dispatched later than the rule allows."""


@dataclass(frozen=True, slots=True)
class NoticeRule:
    """Which events are told, and where. `late_ms`: a dispatch by more than that after its due time is LATE."""

    events: tuple[NoticeEvent, ...]
    queue: str
    late_ms: int = 1_000


def wants(rules: Iterable[NoticeRule], event: NoticeEvent) -> bool:
    """True if one of the rules has this event told."""
    return any(event in rule.events for rule in rules)
