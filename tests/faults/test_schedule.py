"""Schedules: the same for the same seed, everything healed in time, nothing broken twice at once."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from tests.faults.schedule import CALM_S, OPTIONAL, Kind, Targets, draw

TARGETS = Targets(
    processes=("api-1", "poller-1", "poller-2"),
    pollers=("poller-1", "poller-2"),
    coordinators=("poller-1",),
    servers=("cassandra", "cassandra-2", "cassandra-3", "kafka", "kafka-2", "kafka-3", "zookeeper"),
    links=(("poller-1", "zookeeper"), ("api-1", "poller-2")),
    extra=frozenset(OPTIONAL),
)
SEEDS = range(60)


def test_a_seed_gives_the_same_faults() -> None:
    assert draw(7, 180, TARGETS) == draw(7, 180, TARGETS)
    assert draw(7, 180, TARGETS) != draw(8, 180, TARGETS)


def test_faults_come_as_often_as_they_are_to() -> None:
    often, seldom = (sum(len(draw(seed, 300, TARGETS, gap_s)) for seed in SEEDS) for gap_s in (5, 20))
    assert 3 < often / seldom < 5


def test_all_faults_are_healed_before_the_calm() -> None:
    for seed in SEEDS:
        faults = draw(seed, 90, TARGETS)
        assert faults
        assert max(fault.end_s for fault in faults) <= 90 - CALM_S


def test_nothing_is_broken_twice_at_once() -> None:
    for seed in SEEDS:
        for one, other in combinations(draw(seed, 300, TARGETS), 2):
            at_once = one.at_s <= other.end_s and other.at_s <= one.end_s
            assert not (at_once and one.target == other.target), (seed, one, other)


def test_one_server_of_a_kind_is_broken_at_a_time() -> None:
    broken = (Kind.SERVER_KILL, Kind.SERVER_PAUSE, Kind.DISK_FULL)
    for seed in SEEDS:
        faults = [fault for fault in draw(seed, 600, TARGETS) if fault.kind in broken]
        for one, other in combinations(faults, 2):
            if one.target.partition("-")[0] == other.target.partition("-")[0]:
                assert one.at_s > other.end_s or other.at_s > one.end_s, (seed, one, other)


def test_faults_overlap_sometimes() -> None:
    def overlaps(seed: int) -> bool:
        return any(
            one.at_s <= other.end_s and other.at_s <= one.end_s
            for one, other in combinations(draw(seed, 180, TARGETS), 2)
        )

    assert any(overlaps(seed) for seed in SEEDS)


def test_every_kind_comes_up() -> None:
    kinds = Counter(fault.kind for seed in SEEDS for fault in draw(seed, 300, TARGETS))
    assert set(kinds) == set(Kind)


@pytest.mark.parametrize("kind", sorted(OPTIONAL))
def test_what_is_not_there_is_not_done(kind: Kind) -> None:
    without = Targets(
        TARGETS.processes,
        TARGETS.pollers,
        TARGETS.coordinators,
        TARGETS.servers,
        TARGETS.links,
        TARGETS.extra - {kind},
    )
    assert all(fault.kind is not kind for seed in SEEDS for fault in draw(seed, 300, without))
