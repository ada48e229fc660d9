"""Whose time is right: what most say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketsched.core.clock_votes import Interval, majority

FAR = Interval(900, 910)


@pytest.mark.parametrize(
    ("witnesses", "own", "expected"),
    [
        ([Interval(0, 10)], Interval(4, 6), Interval(0, 10)),
        ([Interval(0, 10)], FAR, Interval(0, 10)),  # of two that disagree the witness is believed
        ([Interval(0, 10), FAR], Interval(5, 6), Interval(5, 6)),  # of three, one is wrong
        ([Interval(0, 10), Interval(5, 15)], FAR, Interval(5, 10)),
        ([Interval(0, 10), Interval(50, 60)], FAR, None),  # all of them differ
        ([Interval(0, 10), Interval(5, 15), FAR], Interval(500, 501), Interval(5, 10)),
        ([Interval(0, 10), Interval(5, 15), Interval(8, 20)], Interval(500, 501), Interval(5, 15)),
        ([Interval(0, 10), FAR, Interval(50, 60)], Interval(5, 6), None),
        ([Interval(0, 10), Interval(0, 10), FAR, FAR], Interval(5, 6), Interval(5, 6)),
        ([Interval(0, 20), Interval(0, 2), Interval(18, 20)], Interval(500, 501), Interval(0, 20)),  # either may be
    ],
)
def test_more_than_half_of_the_votes_decide(witnesses: list[Interval], own: Interval, expected: Interval) -> None:
    assert majority(witnesses, own) == expected


def test_the_distance_tells_who_is_ahead() -> None:
    assert Interval(0, 10).distance(Interval(12, 20)) == 2
    assert Interval(0, 10).distance(Interval(-20, -5)) == -5
    assert Interval(0, 10).distance(Interval(10, 20)) == 0
    assert [Interval(0, 10).nearest(value) for value in (-3, 4, 30)] == [0, 4, 10]


INTERVALS = st.tuples(st.integers(-100, 100), st.integers(0, 50)).map(lambda pair: Interval(pair[0], sum(pair)))


@given(st.integers(-100, 100), st.lists(INTERVALS, max_size=7), INTERVALS, st.data())
def test_the_truth_is_in_it_if_most_votes_are_right(
    truth: int, others: list[Interval], own: Interval, data: st.DataObject
) -> None:
    right = len(others) + 1  # more than half, whatever the others and the own clock say
    around = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda p: Interval(truth - p[0], truth + p[1]))
    witnesses = others + data.draw(st.lists(around, min_size=right, max_size=right))
    found = majority(witnesses, own)
    assert found is not None
    assert found.low <= truth <= found.high


@given(st.lists(INTERVALS, max_size=6), INTERVALS)
def test_what_it_says_is_said_by_more_than_half(witnesses: list[Interval], own: Interval) -> None:
    found = majority(witnesses, own)
    points = {edge for interval in (*witnesses, own) for edge in (interval.low, interval.high)}

    def votes(at: int) -> int:
        return sum(2 * (i.low <= at <= i.high) for i in witnesses) + (own.low <= at <= own.high)

    most = {at for at in points if 2 * votes(at) > 2 * len(witnesses) + 1}
    assert found == (Interval(min(most), max(most)) if most else None)
