"""The assignment is balanced, moves as little as that allows, and depends on nothing but its arguments."""

from __future__ import annotations

from collections import Counter
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from bucketsched.core.assignment import assign

LANES = st.integers(0, 31)
WEIGHTS = st.dictionaries(LANES, st.integers(1, 10), min_size=1, max_size=10)
EQUAL = st.sets(LANES, min_size=1, max_size=12).map(lambda lanes: dict.fromkeys(lanes, 1))
CURRENT = st.dictionaries(st.integers(0, 80), LANES, max_size=80)
RANGES = st.integers(0, 70)


def moves(before: dict[int, int], after: dict[int, int]) -> dict[int, tuple[int, int]]:
    return {r: (before[r], lane) for r, lane in after.items() if r in before and before[r] != lane}


def fewest_moves(ranges: int, weights: dict[int, int], current: dict[int, int]) -> int:
    """By trying every division in which each lane has its share, rounded down or up."""
    total = sum(weights.values())
    floors = {lane: ranges * w // total for lane, w in weights.items()}
    choices = [
        range(floors[lane], floors[lane] + (2 if ranges * w % total else 1)) for lane, w in sorted(weights.items())
    ]
    held = Counter(lane for r, lane in current.items() if r < ranges)
    divisions = [d for d in product(*choices) if sum(d) == ranges]
    return min(
        ranges - sum(min(held[lane], n) for lane, n in zip(sorted(weights), division, strict=True))
        for division in divisions
    )


@given(RANGES, WEIGHTS, CURRENT)
def test_every_range_has_a_lane_and_no_lane_more_or_less_than_its_share(
    ranges: int, weights: dict[int, int], current: dict[int, int]
) -> None:
    assignment = assign(ranges, weights, current)
    assert list(assignment) == list(range(ranges))
    counts, total = Counter(assignment.values()), sum(weights.values())
    for lane, weight in weights.items():
        assert ranges * weight // total <= counts[lane] <= -(-ranges * weight // total)


@given(st.integers(0, 30), st.dictionaries(LANES, st.integers(1, 10), min_size=1, max_size=6), CURRENT)
def test_no_division_moves_less(ranges: int, weights: dict[int, int], current: dict[int, int]) -> None:
    assignment = assign(ranges, weights, current)
    moved = sum(current.get(r) != lane for r, lane in assignment.items())
    assert moved == fewest_moves(ranges, weights, current)


@given(RANGES, WEIGHTS, CURRENT)
def test_what_is_assigned_well_stays(ranges: int, weights: dict[int, int], current: dict[int, int]) -> None:
    assignment = assign(ranges, weights, current)
    assert assign(ranges, weights, assignment) == assignment


@given(RANGES, EQUAL, CURRENT, LANES)
def test_a_new_lane_takes_and_nobody_else_does(
    ranges: int, weights: dict[int, int], current: dict[int, int], new: int
) -> None:
    others = {lane: 1 for lane in weights if lane != new} or {new + 1: 1}
    before = assign(ranges, others, current)
    after = assign(ranges, others | {new: 1}, before)
    assert all(lane == new for _, lane in moves(before, after).values())
    assert len(moves(before, after)) <= -(-ranges // (len(others) + 1))


@given(RANGES, EQUAL, CURRENT, st.data())
def test_only_the_ranges_of_a_lane_that_left_move(
    ranges: int, weights: dict[int, int], current: dict[int, int], data: st.DataObject
) -> None:
    before = assign(ranges, weights, current)
    left = data.draw(st.sampled_from(sorted(weights)))
    after = assign(ranges, {lane: 1 for lane in weights if lane != left}, before)
    assert all(lane == left for lane, _ in moves(before, after).values())


@given(RANGES, WEIGHTS, CURRENT)
def test_order_of_arguments_does_not_matter(ranges: int, weights: dict[int, int], current: dict[int, int]) -> None:
    backwards = dict(reversed(weights.items())), dict(reversed(current.items()))
    assert assign(ranges, weights, current) == assign(ranges, *backwards)


def test_a_first_plan_deals_the_ranges_out_in_turn() -> None:
    assert assign(6, {0: 1, 1: 1, 2: 1}, {}) == {0: 0, 1: 1, 2: 2, 3: 0, 4: 1, 5: 2}


def test_weights_count() -> None:
    assert Counter(assign(8, {0: 3, 1: 1}, {}).values()) == {0: 6, 1: 2}


def test_without_lanes_nothing_is_assigned() -> None:
    assert assign(4, {}, {0: 1}) == {}
