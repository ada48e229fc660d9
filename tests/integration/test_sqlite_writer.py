"""The writer commits together what waits, keeps neighbours apart, and survives a full or failing disk."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from bucketsched.adapters.sqlite.writer import OPERATIONS_WAITING_MAX, Writer
from bucketsched.core.errors import NoRoom, NotWritten, OutcomeUnknown, OwnershipLost

DEADLINE_S = 20.0
PAGES_MAX = 64


class FailingConnection(sqlite3.Connection):
    """Fails the next commit with an error code."""

    fail_commit_with = 0

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql == "COMMIT" and self.fail_commit_with:
            error = sqlite3.OperationalError("made up")
            error.sqlite_errorcode, self.fail_commit_with = self.fail_commit_with, 0
            raise error
        return super().execute(sql, parameters)


@pytest.fixture
def connection(tmp_path: Path) -> FailingConnection:
    opened = sqlite3.connect(
        tmp_path / "test.db", isolation_level=None, check_same_thread=False, factory=FailingConnection
    )
    opened.execute("PRAGMA journal_mode = WAL")
    opened.execute("CREATE TABLE t (x INTEGER PRIMARY KEY, filling BLOB)")
    assert isinstance(opened, FailingConnection)
    return opened


@pytest.fixture
async def writer(connection: FailingConnection) -> AsyncIterator[Writer]:
    opened = Writer(connection)
    yield opened
    await opened.close()


def put(x: int, size: int = 0) -> Callable[[sqlite3.Connection], int]:
    return lambda c: c.execute("INSERT INTO t VALUES (?, ?)", (x, bytes(size))).rowcount


async def stored(writer: Writer) -> list[int]:
    return await writer.write(lambda c: [x for (x,) in c.execute("SELECT x FROM t ORDER BY rowid")])


class Standstill:
    """Keeps the writer busy, so that whatever is written inside piles up for one commit."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._entered, self._go_on = asyncio.Event(), threading.Event()

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()

        def block(_: sqlite3.Connection) -> None:
            loop.call_soon_threadsafe(self._entered.set)
            self._go_on.wait(DEADLINE_S)

        self._blocking = asyncio.create_task(self._writer.write(block))
        await self._entered.wait()

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0.01)
        self._go_on.set()
        await self._blocking


async def test_whatever_waits_shares_a_commit(writer: Writer) -> None:
    async with Standstill(writer):
        before = writer.commits
        writes = [asyncio.create_task(writer.write(put(x))) for x in range(100)]
    assert await asyncio.gather(*writes) == [1] * 100
    assert writer.commits == before + 2, "one for the standstill, one for all others"


async def test_a_commit_is_bounded_in_rows(writer: Writer) -> None:
    async with Standstill(writer):
        before = writer.commits
        writes = [asyncio.create_task(writer.write(put(x), rows=200)) for x in range(10)]
    await asyncio.gather(*writes)
    assert writer.commits == before + 1 + 5


async def test_an_operation_that_fails_leaves_its_neighbours_alone(writer: Writer) -> None:
    def write_then_refuse(c: sqlite3.Connection) -> None:
        c.execute("INSERT INTO t VALUES (50, NULL)")
        raise OwnershipLost("stale")

    def write_twice(c: sqlite3.Connection) -> None:
        c.execute("INSERT INTO t VALUES (60, NULL)")
        c.execute("INSERT INTO t VALUES (1, NULL)")

    async with Standstill(writer):
        operations: list[Callable[[sqlite3.Connection], Any]] = [put(1), write_then_refuse, put(2), write_twice, put(3)]
        writes = [asyncio.create_task(writer.write(operation)) for operation in operations]
    answers = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(answer) for answer in answers] == [int, OwnershipLost, int, NotWritten, int]
    assert await stored(writer) == [1, 2, 3]


async def test_urgent_operations_go_first(writer: Writer) -> None:
    order: list[str] = []
    async with Standstill(writer):
        writes = [asyncio.create_task(writer.write(lambda _: order.append("usual"))) for _ in range(3)]
        await asyncio.sleep(0)
        writes.append(asyncio.create_task(writer.write(lambda _: order.append("urgent"), urgent=True)))
    await asyncio.gather(*writes)
    assert order == ["urgent", "usual", "usual", "usual"]


