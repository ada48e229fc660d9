"""Back-off with full jitter."""

from __future__ import annotations

from statistics import mean

from hypothesis import given
from hypothesis import strategies as st

from bucketsched.core.retry import RetryPolicy, delay_ms, next_try_ms

POLICY = RetryPolicy(tries_max=5, delay_ms_first=1_000, delay_ms_max=6_000, elapsed_ms_max=60_000)


@given(st.integers(1, 10**9), st.binary(max_size=60), st.integers(0, 10**6), st.integers(0, 10**9))
def test_a_pause_is_within_its_limits_and_never_overflows(attempt: int, key: bytes, first: int, longest: int) -> None:
    policy = RetryPolicy(delay_ms_first=first, delay_ms_max=longest)
    ceiling = min(longest, first * 2 ** min(attempt - 1, 100))
    assert 0 <= delay_ms(policy, attempt, key) <= ceiling


def test_the_same_failure_has_the_same_pause_and_others_have_others() -> None:
    assert delay_ms(POLICY, 3, b"a/0/1") == delay_ms(POLICY, 3, b"a/0/1")
    assert len({delay_ms(POLICY, 3, b"%d/0/1" % task) for task in range(100)}) > 90


def test_pauses_are_spread_evenly_below_a_ceiling_that_doubles() -> None:
    means = [mean(delay_ms(POLICY, attempt, b"%d" % task) for task in range(4_000)) for attempt in (1, 2, 3, 4, 50)]
    for found, ceiling in zip(means, (1_000, 2_000, 4_000, 6_000, 6_000), strict=True):
        assert abs(found - ceiling / 2) < ceiling / 20


def test_tries_are_counted() -> None:
    assert next_try_ms(POLICY, 4, 0, 0, b"a") is not None
    assert next_try_ms(POLICY, 5, 0, 0, b"a") is None


def test_no_try_begins_after_the_time_is_used_up() -> None:
    pause_ms = next_try_ms(POLICY, 1, 50_000, 0, b"a")
    assert pause_ms is not None
    assert next_try_ms(POLICY, 1, 60_000 - pause_ms, 0, b"a") == pause_ms
    assert next_try_ms(POLICY, 1, 60_000 - pause_ms + 1, 0, b"a") is None


def test_what_the_other_side_asks_for_comes_on_top() -> None:
    plain = next_try_ms(POLICY, 1, 0, 0, b"a")
    assert plain is not None
    assert next_try_ms(POLICY, 1, 0, 7_000, b"a") == 7_000 + plain
    assert next_try_ms(POLICY, 1, 0, 60_001, b"a") is None
