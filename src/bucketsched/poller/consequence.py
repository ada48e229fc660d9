"""What the journal asks of the store."""

from __future__ import annotations

from typing import NamedTuple

from ..core.execution import Attempt
from ..core.task import Mark, TaskRow
from .owned_range import OwnedRange


class Consequence(NamedTuple):
    """What a committed record asks of the store for one row. The successor and the entry of the execution log are
    written before the mark that points to them.
    """

    mark: Mark
    owned: OwnedRange
    successor: TaskRow | None = None
    attempt: Attempt | None = None
