"""Single fields of requests: texts, instants, lengths of time."""

from __future__ import annotations

from datetime import datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from ..core.durations import seconds_ms
from ..core.errors import InvalidArgument
from .model import EPOCH

_MILLISECOND = timedelta(milliseconds=1)
_NS_PER_MS = 1_000_000


def check_text(field: str, value: str) -> None:
    """Raises InvalidArgument unless the value is a string that UTF-8 can hold."""
    if not isinstance(value, str):
        raise InvalidArgument(field, f"must be a string, is {type(value).__name__}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(field, "must be valid Unicode, without lone surrogates") from error


def instant_message(field: str, instant: datetime | None) -> Timestamp | None:
    """An instant as protobuf has it, to the microsecond. Raises InvalidArgument."""
    if instant is None:
        return None
    if not isinstance(instant, datetime) or instant.utcoffset() is None:
        raise InvalidArgument(field, f"must be a datetime with a time zone, is {instant!r}")
    passed = instant - EPOCH
    return Timestamp(seconds=passed.days * 86_400 + passed.seconds, nanos=passed.microseconds * 1_000)


def length_message(field: str, length: float | timedelta | None) -> Duration | None:
    """A length of time, given in seconds or as a timedelta, as protobuf has it. Raises InvalidArgument."""
    if length is None:
        return None
    ms = -(-length // _MILLISECOND) if isinstance(length, timedelta) else seconds_ms(length, field)
    sign = -1 if ms < 0 else 1
    return Duration(seconds=sign * (abs(ms) // 1000), nanos=sign * (abs(ms) % 1000 * _NS_PER_MS))


def seconds_of(length: Duration) -> float:
    """Reverse of `length_message`."""
    return length.seconds + length.nanos / 1e9