async def test_the_queue_is_bounded_and_the_urgent_pass_by(writer: Writer) -> None:
    count = OPERATIONS_WAITING_MAX * 2
    async with Standstill(writer):
        writes = [asyncio.create_task(writer.write(put(x))) for x in range(count)]
        await asyncio.sleep(0.01)
        assert writer.waiting == OPERATIONS_WAITING_MAX - 1
        urgent = asyncio.create_task(writer.write(put(-1), urgent=True))
        await asyncio.sleep(0.01)
        assert writer.waiting == OPERATIONS_WAITING_MAX
    await asyncio.wait_for(asyncio.gather(urgent, *writes), DEADLINE_S)
    assert await stored(writer) == list(range(-1, count))


async def test_what_a_cancelled_caller_wrote_is_announced_all_the_same(writer: Writer) -> None:
    announced: list[int] = []
    async with Standstill(writer):
        cancelled = asyncio.create_task(writer.write(put(1), on_commit=announced.append))
        other = asyncio.create_task(writer.write(put(2), on_commit=lambda _: announced.append(2)))
        await asyncio.sleep(0.01)
        cancelled.cancel()
    assert await asyncio.wait_for(other, DEADLINE_S) == 1
    assert cancelled.cancelled()
    assert announced == [1, 2]


async def test_nothing_is_announced_that_was_not_committed(writer: Writer, connection: FailingConnection) -> None:
    announced: list[int] = []
    connection.fail_commit_with = sqlite3.SQLITE_FULL
    with pytest.raises(NotWritten):
        await writer.write(put(1), on_commit=announced.append)
    assert announced == []


async def test_a_full_disk_refuses_and_later_writes_work_again(writer: Writer, connection: FailingConnection) -> None:
    await writer.write(lambda c: c.execute(f"PRAGMA max_page_count = {PAGES_MAX}").fetchall())
    await writer.write(put(1))
    with pytest.raises(NotWritten, match="full"):
        await writer.write(put(2, size=4_096 * PAGES_MAX))
    assert await stored(writer) == [1]
    await writer.write(put(3))
    await writer.write(lambda c: c.execute("PRAGMA max_page_count = 1000000").fetchall())
    await writer.write(put(4, size=4_096 * PAGES_MAX))
    assert await stored(writer) == [1, 3, 4]


async def test_on_a_full_disk_answers_tell_what_is_stored(writer: Writer) -> None:
    await writer.write(lambda c: c.execute(f"PRAGMA max_page_count = {PAGES_MAX}").fetchall())
    async with Standstill(writer):
        writes = [asyncio.create_task(writer.write(put(x, size=30_000))) for x in range(20)]
    answers = await asyncio.gather(*writes, return_exceptions=True)
    assert any(isinstance(answer, NotWritten) for answer in answers)
    assert all(answer == 1 or isinstance(answer, NotWritten) for answer in answers)
    assert await stored(writer) == [x for x, answer in enumerate(answers) if answer == 1]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (sqlite3.SQLITE_FULL, NoRoom),
        (sqlite3.SQLITE_BUSY, NotWritten),
        (sqlite3.SQLITE_IOERR_FSYNC, OutcomeUnknown),
        (sqlite3.SQLITE_IOERR_WRITE, OutcomeUnknown),
    ],
)
async def test_a_commit_that_fails_fails_all_and_the_writer_lives_on(
    writer: Writer, connection: FailingConnection, code: int, error: type[Exception]
) -> None:
    """A failed sync leaves the commit in the log: a crash right then may bring it back."""

    def fail_the_commit(_: sqlite3.Connection) -> None:
        connection.fail_commit_with = code

    async with Standstill(writer):
        writes = [asyncio.create_task(writer.write(operation)) for operation in (put(1), fail_the_commit, put(2))]
    answers = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(answer) for answer in answers] == [error] * 3
    await writer.write(put(3))
    assert await stored(writer) == [3]


async def test_an_operation_may_raise_anything(writer: Writer) -> None:
    def fail(_: sqlite3.Connection) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await writer.write(fail)
    assert await writer.write(put(1)) == 1
