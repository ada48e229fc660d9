"""Who came and went too often of late: a node that keeps joining gets its share later each time.

The first joinings within the window cost nothing, so that a restart, or an upgrade that is taken back, is not held up.
From then on a node waits, and twice as long with every further joining. A node is known by its name; one whose name
changes with each start (the default, host and pid) is always new.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Joining = tuple[str, int]
"""A node's name and the incarnation that it joined with."""


@dataclass(frozen=True, slots=True)
class FlappingLimits:
    """All in seconds, but for the number of joinings."""

    window_s: float = 600.0
    """Joinings that are longer ago don't count."""
    free_joinings: int = 3
    backoff_s: float = 10.0
    backoff_s_max: float = 300.0


class Attendance:
    """Remembers when each node joined. `now`: monotonic seconds."""

    def __init__(self, limits: FlappingLimits) -> None:
        self._limits = limits
        self._joined: dict[Joining, float] = {}

    def see(self, now: float, present: Iterable[Joining]) -> None:
        """Takes note of who is there now. One joining counts once, however often it is seen."""
        there = set(present)
        for joining in there:
            self._joined.setdefault(joining, now)
        since = now - self._limits.window_s
        self._joined = {joining: at for joining, at in self._joined.items() if at > since or joining in there}

    def held_off_s(self, now: float, name: str) -> float:
        """How much longer the node gets nothing new; 0: it is welcome."""
        since = now - self._limits.window_s
        times = sorted(at for (joined, _), at in self._joined.items() if joined == name and at > since)
        extra = len(times) - self._limits.free_joinings
        if extra <= 0:
            return 0.0
        backoff = min(self._limits.backoff_s * 2.0 ** min(extra - 1, 30), self._limits.backoff_s_max)
        return max(0.0, backoff - (now - times[-1]))
