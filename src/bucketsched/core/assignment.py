"""Which lane shall own which range: balanced by weight, and with as few moves as that allows.

A lane's fair share is `ranges * weight / all weights`. It gets that rounded down or up, never more and never less.
Of all such divisions the one is taken that leaves most ranges where they are. The result depends on the arguments only.
"""

from __future__ import annotations

from collections.abc import Mapping

Assignment = dict[int, int]
"""Range id -> lane."""


def assign(ranges: int, weights: Mapping[int, int], current: Mapping[int, int]) -> Assignment:
    """The lane of every range 0 .. `ranges` - 1; empty where there are no lanes.

    `weights`: lane -> weight >= 1. `current`: what is assigned now; lanes and ranges that no longer exist may be in it.
    """
    assert ranges >= 0, ranges
    assert all(weight >= 1 for weight in weights.values()), weights
    if not weights:
        return {}
    kept = {lane: [r for r in range(ranges) if current.get(r) == lane] for lane in sorted(weights)}
    targets = _targets(ranges, weights, {lane: len(own) for lane, own in kept.items()})
    assignment = {r: lane for lane, own in kept.items() for r in own[: targets[lane]]}
    places = _places(targets, {lane: min(len(own), targets[lane]) for lane, own in kept.items()}, weights)
    assignment.update(zip([r for r in range(ranges) if r not in assignment], places, strict=True))
    assert len(assignment) == ranges, (len(assignment), ranges)
    return dict(sorted(assignment.items()))


def _targets(ranges: int, weights: Mapping[int, int], held: Mapping[int, int]) -> dict[int, int]:
    """How many ranges each lane gets: its share rounded down, and one more for as many lanes as that leaves over.

    One more goes first to lanes that hold as much already, which saves a move each, then to the largest remainders.
    """
    total = sum(weights.values())
    targets = {lane: ranges * weight // total for lane, weight in weights.items()}
    remainder = {lane: ranges * weight % total for lane, weight in weights.items()}
    ranked = sorted(
        (lane for lane in weights if remainder[lane]),
        key=lambda lane: (held[lane] <= targets[lane], -remainder[lane], lane),
    )
    for lane in ranked[: ranges - sum(targets.values())]:
        targets[lane] += 1
    return targets


def _places(targets: Mapping[int, int], filled: Mapping[int, int], weights: Mapping[int, int]) -> list[int]:
    """The free places, one entry of a lane each; lanes take turns, those with the lightest load first."""
    places = [(n / weights[lane], lane) for lane in targets for n in range(filled[lane], targets[lane])]
    return [lane for _, lane in sorted(places)]
