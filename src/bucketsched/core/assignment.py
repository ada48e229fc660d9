"""Which lane shall own which range: balanced by weight among zones, then among the lanes of each, with few moves.

A zone's fair share is `ranges * its weight / all weights`, its weight being that of its lanes together; it gets that
rounded down or up, never more and never less. What a zone gets is divided among its lanes in the same way. Of all such
divisions, on either level, the one is taken that leaves most ranges where they are. The loss of a zone therefore moves
its ranges to the lanes of all others, by their weights.

Lanes differ in what they may get (`Standing`). The result depends on the arguments only.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

Assignment = dict[int, int]
"""Range id -> lane."""

IMBALANCE_SHARE = 0.1
"""Imbalances up to this part of a lane's share are not worth moving ranges for, nor is one range more or less."""

ANY_IMBALANCE = math.inf
"""Only ranges without an owner are worth moving."""

Key = TypeVar("Key", int, str)


class Standing(IntEnum):
    """What a lane may get. Where there is none of one kind, the next kind has to do: ranges must have owners."""

    OPEN = 0
    """It gets its share."""
    HELD_OFF = 1
    """It keeps what it has and gets nothing new: it came and went too often of late."""
    CORDONED = 2
    """It keeps what it has and gets nothing new."""
    AILING = 3
    """It keeps what it has and gets nothing new, and nothing that has an owner: it can't reach what it needs."""
    DRAINED = 4
    """It gets nothing and loses what it has."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A lane, as a plan sees it."""

    lane: int
    weight: int = 1
    zone: str = ""
    standing: Standing = Standing.OPEN


def assign(ranges: int, weights: Mapping[int, int], current: Mapping[int, int]) -> Assignment:
    """The lane of every range 0 .. `ranges` - 1 where all lanes are open and in one zone; empty without lanes.

    `weights`: lane -> weight >= 1. `current`: what is assigned now; lanes and ranges that no longer exist may be in it.
    """
    return distribute(ranges, [Seat(lane, weight) for lane, weight in weights.items()], current)


def distribute(
    ranges: int, seats: Sequence[Seat], current: Mapping[int, int], imbalance_share: float | None = None
) -> Assignment:
    """The lane of every range 0 .. `ranges` - 1; empty where there are no seats.

    `imbalance_share`: such imbalances are left alone (see `calm`); None: none is, ANY_IMBALANCE: all are.
    """
    assert ranges >= 0, ranges
    assert all(seat.weight >= 1 for seat in seats), seats
    if not seats:
        return {}
    kind = min(seat.standing for seat in seats)
    takers = {seat.lane: seat for seat in seats if seat.standing is kind}
    if kind is Standing.AILING:
        imbalance_share = ANY_IMBALANCE  # all may have the same trouble, and moving helps none of them
    losers = set() if kind is Standing.AILING else {Standing.DRAINED}
    keepers = {seat.lane for seat in seats if seat.standing is not kind and seat.standing not in losers}
    pinned = {r: current[r] for r in range(ranges) if current.get(r) in keepers}
    loose = [r for r in range(ranges) if r not in pinned]
    if imbalance_share is not None:
        settled = _only_orphans(loose, takers, current)
        if calm(settled, list(takers.values()), imbalance_share):
            return dict(sorted({**pinned, **settled}.items()))
    return dict(sorted({**pinned, **_balanced(loose, takers, current)}.items()))


def calm(assignment: Mapping[int, int], takers: Sequence[Seat], imbalance_share: float) -> bool:
    """True if every taker is near its share: off by no more than one range, or that part of the share.

    One that has nothing although its share is a range or more is not: it has just come.
    """
    shares = fair_shares(len(assignment), takers)
    counts = _counts(assignment)
    return imbalance_share == ANY_IMBALANCE or all(
        abs(counts[lane] - share) <= max(1.0, imbalance_share * share) and (counts[lane] > 0 or share < 1)
        for lane, share in shares.items()
    )


