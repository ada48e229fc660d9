"""The assignment is balanced, moves as little as that allows, and depends on nothing but its arguments."""

from __future__ import annotations

from collections import Counter
from itertools import product

from hypothesis import example, given
from hypothesis import strategies as st

from bucketsched.core.assignment import (
    ANY_IMBALANCE,
    IMBALANCE_SHARE,
    Move,
    Seat,
    Standing,
    assign,
    calm,
    distribute,
    fair_shares,
    moves_between,
)
from bucketsched.core.flapping import Attendance, FlappingLimits

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


# ---------------------------------------------------------------- zones, standings, small imbalances


def seats_of(standings: st.SearchStrategy[Standing]) -> st.SearchStrategy[list[Seat]]:
    seat = st.builds(Seat, LANES, st.integers(1, 5), st.sampled_from(["", "a", "b", "c"]), standings)
    return st.lists(seat, min_size=1, max_size=10, unique_by=lambda seat: seat.lane)


OPEN_SEATS, SEATS = seats_of(st.just(Standing.OPEN)), seats_of(st.sampled_from(Standing))
SHARES = st.sampled_from([None, 0.0, IMBALANCE_SHARE, 0.5, ANY_IMBALANCE])


def between(n: int, count: int, weight: int, total: int) -> bool:
    return count * weight // total <= n <= -(-count * weight // total)


@given(RANGES, OPEN_SEATS, CURRENT)
def test_zones_have_their_share_and_in_each_the_lanes(ranges: int, seats: list[Seat], current: dict[int, int]) -> None:
    counts = Counter(distribute(ranges, seats, current).values())
    zones: dict[str, list[Seat]] = {}
    for seat in seats:
        zones.setdefault(seat.zone, []).append(seat)
    total = sum(seat.weight for seat in seats)
    for zone in zones.values():
        weight, got = sum(seat.weight for seat in zone), sum(counts[seat.lane] for seat in zone)
        assert between(got, ranges, weight, total)
        assert all(between(counts[seat.lane], got, seat.weight, weight) for seat in zone)


@given(RANGES, SEATS, CURRENT, SHARES)
def test_all_ranges_have_owners_of_the_best_standing_there_is(
    ranges: int, seats: list[Seat], current: dict[int, int], share: float | None
) -> None:
    assignment = distribute(ranges, seats, current, share)
    assert list(assignment) == list(range(ranges))
    best = min(seat.standing for seat in seats)
    standing = {seat.lane: seat.standing for seat in seats}
    for range_id, lane in assignment.items():
        kept = current.get(range_id) == lane
        assert standing[lane] is best or (kept and (standing[lane] is not Standing.DRAINED or best is Standing.AILING))


@given(RANGES, SEATS, CURRENT, SHARES)
def test_who_is_cordoned_or_held_off_keeps_what_he_has(
    ranges: int, seats: list[Seat], current: dict[int, int], share: float | None
) -> None:
    assignment = distribute(ranges, seats, current, share)
    if any(seat.standing is Standing.OPEN for seat in seats):
        keeps = {seat.lane for seat in seats if seat.standing in (Standing.CORDONED, Standing.HELD_OFF)}
        assert all(assignment[r] == lane for r, lane in current.items() if r < ranges and lane in keeps)


@given(RANGES, seats_of(st.sampled_from([Standing.AILING, Standing.DRAINED])), CURRENT, SHARES)
def test_nothing_that_has_an_owner_moves_to_one_that_ails(
    ranges: int, seats: list[Seat], current: dict[int, int], share: float | None
) -> None:
    assignment, standing = distribute(ranges, seats, current, share), {seat.lane: seat.standing for seat in seats}
    for range_id, lane in assignment.items():
        if current.get(range_id) in standing and standing[lane] is Standing.AILING:
            assert current[range_id] == lane


def test_one_that_ails_keeps_what_it_has_beside_a_newcomer() -> None:
    before = {0: 0, 1: 0, 2: 1, 3: 1}
    seats = [Seat(0, standing=Standing.AILING), Seat(1), Seat(2)]
    assert distribute(4, seats, before, IMBALANCE_SHARE) == {0: 0, 1: 0, 2: 1, 3: 2}
    assert distribute(5, [Seat(0, standing=Standing.AILING), Seat(1)], before) == before | {4: 1}


@given(RANGES, SEATS, CURRENT, SHARES)
def test_a_plan_that_was_carried_out_stays(
    ranges: int, seats: list[Seat], current: dict[int, int], share: float | None
) -> None:
    assignment = distribute(ranges, seats, current, share)
    assert distribute(ranges, seats, assignment, share) == assignment


