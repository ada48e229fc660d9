"""Which faults happen when: a pure function of seed, length and what there is to break."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

PAUSES_S = (0.5, 1.5, 3.0, 8.0, 15.0)
"""Below and above the time-outs: of a session (2 s), of a create (10 s), of a transaction (10 s)."""
GAP_S_MEAN = 5.0
WARM_UP_S = 5.0
CALM_S = 15.0
"""The last part of a run is without faults: then it shows whether all comes back."""
DOWN_S = (0.5, 2.0, 5.0, 10.0)
SLOW_MS = (20, 100, 400)
JUMPS_MS = (-3_600_000, -5_000, -300, 300, 5_000, 3_600_000)


class Kind(StrEnum):
    """What can be done. Targets: a process, a server, a link "process>server", or nothing."""

    KILL = "kill"
    TERMINATE = "terminate"
    PAUSE = "pause"
    ROLLING_RESTART = "rolling-restart"
    CUT = "cut"
    HOLD = "hold"
    DEAF = "deaf"
    SLOW = "slow"
    SERVER_KILL = "server-kill"
    SERVER_PAUSE = "server-pause"
    DISK_FULL = "disk-full"
    REBALANCE = "rebalance"
    DRAIN = "drain"
    CLOCK_JUMP = "clock-jump"
    MIDDLE_OF_PLAN = "kill-in-plan"


@dataclass(frozen=True, slots=True)
class Fault:
    """`at_s` and `duration_s` in seconds of the run. `amount`: ms of delay or of a clock's jump."""

    at_s: float
    kind: Kind
    target: str
    duration_s: float = 0.0
    amount: int = 0

    @property
    def end_s(self) -> float:
        """When it is healed."""
        return self.at_s + self.duration_s


@dataclass(frozen=True, slots=True)
class Targets:
    """What there is to break: processes by role, servers by name, links as pairs, and what else can be done."""

    processes: tuple[str, ...]
    pollers: tuple[str, ...]
    coordinators: tuple[str, ...]
    servers: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    extra: frozenset[Kind] = field(default_factory=frozenset)


WEIGHTS: dict[Kind, int] = {
    Kind.KILL: 10,
    Kind.TERMINATE: 4,
    Kind.PAUSE: 10,
    Kind.ROLLING_RESTART: 1,
    Kind.CUT: 5,
    Kind.HOLD: 5,
    Kind.DEAF: 4,
    Kind.SLOW: 3,
    Kind.SERVER_KILL: 3,
    Kind.SERVER_PAUSE: 4,
    Kind.DISK_FULL: 2,
    Kind.REBALANCE: 3,
    Kind.DRAIN: 2,
    Kind.CLOCK_JUMP: 4,
    Kind.MIDDLE_OF_PLAN: 2,
}
OPTIONAL = frozenset({Kind.REBALANCE, Kind.DRAIN, Kind.CLOCK_JUMP, Kind.MIDDLE_OF_PLAN})


def draw(seed: int, seconds: float, targets: Targets, gap_s: float = GAP_S_MEAN) -> list[Fault]:
    """Faults in order of time, `gap_s` apart on average, some of them overlapping, all healed CALM_S before the end.

    One server of a kind at a time is broken, and a target only once at a time.
    """
    rng = random.Random(f"faults {seed}")
    kinds = [kind for kind in Kind if kind not in OPTIONAL or kind in targets.extra]
    faults: list[Fault] = []
    for at_s in _instants(rng, seconds - CALM_S, gap_s):
        kind = rng.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]
        fault = _make(rng, kind, at_s, targets)
        if fault.end_s <= seconds - CALM_S and not any(_collide(fault, other) for other in faults):
            faults.append(fault)
    return faults


def _instants(rng: random.Random, until_s: float, gap_s: float) -> Iterator[float]:
    at_s = WARM_UP_S
    while at_s < until_s:
        yield round(at_s, 2)
        at_s += rng.expovariate(1 / gap_s)


def _make(rng: random.Random, kind: Kind, at_s: float, targets: Targets) -> Fault:
    def link() -> str:
        return ">".join(rng.choice(targets.links))

    makers: dict[Kind, Callable[[], Fault]] = {
        Kind.KILL: lambda: Fault(at_s, kind, rng.choice(targets.processes), rng.choice(DOWN_S)),
        Kind.TERMINATE: lambda: Fault(at_s, kind, rng.choice(targets.processes), rng.choice(DOWN_S[:2])),
        Kind.PAUSE: lambda: Fault(at_s, kind, rng.choice(targets.processes), rng.choice(PAUSES_S)),
        Kind.ROLLING_RESTART: lambda: Fault(at_s, kind, ",".join(targets.pollers), 20.0),
        Kind.CUT: lambda: Fault(at_s, kind, link(), rng.choice(PAUSES_S)),
        Kind.HOLD: lambda: Fault(at_s, kind, link(), rng.choice(PAUSES_S)),
        Kind.DEAF: lambda: Fault(at_s, kind, link(), rng.choice(PAUSES_S)),
        Kind.SLOW: lambda: Fault(at_s, kind, link(), rng.choice(PAUSES_S), rng.choice(SLOW_MS)),
        Kind.SERVER_KILL: lambda: Fault(at_s, kind, rng.choice(targets.servers), rng.choice(DOWN_S)),
        Kind.SERVER_PAUSE: lambda: Fault(at_s, kind, rng.choice(targets.servers), rng.choice(PAUSES_S)),
        Kind.DISK_FULL: lambda: Fault(at_s, kind, rng.choice(targets.servers), rng.choice(DOWN_S)),
        Kind.REBALANCE: lambda: Fault(at_s, kind, "plan", 5.0),
        Kind.DRAIN: lambda: Fault(at_s, kind, rng.choice(targets.pollers), rng.choice(DOWN_S[2:])),
        Kind.CLOCK_JUMP: lambda: Fault(
            at_s, kind, rng.choice(targets.processes), rng.choice(PAUSES_S[2:]), rng.choice(JUMPS_MS)
        ),
        Kind.MIDDLE_OF_PLAN: lambda: Fault(at_s, kind, rng.choice(targets.coordinators), 5.0),
    }
    return makers[kind]()


def _collide(one: Fault, other: Fault) -> bool:
    """Whether both can't be under way at once: the same thing, or two servers of one kind, is broken twice."""
    if one.at_s > other.end_s or other.at_s > one.end_s:
        return False
    return bool(_touched(one) & _touched(other))


def _touched(fault: Fault) -> set[str]:
    if fault.kind in (Kind.SERVER_KILL, Kind.SERVER_PAUSE, Kind.DISK_FULL):
        return {"server of kind " + fault.target.partition("-")[0]}
    if fault.kind is Kind.ROLLING_RESTART:
        return {*fault.target.split(","), "plan"}
    if fault.kind in (Kind.REBALANCE, Kind.DRAIN):
        return {fault.target, "plan"}
    return {fault.target}
