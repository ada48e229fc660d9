"""What the journal asks of the store."""

from __future__ import annotations

from typing import NamedTuple

from ..core.task import Mark, TaskRow
from .owned_range import OwnedRange


class Consequence(NamedTuple):
    """What a committed record asks of the store for one row. The successor is written before the mark that points to
    it.
    """

    mark: Mark
    owned: OwnedRange
    successor: TaskRow | None = None
