"""The one writer of a database: a thread that commits together whatever waits.

There is no gathering time: a batch is what piled up during the last commit, so a lone write is not delayed and many
share one sync. Each operation runs inside a savepoint, so one that fails leaves its neighbours alone.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ...core.errors import NoRoom, NotWritten, OutcomeUnknown

OPERATIONS_WAITING_MAX = 256
"""Of those that are not urgent; whoever comes then waits for room."""
ROWS_PER_COMMIT_MAX = 500
"""Bounds how long an urgent operation waits for a commit that is under way."""
ROWS_PER_COMMIT_WHEN_SHORT = 16
LOG_PAGES_WHEN_SHORT = 64
"""Where room is short the log is kept short: small commits, and each moves it into the file."""

_SQLITE_BUSY, _SQLITE_LOCKED, _SQLITE_FULL = 5, 6, 13
_REFUSED = frozenset({_SQLITE_BUSY, _SQLITE_LOCKED, _SQLITE_FULL})
_SQLITE_IOERR_SHMSIZE = 10 | 19 << 8
"""There is no room for the index of the log."""

T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], T]


@dataclass(slots=True)
class _Write:
    operation: Operation[Any]
    rows: int
    urgent: bool
    future: asyncio.Future[Any]
    on_commit: Callable[[Any], None] | None
    result: Any = None
    error: Exception | None = None


class Writer:
    """Takes operations from one event loop; they are applied in order, the urgent ones first.

    Takes the connection over, which must be in autocommit mode and not be used by anybody else until `close`.
    """

    def __init__(
        self, connection: sqlite3.Connection, short: Callable[[], bool] = lambda: False, log_pages_max: int = 1_000
    ) -> None:
        """`short`: there is little room. `log_pages_max`: at this length commits move the log into the file."""
        self._connection, self._short, self._log_pages_max = connection, short, log_pages_max
        self._thrifty = False
        self._urgent: deque[_Write] = deque()
        self._waiting: deque[_Write] = deque()
        self._closed = False
        self._wakened = threading.Condition()
        self._room = asyncio.Semaphore(OPERATIONS_WAITING_MAX)
        self._thread = threading.Thread(target=self._run, name="sqlite-writer", daemon=True)
        self.commits = 0
        self._thread.start()

    async def write(
        self,
        operation: Operation[T],
        *,
        rows: int = 1,
        urgent: bool = False,
        on_commit: Callable[[T], None] | None = None,
    ) -> T:
        """Runs `operation` in the writer's thread; its result when that is on disk.

        `on_commit` is called with the result in the event loop, in commit order, also if the caller was cancelled.
        Raises what the operation raised (it was undone), NotWritten, or OutcomeUnknown.
        """
        if not urgent:
            await self._room.acquire()
        write = _Write(operation, rows, urgent, asyncio.get_running_loop().create_future(), on_commit)
        self._append(write)
        result: T = await write.future
        return result

    def _append(self, write: _Write) -> None:
        with self._wakened:
            if not self._closed:
                (self._urgent if write.urgent else self._waiting).append(write)
                self._wakened.notify()
                return
        if not write.urgent:
            self._room.release()
        raise NotWritten("the database is closed")

    @property
    def waiting(self) -> int:
        """Operations that no commit has taken up yet."""
        return len(self._urgent) + len(self._waiting)

    async def close(self) -> None:
        """Applies what waits, then ends the thread."""
        with self._wakened:
            self._closed = True
            self._wakened.notify()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while batch := self._take():
            try:
                self._commit(batch)
            except Exception as error:  # whatever it is: everybody gets an answer, and the thread lives on
                _fail(batch, OutcomeUnknown(f"the write failed: {error!r}"))
            self._answer(batch)

    def _take(self) -> list[_Write]:
        """The next batch; empty when closed and everything is done."""
        with self._wakened:
            while not (self._urgent or self._waiting or self._closed):
                self._wakened.wait()
            batch = list(self._urgent)
            self._urgent.clear()
            rows = sum(write.rows for write in batch)
            rows_max = ROWS_PER_COMMIT_WHEN_SHORT if self._thrifty else ROWS_PER_COMMIT_MAX
            while self._waiting and (not batch or rows + self._waiting[0].rows <= rows_max):
                batch.append(self._waiting.popleft())
                rows += batch[-1].rows
            return batch

    def _commit(self, batch: list[_Write]) -> None:
        connection, ending = self._connection, False
        try:
            self._be_thrifty(self._short())
            connection.execute("BEGIN IMMEDIATE")
            for write in batch:
                self._apply(write)
            ending = True
            connection.execute("COMMIT")
            self.commits += 1
        except sqlite3.Error as error:
            # A commit whose sync failed may still be found by a recovery after a crash; the next one overwrites it.
            unknown = ending and _primary_code(error) not in _REFUSED
            _fail(batch, OutcomeUnknown(f"the database failed: {error}") if unknown else _refusal(error))
            self._roll_back()

    def _be_thrifty(self, thrifty: bool) -> None:
        if thrifty != self._thrifty:
            pages = LOG_PAGES_WHEN_SHORT if thrifty else self._log_pages_max
            self._connection.execute(f"PRAGMA wal_autocheckpoint = {pages}")
            self._thrifty = thrifty

    def _apply(self, write: _Write) -> None:
        """Runs one operation. Raises sqlite3.Error where the whole transaction is gone."""
        connection = self._connection
        connection.execute("SAVEPOINT operation")
        try:
            write.result = write.operation(connection)
        except Exception as error:
            if not connection.in_transaction:  # a full disk can make SQLite undo everything
                raise
            write.error = _refusal(error) if isinstance(error, sqlite3.Error) else error
            connection.execute("ROLLBACK TO operation")
        connection.execute("RELEASE operation")

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # the next BEGIN says so if the transaction is still there

    def _answer(self, batch: list[_Write]) -> None:
        try:
            batch[0].future.get_loop().call_soon_threadsafe(self._resolve, batch)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    def _resolve(self, batch: list[_Write]) -> None:
        for write in batch:
            if not write.urgent:
                self._room.release()
            if write.error is None and write.on_commit is not None:
                write.on_commit(write.result)
            if write.future.done():
                continue
            if write.error is None:
                write.future.set_result(write.result)
            else:
                write.future.set_exception(write.error)


def _fail(batch: list[_Write], error: Exception) -> None:
    for write in batch:
        if write.error is None:
            write.error = error


def _refusal(error: sqlite3.Error) -> NotWritten:
    """Of a transaction that is undone."""
    code = getattr(error, "sqlite_errorcode", 0)
    full = code & 0xFF == _SQLITE_FULL or code == _SQLITE_IOERR_SHMSIZE
    return (NoRoom if full else NotWritten)(f"the database refused: {error}")


def _primary_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
