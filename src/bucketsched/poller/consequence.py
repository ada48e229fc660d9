"""What the journal asks of the store."""

from __future__ import annotations

from typing import NamedTuple

from ..core.execution import Attempt
from ..core.task import Mark, TaskRow
from .owned_range import OwnedRange


class Consequence(NamedTuple):
    """What a committed record asks of the store for one row. The rows that come of it, and the entry of the execution
    log, are written before the mark.
    """

    mark: Mark
    owned: OwnedRange
    made: tuple[TaskRow, ...] = ()
    attempt: Attempt | None = None
