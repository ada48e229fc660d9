"""Keeps what goes to a sick topic apart, so that the lane's transactions don't fail for everybody."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core.task import TaskRow
from .owned_range import OwnedRange

PAUSE_S_MIN, PAUSE_S_MAX = 0.25, 5.0


@dataclass(slots=True)
class _Sick:
    until: float
    pause: float
    rows: list[tuple[TaskRow, OwnedRange]] = field(default_factory=list)


class TopicBreaker:
    """Per topic: after a failure nothing is sent there for a while, then it is tried again; the pause doubles.

    Times are seconds of the monotonic clock. The rows stay within their range's memory budget.
    """

    def __init__(self) -> None:
        self._sick: dict[str, _Sick] = {}

    def trip(self, topic: str, now: float) -> None:
        """The topic has failed."""
        sick = self._sick.get(topic)
        pause = min(2 * sick.pause, PAUSE_S_MAX) if sick else PAUSE_S_MIN
        self._sick[topic] = _Sick(now + pause, pause, sick.rows if sick else [])

    def holds(self, topic: str, row: TaskRow, owned: OwnedRange, now: float) -> bool:
        """True if the topic is being left alone: then the row is kept here."""
        sick = self._sick.get(topic)
        if sick is None or now >= sick.until:
            return False
        sick.rows.append((row, owned))
        return True

    def healed(self, topics: set[str]) -> None:
        """A transaction with these topics was committed."""
        for topic in topics & self._sick.keys():
            if not self._sick[topic].rows:
                del self._sick[topic]

    def release(self, now: float) -> list[tuple[TaskRow, OwnedRange]]:
        """Rows of topics that are to be tried again."""
        rows: list[tuple[TaskRow, OwnedRange]] = []
        for sick in self._sick.values():
            if now >= sick.until:
                rows += sick.rows
                sick.rows = []
        return rows

    def next_release(self) -> float | None:
        """When there will be something to release; None: nothing is kept."""
        return min((sick.until for sick in self._sick.values() if sick.rows), default=None)
