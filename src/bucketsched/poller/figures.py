"""What the lanes of a process have done, and how they stand: plain numbers, read when somebody asks for metrics.

The code that works only adds to attributes, once a batch, transaction or takeover; naming, help texts and formats are
the business of `app.metrics`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..core.histogram import Histogram
from ..core.lateness import LateReason
from ..core.task import FactKind


@dataclass(slots=True)
class LaneCounters:
    """Counts since the process began, over all its lanes one after the other. Durations are in seconds."""

    transactions: Counter[str] = field(default_factory=Counter)
    """By what became of them: committed, refused, in_doubt (whose outcome had to be read from the journal)."""
    transaction_s: Histogram = field(default_factory=Histogram)
    """From the begin to the answer of those that were committed at once."""
    settled: Counter[FactKind] = field(default_factory=Counter)
    lateness_s: Histogram = field(default_factory=Histogram)
    """From due to the commit, of each task dispatched."""
    takeover_s: dict[str, Histogram] = field(default_factory=dict)
    """From the lease to dispatching, by kind: "preloaded" (planned), "released" by the former owner, or "fenced"."""
    takeover_step_s: dict[str, Histogram] = field(default_factory=dict)
    """By step (see poller.takings.STEPS), of each range taken."""
    late: Counter[LateReason] = field(default_factory=Counter)
    """Tasks dispatched more than core.lateness.LATE_MS after the due time asked for, by why."""
    rescanned_rows: int = 0
    ranges_lost: int = 0
    lanes_lost: int = 0

    def dispatched(self, dues_ms: Iterable[int], at_ms: int) -> None:
        """A transaction with tasks of these due times was committed at `at_ms`."""
        self.lateness_s.observe_all(max(0, at_ms - due_ms) / 1000 for due_ms in dues_ms)

    def taken(self, kind: str, seconds: float) -> None:
        """A range was taken."""
        self.takeover_s.setdefault(kind, Histogram()).observe(seconds)

    def step_taken(self, step: str, seconds: float) -> None:
        """A step of taking a range took so long."""
        self.takeover_step_s.setdefault(step, Histogram()).observe(seconds)


@dataclass(frozen=True, slots=True)
class LaneState:
    """How a lane stands now."""

    ranges: Counter[str] = field(default_factory=Counter)
    """By phase."""
    heap_rows: int = 0
    ready_rows: int = 0
    resident_bytes: int = 0
    marks_waiting: int = 0
    changes_waiting: int = 0
    checkpoint_age_s: float = 0.0
    """Of the active range whose progress was stored longest ago."""
    oldest_undispatched_age_s: float = 0.0
    """How long ago the oldest task was due that is not settled, or may exist in what is not read yet."""
    retention_used: float = 0.0
    """That age as a part of the retention: at 1 tasks are lost."""