def fair_shares(ranges: int, takers: Sequence[Seat]) -> dict[int, float]:
    """What each of the lanes would get if ranges could be divided."""
    total = sum(seat.weight for seat in takers)
    return {seat.lane: ranges * seat.weight / total for seat in takers}


def _balanced(loose: Sequence[int], takers: Mapping[int, Seat], current: Mapping[int, int]) -> Assignment:
    kept = {lane: [r for r in loose if current.get(r) == lane] for lane in sorted(takers)}
    targets = _targets(len(loose), takers, {lane: len(own) for lane, own in kept.items()})
    assignment = {r: lane for lane, own in kept.items() for r in own[: targets[lane]]}
    filled = {lane: min(len(own), targets[lane]) for lane, own in kept.items()}
    places = _places(targets, filled, takers)
    assignment.update(zip([r for r in loose if r not in assignment], places, strict=True))
    assert len(assignment) == len(loose), (len(assignment), len(loose))
    return assignment


def _only_orphans(loose: Sequence[int], takers: Mapping[int, Seat], current: Mapping[int, int]) -> Assignment:
    """Moves only what has no taker, each to the lane that has least for its weight by then."""
    settled = {r: current[r] for r in loose if current.get(r) in takers}
    counts = _counts(settled)
    for r in loose:
        if r not in settled:
            lane = min(takers, key=lambda lane: ((counts[lane] + 1) / takers[lane].weight, lane))
            settled[r] = lane
            counts[lane] += 1
    return settled


def _targets(count: int, takers: Mapping[int, Seat], held: Mapping[int, int]) -> dict[int, int]:
    """How many ranges each lane gets: first each zone its share, then each lane its share of that."""
    zones: dict[str, dict[int, int]] = defaultdict(dict)
    for seat in takers.values():
        zones[seat.zone][seat.lane] = seat.weight
    of_zones = _shares(
        count,
        {zone: sum(lanes.values()) for zone, lanes in zones.items()},
        {zone: sum(held[lane] for lane in lanes) for zone, lanes in zones.items()},
    )
    return {lane: n for zone, lanes in zones.items() for lane, n in _shares(of_zones[zone], lanes, held).items()}


def _shares(count: int, weights: Mapping[Key, int], held: Mapping[Key, int]) -> dict[Key, int]:
    """Each share rounded down, and one more for as many as that leaves over.

    One more goes first to those that hold as much already, which saves a move each, then to the largest remainders.
    """
    total = sum(weights.values())
    targets = {key: count * weight // total for key, weight in weights.items()}
    remainder = {key: count * weight % total for key, weight in weights.items()}
    ranked = sorted(
        (key for key in weights if remainder[key]),
        key=lambda key: (held[key] <= targets[key], -remainder[key], key),
    )
    for key in ranked[: count - sum(targets.values())]:
        targets[key] += 1
    return targets


def _places(targets: Mapping[int, int], filled: Mapping[int, int], takers: Mapping[int, Seat]) -> list[int]:
    """The free places, one entry of a lane each; lanes take turns, those with the lightest load first."""
    places = [(n / takers[lane].weight, lane) for lane in targets for n in range(filled[lane], targets[lane])]
    return [lane for _, lane in sorted(places)]


def _counts(assignment: Mapping[int, int]) -> defaultdict[int, int]:
    counts: defaultdict[int, int] = defaultdict(int)
    for lane in assignment.values():
        counts[lane] += 1
    return counts


@dataclass(frozen=True, slots=True)
class Move:
    """A range that changes its lane."""

    range_id: int
    source: int
    target: int


def moves_between(before: Mapping[int, int], after: Mapping[int, int]) -> list[Move]:
    """What changes owners, most crowded lanes first and one of each lane in turn: so that any part of it helps."""
    queues: dict[int, list[Move]] = defaultdict(list)
    for r, lane in sorted(after.items()):
        if r in before and before[r] != lane:
            queues[before[r]].append(Move(r, before[r], lane))
    turns = [(-len(queue) + n, queue[n].source, queue[n]) for queue in queues.values() for n in range(len(queue))]
    return [move for _, _, move in sorted(turns, key=lambda turn: turn[:2])]
