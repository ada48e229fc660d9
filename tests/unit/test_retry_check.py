"""Retry policies and expiry as they are asked for: defaults, bounds, names of fields."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from service_world import CLUSTER, NOW_MS

from bucketsched.core.durations import DAY_MS
from bucketsched.core.errors import InvalidArgument
from bucketsched.core.idempotency import digest
from bucketsched.core.retry import DEFAULT_RETRY, RetryPolicy, next_try_ms
from bucketsched.core.retry_check import FINAL_ERRORS_MAX, LENGTH_MS_MAX, asked_policy, check_retry
from bucketsched.core.validation import Limits, NewTask, Placement, validate


def placed(**fields: Any) -> Placement:
    return validate(NewTask("t", **fields), Limits(), NOW_MS, CLUSTER.shards, CLUSTER.retention_ms)


def test_what_is_left_out_is_as_by_default_and_does_not_cut_short_what_was_asked_for() -> None:
    assert asked_policy(None, None, None, None, None) == replace(DEFAULT_RETRY, elapsed_ms_max=LENGTH_MS_MAX)
    slow = asked_policy(5, 3_600_000, None, None, None)
    check_retry(slow, "retry")
    assert slow.delay_ms_max == 3_600_000, "not the default's 5 min: no shorter than the first"
    assert all(next_try_ms(slow, tries, 30 * DAY_MS, 0, b"k") is not None for tries in range(1, 5))
    assert next_try_ms(slow, 5, 0, 0, b"k") is None
    assert asked_policy(1, 2, 3, 4, 5, ["E"]) == RetryPolicy(1, 2, 4, 5, 3.0, ("E",))


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"tries_max": 0}, "max_attempts"),
        ({"tries_max": 1_001}, "max_attempts"),
        ({"delay_ms_first": -1}, "initial_delay"),
        ({"delay_ms_first": LENGTH_MS_MAX + 1, "delay_ms_max": LENGTH_MS_MAX + 1}, "initial_delay"),
        ({"delay_ms_max": LENGTH_MS_MAX + 1}, "max_delay"),
        ({"delay_ms_first": 2_000, "delay_ms_max": 1_999}, "max_delay"),
        ({"elapsed_ms_max": -1}, "max_elapsed"),
        ({"elapsed_ms_max": LENGTH_MS_MAX + 1}, "max_elapsed"),
        ({"multiplier": 0.99}, "multiplier"),
        ({"multiplier": 100.1}, "multiplier"),
        ({"multiplier": math.nan}, "multiplier"),
        ({"multiplier": math.inf}, "multiplier"),
        ({"final_errors": ("E",) * (FINAL_ERRORS_MAX + 1)}, "non_retryable_errors"),
        ({"final_errors": ("",)}, "non_retryable_errors"),
        ({"final_errors": ("x" * 201,)}, "non_retryable_errors"),
        ({"final_errors": ("a\nb",)}, "non_retryable_errors"),
    ],
)
def test_what_can_not_be_is_named(wrong: dict[str, Any], field: str) -> None:
    policy = replace(DEFAULT_RETRY, **wrong)
    with pytest.raises(InvalidArgument) as caught:
        check_retry(policy, "retry")
    assert caught.value.field == f"retry.{field}"
    with pytest.raises(InvalidArgument) as caught:
        placed(retry=policy)
    assert caught.value.field == f"retry.{field}"


@pytest.mark.parametrize(
    "most",
    [
        {"tries_max": 1_000, "multiplier": 100.0, "elapsed_ms_max": LENGTH_MS_MAX, "delay_ms_max": LENGTH_MS_MAX},
        {"tries_max": 1, "multiplier": 1.0, "elapsed_ms_max": 0, "delay_ms_first": 0, "delay_ms_max": 0},
        {"final_errors": ("é" * 200,) * FINAL_ERRORS_MAX},
    ],
)
def test_the_bounds_themselves_can_be(most: dict[str, Any]) -> None:
    check_retry(replace(DEFAULT_RETRY, **most), "retry")


# ---------------------------------------------------------------- expiry


def test_a_task_expires_when_it_was_said_or_so_long_after_it_is_due() -> None:
    assert placed().expires_ms == 0
    assert placed(due_ms=NOW_MS + 5, start_by_ms=NOW_MS + 5).expires_ms == NOW_MS + 5
    assert placed(delay_ms=1_000, expire_after_ms=7).expires_ms == NOW_MS + 1_007
    assert placed(expire_after_ms=7).expires_ms == NOW_MS + 7
    assert placed(due_ms=-5_000, start_by_ms=0).expires_ms == 1, "0 would be never"
    assert placed(due_ms=-5_000, expire_after_ms=5).expires_ms == 1


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"due_ms": NOW_MS + 5, "start_by_ms": NOW_MS + 4}, "start_by"),
        ({"delay_ms": 5, "start_by_ms": NOW_MS + 4}, "start_by"),
        ({"start_by_ms": NOW_MS - 1}, "start_by"),
        ({"start_by_ms": NOW_MS + 400 * DAY_MS + 1}, "start_by"),
        ({"due_ms": NOW_MS - 5, "start_by_ms": NOW_MS - 6, "idempotency_key": "k"}, "start_by"),
        ({"expire_after_ms": 0}, "expire_after"),
        ({"expire_after_ms": -1}, "expire_after"),
        ({"expire_after_ms": 400 * DAY_MS + 1}, "expire_after"),
        ({"start_by_ms": NOW_MS + 5, "expire_after_ms": 5}, "expire_after"),
    ],
)
def test_an_expiry_that_can_not_be_is_named(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        placed(**fields)
    assert caught.value.field == field


def test_a_keyed_create_may_be_sent_again_when_it_would_have_expired() -> None:
    """What counts is the due time of the first one, and that its delay has not begun anew."""
    assert placed(delay_ms=1_000, start_by_ms=NOW_MS - 5, idempotency_key="k").expires_ms == NOW_MS - 5


# ---------------------------------------------------------------- digests


def test_a_key_is_not_to_be_used_with_another_policy_or_expiry() -> None:
    task = NewTask("t", metadata={"a": "b"})
    others = [
        replace(task, retry=DEFAULT_RETRY),
        *(
            replace(task, retry=replace(DEFAULT_RETRY, **changed))
            for changed in (
                {"tries_max": 11},
                {"delay_ms_first": 7},
                {"delay_ms_max": 400_000},
                {"elapsed_ms_max": 5},
                {"multiplier": 2.5},
                {"final_errors": ("a", "b")},
                {"final_errors": ("ab",)},
                {"final_errors": ('a", "b',)},
            )
        ),
        replace(task, start_by_ms=5),
        replace(task, expire_after_ms=5),
        replace(task, expire_after_ms=6),
    ]
    assert len({digest(each) for each in (task, *others)}) == len(others) + 1


def test_digests_of_tasks_without_them_are_what_they_were() -> None:
    """Keys that an older version has stored stand for years."""
    task = NewTask("t", payload=b"p", metadata={"a": "b"}, delay_ms=5, content_type="text/plain")
    assert digest(task).hex() == "0839ca7e2e163278bc7f9b2fd02379e7c959fd4cbd58a084504717d04bc669c6"
