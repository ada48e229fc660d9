"""A row is stored once its presence is, and a presence is written once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from bucketsched.adapters.cassandra.group_commit import Answer, Write
from bucketsched.adapters.cassandra.presence import PresenceTable
from bucketsched.adapters.cassandra.store import TTL_S_MIN, CassandraTaskStore
from bucketsched.adapters.memory.clock import ManualClock
from bucketsched.config import CassandraSettings
from bucketsched.core.errors import NotWritten, OutcomeUnknown
from bucketsched.core.task import BUCKET_MS, TaskBody, TaskRow
from bucketsched.core.task_id import mint

DAY_S = 86_400
NOW_MS = 1_800_000_000_000
RETENTION_S = 90 * DAY_S


class Session:
    """Takes what is written, and answers as a test says. Statements are their own names."""

    def __init__(self) -> None:
        self.presences: list[Write] = []
        self.rows: list[Write] = []
        self.on_presence: Answer = None
        self.on_row: Answer = None

    def group_of(self, routing_key: bytes) -> bytes:
        return routing_key  # each partition alone

    def write_batch(self, writes: Sequence[Write], done: Callable[[Answer], None]) -> None:
        is_row = writes[0].statement == "row"
        (self.rows if is_row else self.presences).extend(writes)
        asyncio.get_running_loop().call_soon(done, self.on_row if is_row else self.on_presence)

    def store(self) -> CassandraTaskStore:
        table = PresenceTable(self, {"insert": "presence"})  # type: ignore[arg-type]
        given: Any = (self, CassandraSettings(), ManualClock(NOW_MS), RETENTION_S * 1000, {"insert": "row"}, {}, table)
        return CassandraTaskStore(*given, None)


def row(due_ms: int, ms: int = 0) -> TaskRow:
    return TaskRow(due_ms + ms, b"n" * 16, mint(due_ms + ms, 3, ms), TaskBody("n", "mails", "t"))


async def test_many_rows_of_a_partition_cost_one_presence() -> None:
    session = Session()
    store = session.store()
    assert await store.insert([row(NOW_MS, ms) for ms in range(5)]) == [None] * 5
    assert await store.insert([row(NOW_MS, 9)]) == [None]
    assert (len(session.rows), len(session.presences)) == (6, 1)
    assert await store.insert([row(NOW_MS + BUCKET_MS)]) == [None]
    assert len(session.presences) == 2


async def test_a_row_without_its_presence_is_not_stored_for_sure_and_is_so_when_it_is_tried_again() -> None:
    session = Session()
    store = session.store()
    session.on_presence = NotWritten("away")
    (answer,) = await store.insert([row(NOW_MS)])
    assert isinstance(answer, OutcomeUnknown)
    session.on_presence = None
    assert await store.insert([row(NOW_MS)]) == [None]
    assert len(session.presences) == 2


async def test_a_row_that_is_not_written_stays_that() -> None:
    session = Session()
    session.on_presence = session.on_row = NotWritten("away")
    (answer,) = await session.store().insert([row(NOW_MS)])
    assert isinstance(answer, NotWritten)


async def test_a_presence_outlives_all_rows_of_its_bucket_by_a_day() -> None:
    session = Session()
    await session.store().insert([row(NOW_MS)])
    (presence,) = session.presences
    end_s = (NOW_MS // BUCKET_MS + 1) * BUCKET_MS // 1000
    assert int.from_bytes(presence.values[-1], "big") == end_s - NOW_MS // 1000 + RETENTION_S + DAY_S


async def test_what_expires_before_a_later_row_might_is_not_taken_for_granted() -> None:
    session = Session()
    store = session.store()
    long_ago = NOW_MS - (RETENTION_S + 2 * DAY_S) * 1000
    for ms in range(2):
        assert await store.insert([row(long_ago, ms)]) == [None]
    assert [int.from_bytes(each.values[-1], "big") for each in session.presences] == [TTL_S_MIN] * 2
