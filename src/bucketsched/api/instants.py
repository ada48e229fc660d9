"""Milliseconds as protobuf's Timestamps."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp


def timestamp(ms: int) -> Timestamp:
    """The instant `ms` milliseconds after the Unix epoch."""
    seconds, rest = divmod(ms, 1000)
    return Timestamp(seconds=seconds, nanos=rest * 1_000_000)


def timestamp_or_none(ms: int | None) -> Timestamp | None:
    """As `timestamp`; None stays unset."""
    return None if ms is None else timestamp(ms)
