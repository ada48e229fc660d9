"""Why a message is late: what it says about itself, and what is measured against it."""

from __future__ import annotations

from enum import StrEnum

from .task import TaskRow

LATE_MS = 2_000
"""A message that is dispatched so long after the due time that was asked for is late, and says why."""


class LateReason(StrEnum):
    """The first of these that holds. A closed set: consumers may rely on it."""

    CREATED = "created"
    """The task was created when it was due already, or hardly before."""
    MOVED = "moved"
    """It came to its bucket when that was over, so that its owner had to move it, or `fsck --repair` found it."""
    OUTAGE = "outage"
    """Nobody served its range when it was due: no poller ran, or the range has changed hands since."""
    DESTINATION = "destination"
    """Its topic, or Kafka as a whole, took nothing since it was due."""
    LOAD = "load"
    """There was more to do than could be done in time, or the store could not be read."""


def why_late(row: TaskRow, dispatched_ms: int, served_from_ms: int, blocked_until_ms: int) -> LateReason | None:
    """None: it is not late. `served_from_ms`: since when its range is served; `blocked_until_ms`: when its topic, or
    Kafka, last took nothing.
    """
    if dispatched_ms - row.body.nominal_due_ms <= LATE_MS:
        return None
    if dispatched_ms - row.body.created_ms <= LATE_MS:
        return LateReason.CREATED
    if row.generation and dispatched_ms - row.due_ms <= LATE_MS:
        return LateReason.MOVED
    if row.due_ms < served_from_ms:
        return LateReason.OUTAGE
    return LateReason.DESTINATION if row.due_ms <= blocked_until_ms else LateReason.LOAD
