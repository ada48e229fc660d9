"""How long each step of taking ranges takes: figures, and one line in the log for all that are taken together."""

from __future__ import annotations

import structlog

from ..ports import Clock
from .figures import LaneCounters

log = structlog.get_logger(__name__)

STEPS = ("lease", "checkpoint", "fence", "replay", "marks", "progress", "clearing", "reading")
"""In this order. marks: storing what the replay says; progress: the first own checkpoint; reading: from then on until
what is due by now is loaded."""


class Taking:
    """One range that is being taken."""

    def __init__(self, takings: Takings, range_id: int, now: float) -> None:
        self._takings, self.range_id, self.kind = takings, range_id, ""
        self._before = now
        self.seconds: dict[str, float] = {}
        """By step; of several tries all together."""

    def done(self, step: str) -> None:
        """The step has ended, and took the time since the one before did."""
        assert step in STEPS, step
        now = self._takings.now()
        self.seconds[step] = self.seconds.get(step, 0.0) + now - self._before
        self._before = now

    def loaded(self) -> None:
        """What is due by now is loaded, or it is not this lane's business any more."""
        self.done("reading")
        self.end()

    def end(self) -> None:
        """It is taken with all that is due, or will not be."""
        self._takings.ended(self)


class Takings:
    """Those of one lane."""

    def __init__(self, clock: Clock, counters: LaneCounters) -> None:
        self._clock, self._counters = clock, counters
        self._under_way: set[Taking] = set()
        self._ended: list[Taking] = []
        self._began = 0.0

    def now(self) -> float:
        """Monotonic seconds."""
        return self._clock.monotonic()

    def begin(self, range_id: int) -> Taking:
        """The lease is about to be asked for."""
        if not self._under_way:
            self._ended, self._began = [], self.now()
        taking = Taking(self, range_id, self.now())
        self._under_way.add(taking)
        return taking

    def ended(self, taking: Taking) -> None:
        """Tells of all that were under way together when the last of them has ended."""
        if taking not in self._under_way:
            return
        self._under_way.discard(taking)
        if taking.kind:
            self._ended.append(taking)
            for step, seconds in taking.seconds.items():
                self._counters.step_taken(step, seconds)
        if self._ended and not self._under_way:
            self._tell()

    def _tell(self) -> None:
        kinds = sorted({taking.kind for taking in self._ended})
        longest = {step: max(taking.seconds.get(step, 0.0) for taking in self._ended) for step in STEPS}
        log.info(
            "ranges taken",
            ranges=len(self._ended),
            kinds=kinds,
            total_ms=_ms(self.now() - self._began),
            **{f"{step}_ms": _ms(seconds) for step, seconds in longest.items()},
        )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
