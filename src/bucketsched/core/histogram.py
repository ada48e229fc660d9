"""Counts of values by size: plain numbers that whoever reports them reads when it is asked."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
"""Upper bounds that serve durations from a transaction to an outage."""


class Histogram:
    """How many values are at most as large as each of `bounds`, and their sum. Not for use by several threads."""

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        assert list(bounds) == sorted(set(bounds)), bounds
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Counts one value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_all(self, values: Iterable[float]) -> None:
        """Counts the values of a whole batch."""
        counts, bounds, total = self._counts, self.bounds, 0.0
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            total += value
        self.total += total

    @property
    def count(self) -> int:
        """Values counted so far."""
        return sum(self._counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """Each bound with the number of values up to it; the last bound is infinite."""
        found, sum_so_far = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self._counts, strict=True):
            sum_so_far += count
            found.append((bound, sum_so_far))
        return found
