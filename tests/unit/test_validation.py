"""What a task may be, and what is said of one that may not."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketsched.core import task_id as ids
from bucketsched.core.durations import DAY_MS, duration_ms, in_words, seconds_ms, timestamp_ms
from bucketsched.core.errors import InvalidArgument
from bucketsched.core.validation import (
    Limits,
    NewTask,
    Placement,
    check_name,
    check_range,
    check_topic,
    validate,
)

NOW_MS = 1_764_472_099_123
SHARDS = 256
RETENTION_MS = 90 * DAY_MS
LIMITS = Limits()


def place(limits: Limits = LIMITS, now_ms: int = NOW_MS, retention_ms: int = RETENTION_MS, **task: Any) -> Placement:
    return validate(NewTask(**{"type": "mail.send", **task}), limits, now_ms, SHARDS, retention_ms)


def refused(limits: Limits = LIMITS, now_ms: int = NOW_MS, retention_ms: int = RETENTION_MS, **task: Any) -> str:
    """The message, after checking the field: name it as `_field`."""
    field = task.pop("_field")
    with pytest.raises(InvalidArgument) as caught:
        place(limits, now_ms, retention_ms, **task)
    assert caught.value.field == field
    return caught.value.message


def minted(due_ms: int, shard: int = 7) -> str:
    return ids.text(ids.mint(due_ms, shard, 12345))


# ---------------------------------------------------------------- names, types


@pytest.mark.parametrize("field", ["namespace", "queue"])
@pytest.mark.parametrize("name", ["a", "0", "orders", "a.b_c-D", "x" * 100])
def test_plain_names_are_taken(field: str, name: str) -> None:
    place(**{field: name})


@pytest.mark.parametrize("field", ["namespace", "queue"])
@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "-a", "_a", "a/b", "a:b", "a b", "%2F", "a?b#c", "<script>", "a\n", "a\0b", "\ud800"),
        *("日本", "caf\u00e9", "cafe\u0301", "x" * 101, "x" * 2**20),
    ],
)
def test_names_that_break_paths_pages_or_topics_are_refused(field: str, name: str) -> None:
    message = refused(**{field: name}, _field=field)
    assert "1 to 100" in message
    assert len(message) < 200, "what was sent is not echoed"


@pytest.mark.parametrize("type_", ["a", "mail.send", "Großes Paket 📦", "a/b:c", "x" * 200])
def test_types_are_free_text(type_: str) -> None:
    place(type=type_)


@pytest.mark.parametrize("type_", ["", "x" * 201, "a\0", "a\n", "\x7f", "a\x85b", "\ud800", "\udfff!"])
def test_types_without_length_or_with_control_characters_are_refused(type_: str) -> None:
    assert "1 to 200" in refused(type=type_, _field="type")


def test_topics_of_kafka_or_bucketsched_itself_are_refused() -> None:
    check_topic("orders.v1")
    for topic in ("", ".", "..", "a/b", "x" * 241, "__transaction_state", "bucketsched-1-journal", "a\n"):
        with pytest.raises(InvalidArgument):
            check_topic(topic)


def test_numbers_have_bounds() -> None:
    check_range(0, 0, 5, "partitions")
    check_range(5, 0, 5, "partitions")
    for value in (-1, 6):
        with pytest.raises(InvalidArgument, match=rf"partitions: must be 0 to 5, is {value}"):
            check_range(value, 0, 5, "partitions")


# ---------------------------------------------------------------- payload, metadata, content type


def test_a_payload_may_be_anything_up_to_its_limit() -> None:
    place(payload=b"")
    place(payload=bytes(range(256)) * 256)
    message = refused(payload=b"x" * (64 * 1024 + 1), _field="payload")
    assert message == "must be at most 65536 bytes, has 65537"
    place(Limits(payload_bytes_max=0), payload=b"")
    refused(Limits(payload_bytes_max=0), payload=b"x", _field="payload")


@pytest.mark.parametrize("key", ["a", "X-Tenant", "trace_id", "a.b", "!#$%&'*+-.^_`|~", "k" * 100])
def test_metadata_keys_are_http_tokens(key: str) -> None:
    place(metadata={key: "v"})


@pytest.mark.parametrize("key", ["", "a b", "a:b", "a/b", "ä", "a\n", "\0", '"', "(", "k" * 101, "\ud800"])
def test_metadata_keys_that_no_header_can_carry_are_refused(key: str) -> None:
    assert "keys of 1 to 100" in refused(metadata={key: "v"}, _field="metadata")


@pytest.mark.parametrize("value", ["", " ", "plain", "日本 📦", "a:b;c=d"])
def test_metadata_values_are_text(value: str) -> None:
    place(metadata={"k": value})


@pytest.mark.parametrize("value", ["\0", "a\nb", "\r", "\t", "\x7f", "\x9f", "\ud800", "ok\udc00"])
def test_metadata_values_with_control_characters_or_lone_surrogates_are_refused(value: str) -> None:
    assert "'k'" in refused(metadata={"k": value}, _field="metadata")


def test_metadata_keys_that_differ_in_case_only_would_be_one_http_header() -> None:
    assert "upper and lower case" in refused(metadata={"Tenant": "a", "tenant": "b"}, _field="metadata")


def test_metadata_is_limited_in_number_and_in_utf8_bytes() -> None:
    limits = Limits(metadata_entries_max=2, metadata_bytes_max=10)
    place(limits, metadata={"a": "1234", "b": "1234"})
    assert "at most 2 entries" in refused(limits, metadata={"a": "", "b": "", "c": ""}, _field="metadata")
    assert "has 11" in refused(limits, metadata={"a": "1234", "b": "12345"}, _field="metadata")
    place(limits, metadata={"a": "日本日"})
    assert "has 11" in refused(limits, metadata={"ab": "日本日"}, _field="metadata")


@pytest.mark.parametrize(
    "value", ["", "application/json", "text/plain; charset=utf-8", 'a/b;x="y z"', "application/vnd.a+json;v=1;q=2"]
)
def test_media_types_are_taken(value: str) -> None:
    place(content_type=value)


@pytest.mark.parametrize(
    "value", ["json", "/", "a/", "a/b;", "a/b; x", "a/b\n", "a b/c", "a/b;x=\0", "a/" + "b" * 199, "ä/b"]
)
def test_what_is_no_media_type_is_refused(value: str) -> None:
    refused(content_type=value, _field="content_type")


# ---------------------------------------------------------------- when


def test_neither_due_time_nor_delay_is_now() -> None:
    assert place() == Placement(NOW_MS, NOW_MS, None)


@given(st.integers(0, 400 * DAY_MS))
def test_a_delay_is_kept_to_the_millisecond(delay_ms: int) -> None:
    assert place(delay_ms=delay_ms) == Placement(NOW_MS + delay_ms, NOW_MS + delay_ms, None)


@pytest.mark.parametrize("delay_ms", [2**31 - 1, 2**31, 25 * DAY_MS, 30 * DAY_MS, 399 * DAY_MS])
def test_delays_beyond_32_bits_of_milliseconds_stay_in_the_future(delay_ms: int) -> None:
    assert place(delay_ms=delay_ms).due_ms == NOW_MS + delay_ms


@pytest.mark.parametrize("delay_ms", [2**63 - 1, 2**63, 2**64 + 5, 3650 * DAY_MS, 400 * DAY_MS + 1])
def test_delays_that_are_too_long_are_refused_and_never_wrap_into_the_past(delay_ms: int) -> None:
    assert refused(delay_ms=delay_ms, _field="delay") == "must be at most 400 days"


@pytest.mark.parametrize(("days", "inside", "outside"), [(30, 29, 31), (400, 399, 401), (0.5, 0.4, 0.6)])
def test_a_configured_limit_is_honoured_exactly_and_named(days: float, inside: float, outside: float) -> None:
    limits = Limits(delay_ms_max=round(days * DAY_MS))
    for accepted in (inside, days):
        place(limits, delay_ms=round(accepted * DAY_MS))
        place(limits, due_ms=NOW_MS + round(accepted * DAY_MS))
    for too_long in (round(days * DAY_MS) + 1, round(outside * DAY_MS)):
        for message in (
            refused(limits, delay_ms=too_long, _field="delay"),
            refused(limits, due_ms=NOW_MS + too_long, _field="due_time"),
        ):
            assert f"at most {in_words(round(days * DAY_MS))}" in message


def test_a_negative_delay_is_refused() -> None:
    assert refused(delay_ms=-1, _field="delay") == "must not be negative"


def test_due_time_and_delay_exclude_each_other() -> None:
    refused(due_ms=NOW_MS, delay_ms=0, _field="delay")


@given(st.integers(timestamp_ms(-62_135_596_800, 0, "x"), NOW_MS))
def test_a_due_time_in_the_past_runs_now_and_is_remembered(due_ms: int) -> None:
    assert place(due_ms=due_ms) == Placement(NOW_MS, due_ms, None)


def test_the_years_2038_and_9999() -> None:
    year_2038 = timestamp_ms(2**31, 0, "due_time")
    refused(due_ms=year_2038, _field="due_time")
    assert place(Limits(delay_ms_max=36_500 * DAY_MS), due_ms=year_2038).due_ms == 2**31 * 1000
    year_9999 = timestamp_ms(253_402_300_799, 999_999_999, "due_time")
    refused(Limits(delay_ms_max=36_500 * DAY_MS), due_ms=year_9999, _field="due_time")


# ---------------------------------------------------------------- ids from clients


def test_an_id_for_exactly_the_due_time_decides_the_place() -> None:
    due_ms = NOW_MS + 60_001
    assert place(due_ms=due_ms, task_id=minted(due_ms)) == Placement(due_ms, due_ms, ids.mint(due_ms, 7, 12345))


def test_an_id_is_taken_in_capitals_too() -> None:
    due_ms = NOW_MS + 60_001
    assert place(due_ms=due_ms, task_id=minted(due_ms).upper()).task_id == ids.mint(due_ms, 7, 12345)


@pytest.mark.parametrize("off_ms", [-1, 1, 60_000, -60_000, DAY_MS])
def test_an_id_for_another_due_time_is_refused(off_ms: int) -> None:
    due_ms = NOW_MS + 2 * DAY_MS
    refused(due_ms=due_ms, task_id=minted(due_ms + off_ms), _field="task_id")


def test_a_retry_of_a_task_that_is_due_meanwhile_keeps_its_place_in_the_past() -> None:
    due_ms = NOW_MS - 3_600_000
    assert place(due_ms=due_ms, task_id=minted(due_ms)).due_ms == due_ms


def test_an_id_minted_for_the_present_of_a_past_due_time() -> None:
    past_ms = NOW_MS - DAY_MS
    for minted_ms in (NOW_MS, NOW_MS - 3_600_000, NOW_MS + 60_000):
        assert place(due_ms=past_ms, task_id=minted(minted_ms))[:2] == (minted_ms, past_ms)
    refused(due_ms=past_ms, task_id=minted(NOW_MS + 60_001), _field="task_id")
    refused(due_ms=past_ms, task_id=minted(past_ms - 1), _field="task_id")


@pytest.mark.parametrize("delay", [{}, {"delay_ms": 0}, {"delay_ms": DAY_MS}])
def test_with_a_delay_the_id_says_when_within_ten_minutes(delay: dict[str, int]) -> None:
    asked_ms = NOW_MS + delay.get("delay_ms", 0)
    for drift_ms in (-600_000, -1, 0, 1, 600_000):
        due_ms = asked_ms + drift_ms
        assert place(**delay, task_id=minted(due_ms))[:2] == (due_ms, due_ms)
    for drift_ms in (-600_001, 600_001):
        refused(**delay, task_id=minted(asked_ms + drift_ms), _field="task_id")


def test_an_id_whose_record_has_expired_is_refused() -> None:
    oldest_ms = NOW_MS - RETENTION_MS + DAY_MS
    place(due_ms=oldest_ms, task_id=minted(oldest_ms))
    assert "expired" in refused(due_ms=oldest_ms - 1, task_id=minted(oldest_ms - 1), _field="task_id")
    short_ms = 2 * 3_600_000
    place(retention_ms=short_ms, due_ms=NOW_MS, task_id=minted(NOW_MS))


@pytest.mark.parametrize(
    "task_id",
    [" ", "a", "a/b", "a:b", "%2F", "..", "日本", "x" * 36, "x" * 300, "x" * 2**20, minted(NOW_MS) + "\n", "\0" * 36],
)
def test_ids_in_other_alphabets_are_refused(task_id: str) -> None:
    message = refused(due_ms=NOW_MS, task_id=task_id, _field="task_id")
    assert len(message) < 200


def test_an_id_of_a_larger_cluster_is_refused() -> None:
    refused(due_ms=NOW_MS, task_id=minted(NOW_MS, shard=256), _field="task_id")


# ---------------------------------------------------------------- instants and durations


@given(st.integers(-62_135_596_800, 253_402_300_799), st.integers(0, 999_999_999))
def test_timestamps_round_up_to_the_next_millisecond(seconds: int, nanos: int) -> None:
    exact_ns = seconds * 10**9 + nanos
    ms = timestamp_ms(seconds, nanos, "due_time")
    assert ms * 10**6 - 10**6 < exact_ns <= ms * 10**6


@pytest.mark.parametrize(
    ("nanos", "ms"),
    [(0, 0), (1, 1), (1_000_000, 1), (1_000_001, 2), (500_000_000, 500), (999_000_000, 999), (999_999_999, 1000)],
)
def test_a_due_time_on_a_boundary_stays_there_and_never_comes_early(nanos: int, ms: int) -> None:
    minute = 29_407_868 * 60
    assert timestamp_ms(minute, nanos, "due_time") == minute * 1000 + ms


@pytest.mark.parametrize(
    ("seconds", "nanos"),
    [(-62_135_596_801, 0), (253_402_300_800, 0), (2**63 - 1, 0), (-(2**63), 0), (0, -1), (0, 10**9), (0, 2**31 - 1)],
)
def test_timestamps_outside_their_range_are_refused(seconds: int, nanos: int) -> None:
    with pytest.raises(InvalidArgument) as caught:
        timestamp_ms(seconds, nanos, "due_time")
    assert caught.value.field == "due_time"


@given(st.integers(0, 315_576_000_000), st.integers(0, 999_999_999))
def test_durations_round_up(seconds: int, nanos: int) -> None:
    exact_ns = seconds * 10**9 + nanos
    ms = duration_ms(seconds, nanos, "delay")
    assert ms * 10**6 - 10**6 < exact_ns <= ms * 10**6
    assert duration_ms(-seconds, -nanos, "delay") == -ms


@pytest.mark.parametrize(
    ("seconds", "nanos"),
    [(315_576_000_001, 0), (-315_576_000_001, 0), (2**63 - 1, 0), (1, -1), (-1, 1), (0, 10**9), (0, -(10**9))],
)
def test_durations_that_are_none_are_refused(seconds: int, nanos: int) -> None:
    with pytest.raises(InvalidArgument):
        duration_ms(seconds, nanos, "delay")


def test_what_is_negative_by_less_than_a_millisecond_is_not_rounded_to_nothing() -> None:
    for delay_ms in (duration_ms(0, -1, "delay"), seconds_ms(-1e-9, "delay"), seconds_ms(-1e-300, "delay")):
        assert refused(delay_ms=delay_ms, _field="delay") == "must not be negative"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, -1e300, True, "1e5", None])
def test_numbers_that_are_no_length_of_time_are_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument):
        seconds_ms(value, "delay")


@pytest.mark.parametrize(
    ("seconds", "ms"), [(0, 0), (0.1, 100), (1.0001, 1001), (0.0005, 1), (2_147_483.648, 2**31), (-1, -1000)]
)
def test_seconds_become_milliseconds_rounded_up_without_float_noise(seconds: float, ms: int) -> None:
    assert seconds_ms(seconds, "delay") == ms


def test_a_leap_second_is_not_an_instant_of_its_own() -> None:
    """Timestamps count without leap seconds: 23:59:60 can't be said, and the second after :59 is the next day's."""
    last = int(datetime(2016, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp())
    assert timestamp_ms(last + 1, 0, "due_time") == int(datetime(2017, 1, 1, tzinfo=UTC).timestamp()) * 1000


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (400 * DAY_MS, "400 days"),
        (DAY_MS // 2, "12 hours"),
        (600_000, "10 minutes"),
        (1_500, "1.5 seconds"),
        (20, "20 ms"),
    ],
)
def test_lengths_of_time_in_words(ms: int, words: str) -> None:
    assert in_words(ms) == words


def test_names_are_checked_in_whole() -> None:
    check_name("a", "queue")
    with pytest.raises(InvalidArgument, match=re.escape("queue: must be 1 to 100")):
        check_name("a\n", "queue")
