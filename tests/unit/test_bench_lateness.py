"""What the demos conclude from what came."""

from __future__ import annotations

import pytest
from bench.demo_cluster import WINDOW_MS, failover
from bench.failover import WATCHED_S, Kill, cost_of
from bench.lateness import NS_PER_MS, Arrival, Percentiles, judge, percentiles
from bench.load import Creation
from bench.report import outcome
from bench.result import Result, median_ratio
from bench.trial import Trial
from hypothesis import given
from hypothesis import strategies as st


def at(task_id: str, ms: float) -> Arrival:
    return Arrival(task_id, int(ms * NS_PER_MS))


def trial(due_ms: dict[str, int], *arrivals: Arrival, errors: list[str] | None = None) -> Trial:
    return Trial(Creation(due_ms, errors or []), list(arrivals), judge(due_ms, list(arrivals)))


def test_all_on_time_is_clean() -> None:
    found = judge({"a": 100, "b": 200}, [at("a", 100), at("b", 203.5)])
    assert (found.tasks, found.lost, found.duplicate, found.early, found.stray) == (2, 0, 0, 0, 0)
    assert found.clean
    assert found.lateness == Percentiles(0, 3.5, 3.5, 3.5)


def test_what_did_not_come_is_lost() -> None:
    found = judge({"a": 100, "b": 200}, [at("a", 100)])
    assert (found.lost, found.clean) == (1, False)


def test_every_arrival_after_the_first_is_a_duplicate() -> None:
    found = judge({"a": 100}, [at("a", 101), at("a", 102), at("a", 103)])
    assert (found.lost, found.duplicate, found.clean) == (0, 2, False)


def test_a_duplicate_does_not_hide_a_loss() -> None:
    found = judge({"a": 100, "b": 100}, [at("a", 101), at("a", 102)])
    assert (found.lost, found.duplicate) == (1, 1)


def test_a_nanosecond_before_due_is_early() -> None:
    found = judge({"a": 100}, [Arrival("a", 100 * NS_PER_MS - 1)])
    assert (found.early, found.clean) == (1, False)


def test_what_was_not_asked_for_is_stray() -> None:
    found = judge({"a": 100}, [at("a", 101), at("x", 1)])
    assert (found.stray, found.duplicate, found.early, found.clean) == (1, 0, 0, True)


def test_lateness_counts_the_first_arrival() -> None:
    assert judge({"a": 100}, [at("a", 900), at("a", 105)]).lateness.max == 5


def test_percentiles_of_nothing_are_zero() -> None:
    assert percentiles([]) == Percentiles(0, 0, 0, 0)


def test_percentiles_are_values_that_occurred() -> None:
    assert percentiles(range(1, 101)) == Percentiles(50, 95, 99, 100)
    assert percentiles([7]) == Percentiles(7, 7, 7, 7)


@given(st.lists(st.integers(0, 10_000), min_size=1))
def test_percentiles_are_ordered_and_cover_their_share(values: list[int]) -> None:
    found = percentiles(values)
    assert found.p50 <= found.p95 <= found.p99 <= found.max == max(values)
    for share, value in ((0.5, found.p50), (0.95, found.p95), (0.99, found.p99)):
        assert sum(v <= value for v in values) >= share * len(values)
        assert sum(v < value for v in values) < share * len(values)


KILLED_MS = 10_000


def test_failover_is_the_worst_of_what_was_due_from_the_kill_on() -> None:
    due = {"before": 5_000, "after": 11_000, "late": 12_000}
    found = failover(trial(due, at("before", 5_900), at("after", 13_000), at("late", 12_010)), KILLED_MS * NS_PER_MS)
    assert found.max_ms == 2_000


def test_failover_includes_what_was_under_way_at_the_kill() -> None:
    found = failover(trial({"a": 9_990}, at("a", 12_490)), KILLED_MS * NS_PER_MS)
    assert found.max_ms == 2_500
    assert found.steady == Percentiles(0, 0, 0, 0)


def test_what_is_due_long_after_the_kill_is_steady_and_counts_for_the_worst() -> None:
    long_after = KILLED_MS + WINDOW_MS + 1
    due = {"before": 9_000, "window": 11_000, "after": long_after}
    came = (at("before", 9_007), at("window", 11_500), at("after", long_after + 600))
    found = failover(trial(due, *came), KILLED_MS * NS_PER_MS)
    assert found.max_ms == 600
    assert (found.steady.p50, found.steady.max) == (7, 600)


def test_a_trial_with_refused_creates_fails() -> None:
    assert trial({"a": 1}, at("a", 2)).passed
    assert not trial({"a": 1}, at("a", 2), errors=["unavailable"]).passed


def test_the_last_line_of_a_demo() -> None:
    found = outcome("embedded", trial({"a": 100, "b": 100}, at("a", 101.25), at("b", 99)))
    assert list(found) == ["mode", "tasks", "lost", "duplicate", "early", "p50_ms", "p99_ms", "max_ms"]
    assert found == {
        "mode": "embedded", "tasks": 2, "lost": 0, "duplicate": 0, "early": 1,
        "p50_ms": -1, "p99_ms": 1.25, "max_ms": 1.25,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "at_most", "sound", "reached"),
    [
        (1.5, False, True, True),
        (1.49, False, True, False),
        (1.49, True, True, True),
        (1.5, True, True, False),
        (9.9, False, False, False),
        (0.1, True, False, False),
    ],
)
def test_a_target_is_reached_only_by_a_sound_measurement(
    value: float, at_most: bool, sound: bool, reached: bool
) -> None:
    result = Result("it", "ratio", value, 1.5, at_most=at_most, sound=sound, figures={"n": 1})
    assert result.line() == {
        "measure": "it", "ratio": value, "target": "ratio < 1.5" if at_most else "ratio >= 1.5",
        "reached": reached, "n": 1,
    }  # fmt: skip


def test_ratios_are_taken_round_by_round() -> None:
    assert median_ratio([300, 10, 40], [100, 10, 20]) == 2
    with pytest.raises(ValueError, match="shorter"):
        median_ratio([1, 2], [1])


def test_a_kill_costs_what_was_due_or_under_way_from_then_on_until_the_victim_is_replaced() -> None:
    after_ms = int(WATCHED_S * 1000)
    due_ms = {"done": 800, "under way": 950, "due then": 1_200, "last": 1_000 + after_ms, "later": 1_001 + after_ms}
    found = cost_of(
        trial(
            due_ms,
            at("done", 990),
            at("under way", 1_040),
            at("due then", 1_500),
            at("last", 1_150 + after_ms),
            at("later", 9_000 + after_ms),
        ),
        int(1_000 * NS_PER_MS),
        32,
        {"dead": 20.0},
        {"marks": 75},
    )
    assert found == Kill(32, 300, 2, {"dead": 20.0}, {"marks": 75})
