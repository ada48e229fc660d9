"""Rows that are written once, by lightweight transactions.

One that was not applied, or whose outcome is unknown, is followed by a serial read: that sees what is decided, and
finishes what is half done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.errors import NotWritten, OutcomeUnknown, Unavailable
from .session import CassandraSession, Row

ATTEMPTS_MAX = 3
"""Several who insert one row at once get in each other's way."""


async def insert_once(
    session: CassandraSession, insert: Any, values: Sequence[Any], serial_read: Any, key: Sequence[Any], what: str
) -> Row | None:
    """Inserts if not there. None: it was not; else the row as it is stored. Raises Unavailable."""
    for _ in range(ATTEMPTS_MAX):
        error: NotWritten | OutcomeUnknown | None = None
        try:
            answer = await session.write(insert, values)
            if answer and answer[0][0]:
                return None
        except (NotWritten, OutcomeUnknown) as failure:
            error = failure
        if stored := await session.read(serial_read, key):
            return stored[0]
    raise Unavailable(str(error) if error else f"cassandra: {what} came to no decision")
