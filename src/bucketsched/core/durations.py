"""Instants and durations from outside, as whole milliseconds: rounded up, so that nothing becomes due early."""

from __future__ import annotations

import math

from .errors import InvalidArgument

DAY_MS = 86_400_000
_NANOS_PER_MS = 1_000_000
_NANOS_MAX = 999_999_999
_TIMESTAMP_S_MIN = -62_135_596_800
_TIMESTAMP_S_MAX = 253_402_300_799
_DURATION_S_MAX = 315_576_000_000


def timestamp_ms(seconds: int, nanos: int, field: str) -> int:
    """The instant of a protobuf Timestamp. Raises InvalidArgument outside of the years 0001 to 9999."""
    if not _TIMESTAMP_S_MIN <= seconds <= _TIMESTAMP_S_MAX:
        raise InvalidArgument(field, "must be between 0001-01-01T00:00:00Z and 9999-12-31T23:59:59.999999999Z")
    if not 0 <= nanos <= _NANOS_MAX:
        raise InvalidArgument(field, f"must have nanos of 0 to {_NANOS_MAX}")
    return seconds * 1000 - (-nanos // _NANOS_PER_MS)


def duration_ms(seconds: int, nanos: int, field: str) -> int:
    """The length of a protobuf Duration, rounded away from zero, so that what is negative remains so.

    Raises InvalidArgument where the message is not a valid one.
    """
    if not -_DURATION_S_MAX <= seconds <= _DURATION_S_MAX:
        raise InvalidArgument(field, f"must have seconds of -{_DURATION_S_MAX} to {_DURATION_S_MAX}")
    if not -_NANOS_MAX <= nanos <= _NANOS_MAX:
        raise InvalidArgument(field, f"must have nanos of -{_NANOS_MAX} to {_NANOS_MAX}")
    if seconds * nanos < 0:
        raise InvalidArgument(field, "must have seconds and nanos of the same sign")
    if seconds < 0 or nanos < 0:
        return seconds * 1000 + nanos // _NANOS_PER_MS
    return seconds * 1000 - (-nanos // _NANOS_PER_MS)


def seconds_ms(seconds: float, field: str) -> int:
    """A number of seconds, as people and JSON give it, rounded as by `duration_ms`.

    Raises InvalidArgument for NaN and infinities.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        raise InvalidArgument(field, "must be a finite number of seconds")
    if abs(seconds) > _DURATION_S_MAX:
        raise InvalidArgument(field, f"must be at most {_DURATION_S_MAX} seconds")
    ms = round(seconds * 1000, 6)
    return math.ceil(ms) if seconds >= 0 else min(-1, math.floor(ms))


def in_words(ms: int) -> str:
    """A length of time in its largest fitting unit: "400 days", "1.5 hours", "20 ms"."""
    for unit, name in ((DAY_MS, "days"), (3_600_000, "hours"), (60_000, "minutes"), (1_000, "seconds")):
        if ms >= unit:
            return f"{ms / unit:.10g} {name}"
    return f"{ms} ms"
