"""Values on the command line: lengths of time, instants, pairs."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from decimal import Decimal
from math import ceil
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    LengthType = click.ParamType[timedelta]
    InstantType = click.ParamType[datetime]
    PairType = click.ParamType[tuple[str, str]]
else:  # generic only since click 8.2
    LengthType = InstantType = PairType = click.ParamType

_UNITS_US = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
_NUMBER = r"\d{1,18}(?:\.\d{1,12})?"
_PART = re.compile(rf"({_NUMBER})(us|ms|s|m|h|d|w)")
_SHORT = re.compile(rf"(?:{_NUMBER}(?:us|ms|s|m|h|d|w))+")
_ISO = re.compile(
    rf"P(?:({_NUMBER})W)?(?:({_NUMBER})D)?(?:T(?:({_NUMBER})H)?(?:({_NUMBER})M)?(?:({_NUMBER})S)?)?", re.IGNORECASE
)
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(?::\d\d(?:\.(?P<fraction>\d{1,9}))?)?(?:[Zz]|[+-]\d\d:\d\d)")


class Length(LengthType):
    """5s, 1h30m, 250ms, 2d, PT5S, or a number of seconds."""

    name = "length"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """As a timedelta, rounded up to a microsecond."""
        if isinstance(value, timedelta):
            return value
        microseconds = _microseconds(str(value).strip())
        if microseconds is None:
            self.fail(f"{value!r} must be a length of time such as 5s, 1h30m, 250ms, 2d or PT5S", param, ctx)
        try:
            return timedelta(microseconds=ceil(microseconds))
        except OverflowError:
            self.fail(f"{value!r} is too long", param, ctx)


def _microseconds(text: str) -> Decimal | None:
    if re.fullmatch(_NUMBER, text):
        return Decimal(text) * _UNITS_US["s"]
    if _SHORT.fullmatch(text):
        return sum((Decimal(number) * _UNITS_US[unit] for number, unit in _PART.findall(text)), Decimal(0))
    iso = _ISO.fullmatch(text)
    if iso is None or not any(iso.groups()):
        return None
    parts = zip(iso.groups(), "wdhms", strict=True)
    return sum((Decimal(number) * _UNITS_US[unit] for number, unit in parts if number), Decimal(0))


class Instant(InstantType):
    """An instant as in RFC 3339: 2026-12-24T18:00:00+01:00."""

    name = "instant"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """As a datetime with a time zone, rounded up to a microsecond."""
        if isinstance(value, datetime):
            return value
        matched = _INSTANT.fullmatch(str(value).strip())
        try:
            if matched is None:
                raise ValueError("not an instant")
            instant = datetime.fromisoformat(matched[0].upper())
            beyond = (matched["fraction"] or "")[6:]
            return instant + timedelta(microseconds=1 if beyond.strip("0") else 0)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} must be an instant with a time zone such as 2026-12-24T18:00:00Z", param, ctx)


class Pair(PairType):
    """KEY=VALUE."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Key and value."""
        if isinstance(value, tuple):
            return value
        key, equals, rest = str(value).partition("=")
        if not (equals and key):
            self.fail(f"{value!r} must be KEY=VALUE", param, ctx)
        return key, rest


LENGTH, INSTANT, PAIR = Length(), Instant(), Pair()
