"""Faults that are fixed beforehand, and how late what is due meanwhile may come at most.

python -m tests.faults --scenario one-replica-down
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .schedule import Fault, Kind, Targets

ALL = ("api-1", "api-2", "poller-1", "poller-2", "poller-3", "deliver-1")
PAIR = ("api-1", "api-2", "poller-1", "poller-2", "deliver-1")
"""Each of the two pollers holds half of the ranges."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """`late_ms_max`: how much later than before the first fault that may come which is due during one or just after."""

    about: str
    seconds: float
    rate: float
    faults: Callable[[Targets], list[Fault]]
    late_ms_max: int
    nodes: tuple[str, ...] = ALL
    brokers: int | None = None


def one_replica_down(targets: Targets) -> list[Fault]:
    """A node of Cassandra stands still, later another one is killed; a poller is taken over meanwhile."""
    return [
        Fault(10, Kind.SERVER_PAUSE, "cassandra-2", 15),
        Fault(15, Kind.KILL, "poller-2", 2),
        Fault(35, Kind.SERVER_KILL, "cassandra-3", 15),
        Fault(40, Kind.KILL, "poller-1", 2),
    ]


def one_broker_down(targets: Targets) -> list[Fault]:
    """Each broker in turn, the first ones killed, the last one standing still."""
    return [
        Fault(10, Kind.SERVER_KILL, "kafka", 10),
        Fault(35, Kind.SERVER_KILL, "kafka-2", 10),
        Fault(60, Kind.SERVER_PAUSE, "kafka-3", 10),
    ]


def poller_killed(targets: Targets) -> list[Fault]:
    """One of two pollers, three times."""
    return [
        Fault(10, Kind.KILL, "poller-1", 5),
        Fault(25, Kind.KILL, "poller-2", 5),
        Fault(40, Kind.KILL, "poller-1", 5),
    ]


def poller_paused(targets: Targets) -> list[Fault]:
    """One of two pollers stands still for much longer than its session lives, and wakes up."""
    return [Fault(10, Kind.PAUSE, "poller-1", 8), Fault(30, Kind.PAUSE, "poller-2", 8)]


def rolling_restart(targets: Targets) -> list[Fault]:
    """All pollers, one after the other, twice."""
    names = ",".join(targets.pollers)
    return [Fault(10, Kind.ROLLING_RESTART, names, 20), Fault(40, Kind.ROLLING_RESTART, names, 20)]


SCENARIOS = {
    "one-replica-down": Scenario("one Cassandra node of three is away", 65, 25, one_replica_down, 2_000),
    "one-broker-down": Scenario("one Kafka broker of three is away", 85, 60, one_broker_down, 2_000, brokers=3),
    "poller-killed": Scenario("kill -9 of a poller with half of the ranges", 60, 500, poller_killed, 1_000, PAIR),
    "poller-paused": Scenario("SIGSTOP of a poller beyond its session", 60, 200, poller_paused, 3_000, PAIR),
    "rolling-restart": Scenario("all pollers are restarted in turn", 75, 200, rolling_restart, 2_000),
}
