"""What was asked for against what came: lost, duplicate, early, and how late."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

NS_PER_MS = 1_000_000


class Arrival(NamedTuple):
    """A task as it came to whoever receives. `at_ns`: nanoseconds since the Unix epoch."""

    task_id: str
    at_ns: int

    def lateness_ms(self, due_ms: int) -> float:
        """Negative: early."""
        return (self.at_ns - due_ms * NS_PER_MS) / NS_PER_MS


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of exact values, in milliseconds; all 0 where there are none."""

    p50: float
    p95: float
    p99: float
    max: float


def percentiles(values: Iterable[float]) -> Percentiles:
    """By the nearest rank: each is a value that occurred."""
    ordered = sorted(values)
    if not ordered:
        return Percentiles(0, 0, 0, 0)

    def rank(share: float) -> float:
        return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 2)

    return Percentiles(rank(0.50), rank(0.95), rank(0.99), rank(1))


@dataclass(frozen=True, slots=True)
class Verdict:
    """`tasks` were acknowledged. Each arrival after a task's first is a duplicate; stray ones were not asked for."""

    tasks: int
    lost: int
    duplicate: int
    early: int
    stray: int
    lateness: Percentiles
    """Of the first arrivals."""

    @property
    def clean(self) -> bool:
        """What was promised was kept."""
        return not (self.lost or self.duplicate or self.early)


def judge(due_ms: Mapping[str, int], arrivals: Sequence[Arrival]) -> Verdict:
    """`due_ms`: of each acknowledged task by its id."""
    known = [arrival for arrival in arrivals if arrival.task_id in due_ms]
    times = Counter(arrival.task_id for arrival in known)
    return Verdict(
        tasks=len(due_ms),
        lost=len(due_ms) - len(times),
        duplicate=len(known) - len(times),
        early=sum(arrival.at_ns < due_ms[arrival.task_id] * NS_PER_MS for arrival in known),
        stray=len(arrivals) - len(known),
        lateness=percentiles(late_ms for _, late_ms in first_lateness(due_ms, known)),
    )


def first_lateness(due_ms: Mapping[str, int], arrivals: Iterable[Arrival]) -> list[tuple[Arrival, float]]:
    """The first arrival of each task, and how many milliseconds late it was."""
    first: dict[str, Arrival] = {}
    for arrival in arrivals:
        if arrival.task_id in due_ms:
            before = first.setdefault(arrival.task_id, arrival)
            if arrival.at_ns < before.at_ns:
                first[arrival.task_id] = arrival
    return [(arrival, arrival.lateness_ms(due_ms[task_id])) for task_id, arrival in first.items()]