@given(RANGES, OPEN_SEATS, CURRENT)
def test_with_an_allowance_nothing_moves_needlessly_and_nobody_is_far_from_his_share(
    ranges: int, seats: list[Seat], current: dict[int, int]
) -> None:
    before = distribute(ranges, seats, current)
    after = distribute(ranges, seats, before | current, IMBALANCE_SHARE)
    mixed = {r: (before | current)[r] for r in range(ranges)}
    lanes = {seat.lane for seat in seats}
    if set(mixed.values()) <= lanes and calm(mixed, seats, IMBALANCE_SHARE):
        assert after == mixed
    counts, zones = Counter(after.values()), len({seat.zone for seat in seats})
    for lane, share in fair_shares(ranges, seats).items():
        assert abs(counts[lane] - share) <= max(1.0, IMBALANCE_SHARE * share) + (zones > 1), (lane, share)


def test_a_lost_zone_is_made_up_for_by_the_others_alone() -> None:
    seats = [Seat(n, 1, "abc"[n // 2]) for n in range(6)]
    before = distribute(60, seats, {})
    assert Counter(before.values()) == dict.fromkeys(range(6), 10)
    after = distribute(60, seats[2:], before, IMBALANCE_SHARE)
    assert Counter(after.values()) == dict.fromkeys(range(2, 6), 15)
    assert {source for source, _ in moves(before, after).values()} == {0, 1}


def test_a_zone_of_fewer_lanes_is_not_given_more_than_its_weight() -> None:
    seats = [Seat(0, 1, "a"), Seat(1, 1, "b"), Seat(2, 1, "b")]
    assert Counter(distribute(60, seats, {}).values()) == {0: 20, 1: 20, 2: 20}


def test_a_small_imbalance_stays_and_a_newcomer_gets_his_share() -> None:
    uneven = dict.fromkeys(range(34), 0) | dict.fromkeys(range(34, 64), 1)
    pair = [Seat(0), Seat(1)]
    assert distribute(64, pair, uneven, IMBALANCE_SHARE) == uneven
    assert Counter(distribute(64, pair, uneven).values()) == {0: 32, 1: 32}
    assert Counter(distribute(64, [*pair, Seat(2)], uneven, IMBALANCE_SHARE).values()) == {0: 22, 1: 21, 2: 21}
    assert Counter(distribute(2, pair, {0: 0, 1: 0}, IMBALANCE_SHARE).values()) == {0: 1, 1: 1}


def test_moves_are_listed_so_that_any_part_of_them_helps() -> None:
    before = {0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 5: 2}
    after = {0: 2, 1: 2, 2: 0, 3: 1, 4: 2, 5: 2, 6: 1}
    assert moves_between(before, after) == [Move(0, 0, 2), Move(1, 0, 2), Move(4, 1, 2)]
    assert moves_between(before, before) == []


# ---------------------------------------------------------------- who came and went too often


LIMITS = FlappingLimits(window_s=100, free_joinings=2, backoff_s=5, backoff_s_max=15)


def test_a_node_that_keeps_joining_waits_longer_each_time() -> None:
    attendance = Attendance(LIMITS)
    waits = []
    for n in range(6):
        attendance.see(n * 10.0, [("flapping", n), ("steady", 0)])
        waits.append(attendance.held_off_s(n * 10.0, "flapping"))
        attendance.see(n * 10.0 + 5, [("steady", 0)])
    assert waits == [0, 0, 5, 10, 15, 15]
    assert attendance.held_off_s(50.0, "steady") == 0
    assert attendance.held_off_s(61.0, "flapping") == 4
    assert attendance.held_off_s(65.0, "flapping") == 0
    assert attendance.held_off_s(50.0, "never seen") == 0


def test_old_joinings_are_forgotten() -> None:
    attendance = Attendance(LIMITS)
    for n in range(4):
        attendance.see(n, [("a", n)])
        attendance.see(n + 0.5, [])
    attendance.see(200.0, [("a", 9)])
    assert attendance.held_off_s(200.0, "a") == 0


@example([(13.772388150412965, True), (1.0, False), (0.1, True), (0.0, False), (0.1, True), (0.3, False), (0.7, True)])
@given(st.lists(st.tuples(st.floats(0, 50), st.booleans()), max_size=40))
def test_nobody_waits_longer_than_the_limit_or_without_having_joined_anew(events: list[tuple[float, bool]]) -> None:
    attendance, now, joinings, there = Attendance(LIMITS), 0.0, 0, False
    for after_s, present in events:
        now += after_s
        joinings += present and not there
        there = present
        attendance.see(now, [("a", joinings)] if present else [])
        wait = attendance.held_off_s(now, "a")
        assert 0 <= wait <= LIMITS.backoff_s_max
        assert joinings > LIMITS.free_joinings or wait == 0
