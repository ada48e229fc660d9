"""A circuit breaker: after failures in a row nothing is tried for a while, then one at a time until one succeeds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CircuitLimits:
    """When it opens, and for how long."""

    failures_max: int = 5
    """In a row: with this one it opens."""
    pause_s_min: float = 1.0
    pause_s_max: float = 30.0


class Circuit:
    """Of one host. Times are seconds of the monotonic clock. Each `begin` is followed by `succeeded` or `failed`."""

    def __init__(self, limits: CircuitLimits) -> None:
        self._limits = limits
        self._failures = 0
        self._pause_s = 0.0
        self._open_until = 0.0
        self._trying = 0

    @property
    def open(self) -> bool:
        """True from too many failures until a success."""
        return self._pause_s > 0

    @property
    def untroubled(self) -> bool:
        """True where there is nothing to remember."""
        return not (self._failures or self._trying)

    def wait_s(self, now: float) -> float | None:
        """How long until one may begin; 0: at once. None: not before the one that is trying has ended."""
        if not self.open:
            return 0.0
        return None if self._trying else max(0.0, self._open_until - now)

    def begin(self) -> None:
        """One begins."""
        self._trying += 1

    def succeeded(self) -> None:
        """The host answered: everybody may begin."""
        self._trying -= 1
        self._failures = 0
        self._pause_s = 0.0

    def abandoned(self) -> None:
        """One ended without having learnt anything of the host."""
        self._trying -= 1

    def failed(self, now: float) -> None:
        """The host did not answer. Those that had begun before it opened don't make the pause longer."""
        self._trying -= 1
        self._failures += 1
        if self._failures < self._limits.failures_max or now < self._open_until:
            return
        self._pause_s = min(self._limits.pause_s_max, max(self._limits.pause_s_min, 2 * self._pause_s))
        self._open_until = now + self._pause_s
