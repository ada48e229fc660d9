"""Instants and durations from outside, as whole milliseconds: rounded up, so that nothing becomes due early."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from .errors import InvalidArgument

DAY_MS = 86_400_000
_NANOS_PER_MS = 1_000_000
_NANOS_MAX = 999_999_999
_TIMESTAMP_S_MIN = -62_135_596_800
_TIMESTAMP_S_MAX = 253_402_300_799
_DURATION_S_MAX = 315_576_000_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLACES = 12
"""Digits behind the point that a text may have."""
_SCALE: int = 10**_PLACES
_SCALE_PER_MS: int = 10 ** (_PLACES - 3)
_UNITS_MS = {"w": 7 * DAY_MS, "d": DAY_MS, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}


def _numbers(*units: tuple[str, str]) -> str:
    """A pattern of optional numbers, each in front of its unit: (name of the group, how the unit is spelled)."""
    return "".join(rf"(?:(?P<{name}>[0-9]{{1,18}}(?:\.[0-9]{{1,{_PLACES}}})?){spelled})?" for name, spelled in units)


_INSTANT = re.compile(
    r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ](?P<time>[0-9]{2}:[0-9]{2}:[0-9]{2})"
    rf"(?:\.(?P<fraction>[0-9]{{1,{_PLACES}}}))?(?P<offset>[Zz]|[+-][0-9]{{2}}:[0-9]{{2}})"
)
_SHORT = re.compile(_numbers(("w", "w"), ("d", "d"), ("h", "h"), ("m", "m(?!s)"), ("s", "s"), ("ms", "ms")))
_ISO = re.compile(
    f"P{_numbers(('w', 'W'), ('d', 'D'))}(?:T(?=[0-9]){_numbers(('h', 'H'), ('m', 'M'), ('s', 'S'))})?", re.IGNORECASE
)


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


def instant_ms(text: str, field: str) -> int:
    """The instant of a text as in RFC 3339, such as 2026-12-24T18:00:00+01:00; the offset must be given.

    Raises InvalidArgument.
    """
    matched = _INSTANT.fullmatch(text)
    try:
        if matched is None:
            raise ValueError("not an instant")
        whole = datetime.fromisoformat(f"{matched['day']}T{matched['time']}{matched['offset'].upper()}")
    except ValueError:
        raise InvalidArgument(field, "must be an instant with an offset such as 2026-12-24T18:00:00Z") from None
    seconds = (whole - _EPOCH) // timedelta(seconds=1)
    fraction = (matched["fraction"] or "").ljust(_PLACES, "0")
    return timestamp_ms(seconds, 0, field) - (-int(fraction) // _SCALE_PER_MS)


def length_ms(text: str, field: str) -> int:
    """The length of time of a text such as 24h, 1h30m, 250ms, 2d or PT24H.

    Days have 24 hours, weeks 7 days; years and months have no fixed length, and are refused. Raises InvalidArgument.
    """
    matched = _SHORT.fullmatch(text) or _ISO.fullmatch(text)
    if matched is None or not any(matched.groups()):
        raise InvalidArgument(field, "must be a length of time such as 24h, 1h30m, 250ms, 2d or PT24H")
    scaled = sum(_scaled(number) * _UNITS_MS[unit] for unit, number in matched.groupdict().items() if number)
    ms = -(-scaled // _SCALE)
    if ms > _DURATION_S_MAX * 1000:
        raise InvalidArgument(field, f"must be at most {_DURATION_S_MAX} seconds")
    return ms


def _scaled(number: str) -> int:
    """A decimal number times 10^12, exactly."""
    whole, _, fraction = number.partition(".")
    return int(whole + fraction.ljust(_PLACES, "0"))
