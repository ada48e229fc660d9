"""What a process shows at /metrics: names, help texts, and where each number is read.

The code that works keeps plain numbers as attributes. A *source* is a function that reads some of them and yields
metric families; `Metrics.gather` calls every source when Prometheus asks, in the event loop. Nothing is pushed, locked
or made per task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from ..core.clock_discipline import NS_PER_S, Discipline
from ..core.execution import AttemptEnd
from ..core.histogram import Histogram
from ..core.lateness import LateReason
from ..core.task import FactKind
from ..delivery.outcomes import OwnerOutcomes
from ..poller.figures import LaneState
from ..poller.owned_range import Phase
from ..poller.takings import STEPS

if TYPE_CHECKING:
    from ..service.tasks import TaskService
    from .poller_role import PollerRole

Source = Callable[[], Iterable[Metric]]
PREFIX = "bucketsched_"
OUTCOMES_OF_CREATES = ("created", "refused", "unavailable")
OUTCOMES_OF_TRANSACTIONS = ("committed", "refused", "in_doubt")
TAKEOVER_KINDS = ("preloaded", "released", "fenced")


class Metrics:
    """The sources of one process."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._sources: list[Source] = []

    def add(self, source: Source) -> None:
        """From now on `source` is asked, too."""
        self._sources.append(source)

    def gather(self) -> Iterator[Metric]:
        """Every metric as it stands. Call it in the event loop."""
        yield InfoMetricFamily(
            f"{PREFIX}build", "What runs here", {"version": version("bucketsched"), "mode": self._mode}
        )
        for source in self._sources:
            yield from source()


def counter(name: str, text: str, value: float) -> Metric:
    """A number that only grows, as `bucketsched_<name>_total`."""
    return CounterMetricFamily(PREFIX + name, text, value=value)


def counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """One counter for each value of a label."""
    family = CounterMetricFamily(PREFIX + name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def gauge(name: str, text: str, value: float) -> Metric:
    """A number as it stands now."""
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """One gauge for each value of a label."""
    family = GaugeMetricFamily(PREFIX + name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def histogram(name: str, text: str, found: Histogram) -> Metric:
    """A distribution."""
    return HistogramMetricFamily(PREFIX + name, text, buckets=_buckets(found), sum_value=found.total)


def histograms(name: str, text: str, label: str, found: Mapping[str, Histogram]) -> Metric:
    """One distribution for each value of a label."""
    family = HistogramMetricFamily(PREFIX + name, text, labels=[label])
    for key, values in found.items():
        family.add_metric([key], buckets=_buckets(values), sum_value=values.total)
    return family


def _buckets(found: Histogram) -> list[tuple[str, float]]:
    return [("+Inf" if bound == float("inf") else repr(bound), count) for bound, count in found.cumulative()]


# ---------------------------------------------------------------- the sources


def of_tasks(tasks: TaskService) -> Iterator[Metric]:
    """The api role."""
    created = {outcome: tasks.created[outcome] for outcome in OUTCOMES_OF_CREATES}
    yield counters("tasks_created", "Creates by what was answered", "outcome", created)
    yield gauge("hints_unanswered", "Acknowledged tasks whose owner has not answered yet", tasks.hints_unanswered)


def of_outcomes(outcomes: OwnerOutcomes) -> Iterator[Metric]:
    """The deliver role."""
    ends = {end.value.lower(): outcomes.counts[end] for end in AttemptEnd}
    yield counters("attempts", "Attempts by how they ended", "end", ends)
    yield gauge("outcomes_waiting", "Ends of attempts that no owner has answered yet", outcomes.waiting)


def of_clock(clock: Discipline) -> Iterator[Metric]:
    """The time that tasks are dispatched by."""
    yield gauge(
        "clock_offset_seconds",
        "By how much the kernel's clock is ahead (positive) or behind of what most witnesses allow",
        clock.kernel_off_ns / NS_PER_S,
    )
    witnesses = {name: off_ns / NS_PER_S for name, off_ns in clock.witnesses_ns.items()}
    yield gauges("clock_witness_offset_seconds", "By how much the clock is ahead of a witness", "witness", witnesses)
    yield gauge("clock_error_bound_seconds", "How far the true time may be away", clock.error_ns / NS_PER_S)
    yield gauge("clock_synchronised", "1: the kernel says that its clock is synchronised", clock.synchronised)
    yield gauge("clock_trusted", "0: a reason to own no ranges; it is in the log", not clock.objection)
    yield counter("clock_steps", "Steps of the kernel's clock seen", clock.steps)


def of_poller(poller: PollerRole) -> Iterator[Metric]:
    """The poller role: what its lanes did, and how the present one stands."""
    done = poller.counters
    yield counters(
        "tasks_settled",
        "Tasks journaled, by what became of them",
        "outcome",
        {kind.name.lower(): done.settled[kind] for kind in FactKind if kind is not FactKind.SPAWNED},
    )
    late = {reason.value: done.late[reason] for reason in LateReason}
    yield counters("tasks_late", "Tasks dispatched more than 2 s after the due time asked for, by why", "reason", late)
    yield histogram("dispatch_lateness_seconds", "From due to the commit of the dispatch", done.lateness_s)
    outcomes = {outcome: done.transactions[outcome] for outcome in OUTCOMES_OF_TRANSACTIONS}
    yield counters("transactions", "Transactions by outcome; in doubt: read from the journal", "outcome", outcomes)
    yield histogram("transaction_seconds", "Duration of transactions that were committed at once", done.transaction_s)
    takeovers = {kind: Histogram() for kind in TAKEOVER_KINDS} | done.takeover_s
    yield histograms("takeover_seconds", "From the lease of a range to dispatching for it", "kind", takeovers)
    steps = {step: Histogram() for step in STEPS} | done.takeover_step_s
    yield histograms("takeover_step_seconds", "Duration of each step of taking a range", "step", steps)
    yield counter("rescan_found_rows", "Rows that a rescan found and no hint told of", done.rescanned_rows)
    yield counter("ranges_lost", "Ranges that turned out to be owned by others", done.ranges_lost)
    yield counter("lanes_lost", "Lanes that ended because slot, session or journal were lost", done.lanes_lost)
    yield from _of_lane(poller.lane.state() if poller.lane else LaneState())


def _of_lane(state: LaneState) -> Iterator[Metric]:
    ranges = {phase.value: state.ranges[phase.value] for phase in Phase if phase is not Phase.GONE}
    yield gauges("ranges", "Ranges held, by phase; alarmed ones stand still", "phase", ranges)
    yield gauge("heap_rows", "Rows loaded and not due yet", state.heap_rows)
    yield gauge("ready_rows", "Rows due and waiting for a transaction", state.ready_rows)
    yield gauge("resident_bytes", "Memory that loaded rows take, about", state.resident_bytes)
    yield gauge("marks_waiting", "Facts journaled and not stored yet", state.marks_waiting)
    yield gauge("changes_waiting", "Cancels and moves waiting for a transaction", state.changes_waiting)
    yield gauge("checkpoint_age_seconds", "Age of the oldest progress stored of any range", state.checkpoint_age_s)
    yield gauge(
        "oldest_undispatched_age_seconds",
        "How long ago the oldest task was due that is not settled, or may exist in what is not read yet",
        state.oldest_undispatched_age_s,
    )
    yield gauge(
        "retention_used_ratio", "That age as a part of the retention: at 1 tasks are lost", state.retention_used
    )
