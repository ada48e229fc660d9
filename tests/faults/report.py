"""What a run amounts to: one JSON object."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from .checker import CHECKS
from .model import EntryKind, History, Op, Outcome
from .tasks import Tasks, Violation

SETTLE_MS = 5_000
"""How long after the last fault was healed lateness begins to count as that of a healed system."""
LATE_MS = 500
"""What is later than this has been delayed by a fault."""
AFTER_MS = 5_000
"""What is due so long after the end of a fault is counted to it, too."""
FIRST = ("lost", "early", "duplicate_commits", "cancel_violations", "update_violations", "key_violations")


def lateness(history: History) -> list[tuple[int, int]]:
    """Due time and lateness of each message that was seen: after it was due, acknowledged for the first time, and made
    what it is by the last change.
    """
    tasks = Tasks(history)
    acknowledged: dict[str, int] = {}
    for request in history.requests:
        if request.op is Op.CREATE and request.outcome is Outcome.OK and request.end_ms is not None:
            known = acknowledged.get(request.task_id, request.end_ms)
            acknowledged[request.task_id] = min(known, request.end_ms)
    found = []
    for message in history.messages:
        task_id, generation, _ = message.dispatch
        if message.seen_ms is not None and task_id in acknowledged:
            moved = tasks.moves(task_id).get(generation - 1)
            row = tasks.decided.get((EntryKind.DISPATCHED, message.dispatch))
            due_ms = max(message.body.due_ms, acknowledged[task_id], moved.append_ms if moved else 0)
            due_ms = max(due_ms, row.fact.due_ms if row else 0)
            found.append((due_ms, max(0, message.seen_ms - due_ms)))
    return sorted(found)


def percentile(values: list[int], share: float) -> int:
    """Of values in any order; 0 if there are none."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0


def calm_late_ms(history: History, late: list[tuple[int, int]]) -> int:
    """The worst lateness of what came before the first fault: what the machine takes, whatever happens."""
    first_ms = min((span.begin_ms for span in history.faults), default=0)
    return max((ms for due_ms, ms in late if due_ms + ms < first_ms), default=0)


def by_fault(history: History, late: list[tuple[int, int]]) -> dict[str, dict[str, int]]:
    """For each kind of fault: how many, and the worst lateness of what was due during one or shortly after."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: {"count": 0, "worst_late_ms": 0})
    for span in history.faults:
        entry = found[span.kind]
        entry["count"] += 1
        during = [ms for due_ms, ms in late if span.begin_ms <= due_ms <= span.end_ms + AFTER_MS]
        entry["worst_late_ms"] = max([entry["worst_late_ms"], *during])
    return dict(found)


def summary(history: History, violations: list[Violation]) -> dict[str, Any]:
    """The JSON line, without what only the run knows."""
    late = lateness(history)
    healed_ms = max((span.end_ms for span in history.faults), default=0)
    after = [ms for due_ms, ms in late if due_ms >= healed_ms + SETTLE_MS]
    delayed = [due_ms + ms for due_ms, ms in late if ms > LATE_MS]
    counts = Counter(violation.kind for violation in violations)
    names = [*FIRST, *(name for check in CHECKS if (name := check.__name__) not in FIRST)]
    outcomes = Counter(f"{request.op}:{request.outcome}" for request in history.requests)
    return {
        "ops": len(history.requests),
        "faults": len(history.faults),
        **{name: counts[name] for name in names},
        "max_late_ms_after_heal": max(after, default=None),
        "recovered_ms": max(0, max(delayed, default=0) - healed_ms) if history.faults else 0,
        "late_ms": {f"p{share}": percentile([ms for _, ms in late], share / 100) for share in (50, 99)},
        "max_late_ms": max((ms for _, ms in late), default=0),
        "calm_late_ms": calm_late_ms(history, late),
        "messages": len(history.messages),
        "deliveries": len(history.deliveries),
        "closed_buckets": len({bucket for section in history.journal for bucket in section.closed}),
        "rows": len(history.rows),
        "outcomes": dict(sorted(outcomes.items())),
        "by_fault": by_fault(history, late),
    }
