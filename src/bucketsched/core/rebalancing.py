"""Moves that an operator has ordered: carried out in order, a few at a time, each for as long as it makes sense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from .assignment import Assignment, Move


@dataclass(slots=True)
class Progress:
    """What has become of ordered moves."""

    done: list[Move] = field(default_factory=list)
    """The target has the range."""
    moving: list[Move] = field(default_factory=list)
    """The plan gives the range to the target, which does not have it yet."""
    waiting: list[Move] = field(default_factory=list)
    """Still planned to stay at its source."""
    skipped: list[Move] = field(default_factory=list)
    """Something else was planned for it meanwhile, or the target is gone or takes nothing any more."""
    failed: list[Move] = field(default_factory=list)
    """The target did not take the range within MOVE_S_MAX: it was planned back."""

    @property
    def over(self) -> bool:
        """Nothing is left to be done."""
        return not self.moving and not self.waiting


def progress(
    moves: Sequence[Move],
    planned: Mapping[int, int],
    held: Mapping[int, int],
    takers: AbstractSet[int],
    failed: AbstractSet[int] = frozenset(),
) -> Progress:
    """`planned`: range -> lane; `held`: range -> the lane whose lease stands; `takers`: lanes that may get ranges;
    `failed`: the ranges whose moves have failed."""
    found = Progress()
    for move in moves:
        lane = planned.get(move.range_id)
        if move.range_id in failed:
            found.failed.append(move)
        elif lane == move.target and held.get(move.range_id) == move.target:
            found.done.append(move)
        elif lane == move.target:
            found.moving.append(move)
        elif lane == move.source and move.target in takers:
            found.waiting.append(move)
        else:
            found.skipped.append(move)
    return found


def advance(planned: Mapping[int, int], found: Progress, at_once: int) -> Assignment:
    """The plan with the next moves in it: never more than `at_once` are under way."""
    room = max(0, at_once - len(found.moving))
    return {**planned, **{move.range_id: move.target for move in found.waiting[:room]}}


def planned_back(planned: Mapping[int, int], failed: Sequence[Move], lanes: AbstractSet[int]) -> Assignment:
    """The plan without moves that have failed: their ranges stay where they were, if that lane still is there."""
    return {**planned, **{move.range_id: move.source for move in failed if move.source in lanes}}


MOVE_S_MAX = 60.0
"""How long the target of a move may take to hold the range's lease; a move takes a second or two."""
AT_ONCE_DEFAULT, AT_ONCE_MAX = 8, 64
"""Moves that may be under way at the same time."""
PAUSE_MS, PAUSE_MS_EACH = 40, 2


def expected_pause_ms(at_once: int) -> int:
    """For how long nothing of a range is dispatched while it moves, about.

    The new owner has loaded it before; what remains is the end of a transaction, marks and checkpoint, the lease and
    the journal's last records: PAUSE_MS, and PAUSE_MS_EACH for each move at the same time, which share processors.
    """
    return PAUSE_MS + PAUSE_MS_EACH * at_once
