"""A data directory: its lock, its file, the writer and the reader."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from ...core.errors import ConfigError, NotWritten, OutcomeUnknown, Unavailable
from .room import Room, RoomLimits
from .schema import migrate
from .writer import Operation, T, Writer

DATABASE_FILE = "bucketsched.db"
LOCK_FILE = "bucketsched.lock"

PAGE_BYTES = 8_192
WRITER_CACHE_KIB = 16_384
READER_CACHE_KIB = 4_096
WAL_PAGES_MAX = 4_096
"""At this length (32 MiB) the writer itself moves the log into the file; the checkpointer does it before."""
CHECKPOINT_INTERVAL_S = 1.0
READS_WAITING_MAX = 256
BUSY_TIMEOUT_S = 5.0
DEFAULT_LIMITS = RoomLimits()


class Database:
    """The open database of a data directory; nobody else has it. Used from one event loop.

    Writes are durable when they return (WAL, synchronous=FULL). A read sees every write answered before it began.
    """

    def __init__(self, directory: Path, lock: int, connection: sqlite3.Connection, room: Room) -> None:
        self.directory, self.room = directory, room
        self._lock = lock
        self._connections = [connection]
        self._reader = self._connect(READER_CACHE_KIB, query_only=True)
        self._reads = ThreadPoolExecutor(1, thread_name_prefix="sqlite-reader")
        self._reads_room = asyncio.Semaphore(READS_WAITING_MAX)
        room.look(connection)
        self._writer = Writer(connection, lambda: room.short, WAL_PAGES_MAX)
        self._closing = threading.Event()
        self._checkpointer = threading.Thread(target=self._checkpoint, name="sqlite-checkpointer", daemon=True)
        self._checkpointer.start()

    @classmethod
    def open(cls, directory: Path, limits: RoomLimits = DEFAULT_LIMITS) -> Database:
        """Opens, or makes, the database in a directory. Raises ConfigError, with the process that has it open."""
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = _lock(directory)
        except OSError as error:
            raise ConfigError(f"data directory {directory}: {error.strerror}") from error
        try:
            room = Room(directory / DATABASE_FILE, limits)
            return cls(directory, lock, _prepare(directory, room), room)
        except (ConfigError, sqlite3.Error, OSError) as error:
            os.close(lock)
            raise ConfigError(f"data directory {directory}: {error}") from error

    async def write(
        self,
        operation: Operation[T],
        *,
        rows: int = 1,
        urgent: bool = False,
        on_commit: Callable[[T], None] | None = None,
    ) -> T:
        """See `Writer.write`."""
        return await self._writer.write(operation, rows=rows, urgent=urgent, on_commit=on_commit)

    @property
    def commits(self) -> int:
        """How many there were since the start."""
        return self._writer.commits

    @property
    def waiting(self) -> int:
        """Writes that no commit has taken up yet."""
        return self._writer.waiting

    async def read(self, query: Operation[T]) -> T:
        """Runs a query in the reader's thread. Raises Unavailable."""
        async with self._reads_room:
            if self._closing.is_set():
                raise Unavailable("the database is closed")
            try:
                return await asyncio.get_running_loop().run_in_executor(self._reads, query, self._reader)
            except sqlite3.Error as error:
                raise Unavailable(f"the database can't be read: {error}") from error

    async def close(self) -> None:
        """Finishes what was begun and gives the directory back."""
        if self._closing.is_set():
            return
        self._closing.set()
        await self._writer.close()
        await asyncio.to_thread(self._reads.shutdown)
        await asyncio.to_thread(self._checkpointer.join)
        for connection in reversed(self._connections):
            connection.close()
        os.close(self._lock)

    def _connect(self, cache_kib: int, query_only: bool = False) -> sqlite3.Connection:
        connection = _connect(self.directory, cache_kib)
        if query_only:
            connection.execute("PRAGMA query_only = 1")
        self._connections.append(connection)
        return connection

    def _checkpoint(self) -> None:
        """Moves the log into the file beside the writer, so that commits seldom have to.

        Where room is short the log is emptied, too: it would keep the length that it once had.
        """
        connection, done = self._connect(0), 0
        while not self._closing.wait(CHECKPOINT_INTERVAL_S):
            commits = self._writer.commits
            try:
                self.room.look(connection)
                if commits == done and not (self.room.short and self.room.log_bytes()):
                    continue
                connection.execute(f"PRAGMA wal_checkpoint({'TRUNCATE' if self.room.short else 'PASSIVE'})").fetchall()
                done = commits
            except sqlite3.Error:
                pass  # the log only grows for a while; it is tried again


@contextmanager
def as_unavailable() -> Iterator[None]:
    """For ports whose writes may simply be repeated: a write that failed, or may have, is Unavailable."""
    try:
        yield
    except (NotWritten, OutcomeUnknown) as error:
        raise Unavailable(str(error)) from error


def _lock(directory: Path) -> int:
    """A descriptor that holds the directory's lock while it is open; the kernel frees it with the process."""
    descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise ConfigError(f"data directory {directory} is in use by process {holder}") from error
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    except OSError:
        pass  # the disk is full; the lock stands without a name on it
    return descriptor


def _prepare(directory: Path, room: Room) -> sqlite3.Connection:
    """The writer's connection to a file of the newest version."""
    connection = _connect(directory, WRITER_CACHE_KIB)
    try:
        migrate(connection)
        room.limit(connection)
        _sync_names(directory)
    except BaseException:
        connection.close()
        raise
    return connection


def _sync_names(directory: Path) -> None:
    """A new file is only as durable as the names that lead to it."""
    for place in (directory, directory.absolute().parent):
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _connect(directory: Path, cache_kib: int) -> sqlite3.Connection:
    connection = sqlite3.connect(
        directory / DATABASE_FILE, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    try:
        for pragma in (
            f"page_size = {PAGE_BYTES}",
            "journal_mode = WAL",
            "synchronous = FULL",
            "fullfsync = 1",  # macOS: without it a sync stops at the drive's cache
            "checkpoint_fullfsync = 1",
            f"cache_size = {-max(cache_kib, 256)}",
            f"wal_autocheckpoint = {WAL_PAGES_MAX}",
            f"journal_size_limit = {WAL_PAGES_MAX * PAGE_BYTES}",
            "temp_store = MEMORY",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection
