"""Rules of notices, as the client gives and takes them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from ..core.notice_rule import NoticeEvent


@dataclass(frozen=True, slots=True)
class NoticeRule:
    """Which events of a task are told, and the queue, in the same namespace, that gets a task for each of them.

    Its type is `bucketsched.` and the event's name, as `bucketsched.dead-lettered`; its payload is JSON. `late_after`,
    in seconds or a timedelta: a dispatch later than that after the due time is LATE; None: 1 s. A queue of kind KAFKA
    has DEAD_LETTERED, EXPIRED and LATE alone, as nobody says how its tasks end.
    """

    events: Collection[NoticeEvent]
    queue: str
    late_after: float | timedelta | None = None
