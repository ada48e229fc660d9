"""Instants and lengths of time as people write them: exact, rounded up, and refused where they are not meant."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketsched.core.durations import DAY_MS, instant_ms, length_ms
from bucketsched.core.errors import InvalidArgument
from bucketsched.core.message import rfc3339

HOUR_MS = 3_600_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("24h", DAY_MS),
        ("1h30m", HOUR_MS * 3 // 2),
        ("1.5h", HOUR_MS * 3 // 2),
        ("250ms", 250),
        ("1m1ms", 60_001),
        ("2d", 2 * DAY_MS),
        ("1w2d3h4m5s6ms", 9 * DAY_MS + 3 * HOUR_MS + 245_006),
        ("0s", 0),
        ("0.1ms", 1),
        ("0.000000000001s", 1),
        ("1.0000000000s", 1_000),
        ("PT24H", DAY_MS),
        ("P1DT12H", DAY_MS * 3 // 2),
        ("P2W", 14 * DAY_MS),
        ("PT0.0001S", 1),
        ("pt1h30m", HOUR_MS * 3 // 2),
        ("315576000000s", 315_576_000_000_000),
    ],
)
def test_lengths(text: str, ms: int) -> None:
    assert length_ms(text, "delay") == ms


@pytest.mark.parametrize(
    "text",
    ["", " ", "5", "-1h", "+1h", "1H", "1 h", "1h ", "h", "1x", "30m1h", "1h1h", "1.h", ".5h", "1e3s", "١h",
     "P", "PT", "P1DT", "P1Y", "P1M", "PT1D", "P1H", "-PT1H", "PT1H ", "infs", "nans", "1h\n", "315576000001s",
     "9" * 18 + "w", "9" * 19 + "s", "1." + "1" * 13 + "s", "1h" * 100_000, "9" * 1_000_000],
    ids=lambda text: repr(text[:20]),
)  # fmt: skip
def test_what_is_no_length(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        length_ms(text, "delay")
    assert caught.value.field == "delay"
    assert len(str(caught.value)) < 200


@given(st.integers(0, 10**7), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_a_length_is_the_sum_of_its_parts(hours: int, minutes: int, seconds: int, ms: int) -> None:
    whole = ((hours * 60 + minutes) * 60 + seconds) * 1_000 + ms
    assert length_ms(f"{hours}h{minutes}m{seconds}s{ms}ms", "delay") == whole
    assert length_ms(f"PT{hours}H{minutes}M{seconds}.{ms:03d}S", "delay") == whole


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t00:00:00z", 0),
        ("1970-01-01 00:00:00Z", 0),
        ("1970-01-01T00:00:00-00:00", 0),
        ("1970-01-01T00:00:00.5Z", 500),
        ("1970-01-01T00:00:00.000000000001Z", 1),
        ("1970-01-01T00:00:00.001000Z", 1),
        ("1970-01-01T00:00:00.9991Z", 1_000),
        ("1969-12-31T23:59:59.9981Z", -1),
        ("1970-01-01T01:00:00+01:00", 0),
        ("2024-02-29T12:00:00Z", 1_709_208_000_000),
        ("0001-01-01T00:00:00Z", -62_135_596_800_000),
        ("9999-12-31T23:59:59Z", 253_402_300_799_000),
    ],
)
def test_instants(text: str, ms: int) -> None:
    assert instant_ms(text, "run_at") == ms


@pytest.mark.parametrize(
    "text",
    ["", "now", "2026-12-24", "2026-12-24T18:00Z", "2026-12-24T18:00:00", "2026-12-24T18:00:00+0100",
     "2026-02-29T00:00:00Z", "2026-13-01T00:00:00Z", "2026-12-24T24:00:00Z", "2026-12-24T18:60:00Z",
     "2026-12-24T18:00:60Z", "2026-12-24T18:00:00+24:00", "2026-12-24T18:00:00.Z", "0000-01-01T00:00:00Z",
     "0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01", "10000-01-01T00:00:00Z", "2026-W01-1T00:00:00Z",
     "２０２６-12-24T18:00:00Z", "2026-12-24T18:00:00Z\n", "2026-12-24T18:00:00." + "1" * 1_000_000 + "Z", "1e9"],
    ids=lambda text: repr(text[:40]),
)  # fmt: skip
def test_what_is_no_instant(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        instant_ms(text, "run_at")
    assert caught.value.field == "run_at"
    assert len(str(caught.value)) < 200


@given(
    st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1)),  # noqa: DTZ001 - made aware below
    st.integers(-1_439, 1_439),
)
def test_an_instant_is_never_rounded_down(naive: datetime, offset_min: int) -> None:
    instant = naive.replace(tzinfo=timezone(timedelta(minutes=offset_min)))
    microseconds = (instant - EPOCH) // timedelta(microseconds=1)
    assert instant_ms(instant.isoformat(), "run_at") == -(-microseconds // 1_000)


@given(st.integers(-62_135_596_800_000, 253_402_300_799_000))
def test_what_is_told_is_what_is_understood(ms: int) -> None:
    assert instant_ms(rfc3339(ms), "run_at") == ms
