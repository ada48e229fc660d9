"""The time that tasks are dispatched by: the kernel's, held through its steps until it is known who is right.

The clock is the machine's time since boot plus an *offset*. In Linux the wall clock and the time since boot are
corrected for speed together, so their difference changes by steps only: when somebody sets the clock. A step says that
the time was wrong before or is wrong now, not which. So the offset stays as it was, and *witnesses* decide: other
machines' times, each within the round trip of a request (see clock_votes). What most of them allow is the *majority*:

    the offset lies in it       nothing changes, whatever the kernel says (a wrong kernel is told of)
    the kernel's lies in it     the offset becomes the kernel's: it was set right
    neither                     the offset moves to the edge of it, and the bounds are those of the majority

Without witnesses (`alone`) a step is believed when the kernel's clock has not been stepped again for CONFIRM_NS.
What is smaller than FOLLOW_NS_MAX and nobody contradicts is followed slowly, with the bounds around both.

All figures are nanoseconds; `boot_ns` is the time since boot, suspension included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from .clock_bound import KernelBound
from .clock_votes import Interval, majority

NS_PER_MS, NS_PER_S = 1_000_000, 1_000_000_000
STEP_NS_MIN = 5 * NS_PER_MS
"""A smaller change between two looks is the noise of a busy machine."""
FOLLOW_NS_MAX = 100 * NS_PER_MS
SLEW_PPM = 500
DRIFT_PPM = 500
"""How much a machine's clock may run fast or slow at most, uncorrected."""
PEER_ERROR_NS = 10 * NS_PER_MS
"""How wrong the clock of a synchronised machine may be, as far as witnesses go."""
RECENT_NS = 30 * NS_PER_S
"""What a witness has said counts for so long."""
CONFIRM_NS = 300 * NS_PER_S
SETTLE_NS = 10 * NS_PER_S
"""A kernel clock must be off, or right again, for so long before a node acts on it."""
WITNESSES_MAX = 64


@dataclass(frozen=True, slots=True)
class ClockLimits:
    """Of one node's clock. See config.NodeSettings."""

    error_ns: int = 0
    """Where the kernel gives no bound."""
    error_ns_max: int = 10 * NS_PER_MS
    offset_ns_max: int = 500 * NS_PER_MS
    alone: bool = True
    """There are no witnesses, and the kernel's bound is not asked for."""


@dataclass(frozen=True, slots=True)
class Look:
    """The kernel's clocks at one instant. `max_error_ns` None: it says that it is not synchronised."""

    boot_ns: int
    wall_ns: int
    max_error_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Testimony:
    """Between `sent_ns` and `received_ns` since boot another machine's clock was in `said` (since 1970)."""

    witness: str
    sent_ns: int
    received_ns: int
    said: Interval

    @property
    def offset(self) -> Interval:
        """The offsets under which it is right."""
        return Interval(self.said.low - self.received_ns, self.said.high - self.sent_ns)


@dataclass(frozen=True, slots=True)
class Note:
    """Something to be logged."""

    level: Literal["info", "warning", "error"]
    text: str
    fields: Mapping[str, object] = field(default_factory=dict)
    recurring: bool = False


class _Settled:
    """A condition that counts once it has lasted; the first time it counts at once."""

    def __init__(self) -> None:
        self.value: bool | None = None
        self._changing_since: int | None = None

    def update(self, value: bool, boot_ns: int) -> bool:
        """The condition as it counts now."""
        if self.value is None or value == self.value:
            self.value, self._changing_since = value, None
        elif self._changing_since is None:
            self._changing_since = boot_ns
        elif boot_ns - self._changing_since >= SETTLE_NS:
            self.value, self._changing_since = value, None
        return self.value


