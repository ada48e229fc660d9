"""Whose time is right: what more than half of the clocks say, with as many of them wrong as may be (after Marzullo).

Every clock is an interval of offsets (nanoseconds to be added to a common time scale) within which the true one lies if
that clock is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WITNESS_VOTES, OWN_VOTES = 2, 1
"""Another machine counts for more than the one that is in question: one's own clock only decides where others don't."""


@dataclass(frozen=True, slots=True)
class Interval:
    """From `low` to `high`, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        assert self.low <= self.high, self

    def overlaps(self, other: Interval) -> bool:
        """True if both can be right."""
        return self.low <= other.high and other.low <= self.high

    def widened(self, by: int) -> Interval:
        """As if its clock were that much less exact."""
        return Interval(self.low - by, self.high + by)

    def nearest(self, value: int) -> int:
        """What of it is nearest to `value`."""
        return min(max(value, self.low), self.high)

    def distance(self, other: Interval) -> int:
        """By how much `other` lies above (positive) or below (negative) this one at least; 0: they overlap."""
        if other.low > self.high:
            return other.low - self.high
        return min(0, other.high - self.low)


def majority(witnesses: Sequence[Interval], own: Interval) -> Interval | None:
    """Holds the true offset if more than half of the votes are right; None: at no point do so many agree."""
    votes = [(interval, WITNESS_VOTES) for interval in witnesses] + [(own, OWN_VOTES)]
    total = sum(count for _, count in votes)

    def agreed(at: int) -> bool:
        return 2 * sum(count for interval, count in votes if interval.low <= at <= interval.high) > total

    lows = [interval.low for interval, _ in votes if agreed(interval.low)]
    highs = [interval.high for interval, _ in votes if agreed(interval.high)]
    return Interval(min(lows), max(highs)) if lows else None