class Discipline:
    """The offset and its bounds. `look` at the kernel about once a second; `hear` witnesses every few seconds."""

    def __init__(self, limits: ClockLimits, first: Look) -> None:
        self._limits = limits
        self._kernel_bound = KernelBound()
        self._kernel_bound.observe(first.max_error_ns, first.boot_ns)
        self._boot_ns = self._stepped_at = self._apart_since = first.boot_ns
        self._kernel_ns = self.offset_ns = first.wall_ns - first.boot_ns
        self._said: dict[str, Testimony] = {}
        self._majority: tuple[Interval, int] | None = None
        self._by_witnesses = False
        self._off, self._inexact = _Settled(), _Settled()
        self._warned = False
        self.steps = 0
        self.doubtful = False
        """The kernel's clock was stepped and no witness has been heard since."""
        self.synchronised = first.max_error_ns is not None
        self.kernel_off_ns = 0
        """By how much the kernel's clock is ahead (positive) or behind of what the majority allows."""
        self.low_ns = self.high_ns = 0
        """The offsets of the earliest and the latest time that it may be."""
        self._bound()

    # ---- inputs

    def look(self, look: Look) -> list[Note]:
        """Takes in what the kernel says now."""
        notes = self._unsynchronised(look)
        elapsed_ns, self._boot_ns = look.boot_ns - self._boot_ns, look.boot_ns
        self._kernel_bound.observe(look.max_error_ns, look.boot_ns)
        by_ns = look.wall_ns - look.boot_ns - self._kernel_ns
        self._kernel_ns += by_ns
        if abs(by_ns) >= STEP_NS_MIN:
            self.steps += 1
            self._stepped_at = look.boot_ns
            self.doubtful = not self._limits.alone
            notes.append(Note("warning", "the kernel's clock was stepped", {"by_ms": _ms(by_ns)}))
        notes += self._follow(elapsed_ns)
        self._judge_fitness()
        self._bound()
        return notes

    def hear(self, testimonies: Iterable[Testimony]) -> list[Note]:
        """Takes in what witnesses said since the last look."""
        for said in testimonies:
            if said.witness in self._said or len(self._said) < WITNESSES_MAX:
                self._said[said.witness] = said
                self._boot_ns = max(self._boot_ns, said.received_ns)
        recent = {n: s for n, s in self._said.items() if self._boot_ns - s.received_ns <= RECENT_NS}
        self._said = recent
        if not recent:
            return []
        self.doubtful = False
        found = majority([self._aged(said) for said in recent.values()], self._own())
        if found is None:
            says = {name: _ms(said.offset.distance(self._own())) for name, said in recent.items()}
            return [Note("error", "the witnesses of the time disagree", {"ahead_of_ms": says}, recurring=True)]
        self._majority = found, self._boot_ns
        notes = self._settle(found)
        self._judge_fitness()
        self._bound()
        return notes

    # ---- what came of it

    @property
    def confirmed(self) -> bool:
        """A majority of witnesses has been heard; or there are none to be heard."""
        return self._limits.alone or self._majority is not None

    @property
    def error_ns(self) -> int:
        """How far the true time may be away."""
        return max(self.offset_ns - self.low_ns, self.high_ns - self.offset_ns)

    @property
    def witnesses_ns(self) -> dict[str, int]:
        """By how much the clock is ahead of each witness at least (negative: behind); 0: within its round trip."""
        return {name: self._aged(said).distance(self._own()) for name, said in self._said.items()}

    @property
    def objection(self) -> str:
        """Why this node should own no ranges; "": nothing speaks against it."""
        if not self.confirmed:
            return "no witness has confirmed the clock yet"
        if self._off.value:
            off_ms, seconds = _ms(self.kernel_off_ns), SETTLE_NS // NS_PER_S
            return f"the kernel's clock is off by {off_ms} ms, or was a moment ago (it has to be right for {seconds} s)"
        if self._inexact.value:
            return f"the kernel's clock is only right to {_ms(self._error_ns())} ms"
        return ""

    # ---- inside

    def _follow(self, elapsed_ns: int) -> list[Note]:
        """Moves the offset to the kernel's: slowly where that is near, at once where it is believed."""
        apart_ns = self._kernel_ns - self.offset_ns
        if not self._kernel_allowed():
            return []
        if abs(apart_ns) <= FOLLOW_NS_MAX:
            most = max(0, elapsed_ns) * SLEW_PPM // 1_000_000
            self.offset_ns += min(max(apart_ns, -most), most)
        elif self._limits.alone and self._boot_ns - self._stepped_at >= CONFIRM_NS:
            return self._set("the kernel's clock was not stepped again: it is believed")
        return []

    def _settle(self, found: Interval) -> list[Note]:
        """Moves the offset to where the majority allows it."""
        kernel = Interval(self._kernel_ns, self._kernel_ns).widened(self._error_ns())
        self.kernel_off_ns = found.distance(kernel)
        notes = []
        if self.kernel_off_ns:
            says = sorted(name for name, said in self._said.items() if self._aged(said).overlaps(found))
            fields = {"off_ms": _ms(self.kernel_off_ns), "says": says}
            notes.append(Note("warning", "the kernel's clock is off", fields, recurring=True))
        if not self.kernel_off_ns and (self._by_witnesses or not self._own().overlaps(found)):
            self._by_witnesses = False
            return notes + self._set("the clock follows the kernel's: witnesses confirm it")
        if not self._own().overlaps(found):
            self._by_witnesses = True
            by_ns = found.nearest(self.offset_ns) - self.offset_ns
            self.offset_ns += by_ns
            notes.append(Note("warning", "the clock follows witnesses, not the kernel", {"by_ms": _ms(by_ns)}, True))
        return notes

    def _set(self, text: str) -> list[Note]:
        by_ns = self._kernel_ns - self.offset_ns
        self.offset_ns = self._kernel_ns
        return [Note("warning", text, {"by_ms": _ms(by_ns)})] if abs(by_ns) >= STEP_NS_MIN else []

    def _kernel_allowed(self) -> bool:
        """Nobody contradicts the kernel's clock as it is now."""
        found = self._aged_majority()
        kernel = Interval(self._kernel_ns, self._kernel_ns).widened(self._error_ns())
        return not self._by_witnesses and (found is None or kernel.overlaps(found))

    def _own(self) -> Interval:
        return Interval(self.offset_ns, self.offset_ns).widened(self._error_ns())

    def _error_ns(self) -> int:
        known = None if self._limits.alone else self._kernel_bound.error_ns(self._boot_ns)
        return self._limits.error_ns if known is None else known

    def _aged(self, said: Testimony) -> Interval:
        return said.offset.widened(PEER_ERROR_NS + _drift(self._boot_ns - said.received_ns))

    def _aged_majority(self) -> Interval | None:
        return None if self._majority is None else self._majority[0].widened(_drift(self._boot_ns - self._majority[1]))

    def _bound(self) -> None:
        """The majority's bounds where the clock follows it; else the own ones, within the majority's."""
        found = self._aged_majority()
        following = self._kernel_allowed() and abs(self._kernel_ns - self.offset_ns) <= FOLLOW_NS_MAX
        if following or self._limits.alone:
            self._apart_since = self._boot_ns
        both = (self.offset_ns, self._kernel_ns) if following else (self.offset_ns,)
        error_ns = self._error_ns() + _drift(self._boot_ns - self._apart_since)
        low, high = min(both) - error_ns, max(both) + error_ns
        if found is not None:
            low = found.low if self._by_witnesses else max(low, found.low)
            high = found.high if self._by_witnesses else min(high, found.high)
        self.low_ns, self.high_ns = min(low, self.offset_ns), max(high, self.offset_ns)

    def _judge_fitness(self) -> None:
        if self._majority is not None:
            self._off.update(abs(self.kernel_off_ns) > self._limits.offset_ns_max, self._boot_ns)
        if not self._limits.alone:
            self._inexact.update(self._error_ns() > self._limits.error_ns_max, self._boot_ns)

    def _unsynchronised(self, look: Look) -> list[Note]:
        self.synchronised = look.max_error_ns is not None
        if self._limits.alone or self._warned or self.synchronised:
            return []
        self._warned = True
        assumed = {"assumed_error_ms": _ms(self._limits.error_ns)}
        return [Note("warning", "the kernel's clock is not synchronised, as far as it knows", assumed)]


def _ms(ns: int) -> float:
    return round(ns / NS_PER_MS, 1)


def _drift(elapsed_ns: int) -> int:
    return max(0, elapsed_ns) * DRIFT_PPM // 1_000_000
