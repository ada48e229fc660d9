"""Who may still write when there is little room."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from bucketsched.adapters.sqlite.room import MIB, Room, RoomLimits
from bucketsched.core.errors import ConfigError, NoRoom

FILE = "file.db"


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    connection.execute("CREATE TABLE filling (content BLOB)")
    yield connection
    connection.close()


def fill(connection: sqlite3.Connection, mib: float) -> None:
    connection.execute("INSERT INTO filling VALUES (zeroblob(?))", (int(mib * MIB),))


def test_creates_are_refused_first_then_dispatches(tmp_path: Path, connection: sqlite3.Connection) -> None:
    room = Room(tmp_path / FILE, RoomLimits(reserve=4 * MIB, file_max=10 * MIB))
    room.limit(connection)
    fill(connection, 5)
    room.check_create(connection)
    fill(connection, 2)
    with pytest.raises(NoRoom, match=r"the database is at its limit: [23]\.\d MiB are left, 4\.0 MiB are kept"):
        room.check_create(connection)
    room.check_dispatch(connection)
    fill(connection, 2.5)
    with pytest.raises(NoRoom):
        room.check_dispatch(connection)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        fill(connection, 1)


def test_what_was_freed_in_the_file_is_room(tmp_path: Path, connection: sqlite3.Connection) -> None:
    room = Room(tmp_path / FILE, RoomLimits(reserve=2 * MIB, file_max=6 * MIB))
    fill(connection, 5)
    with pytest.raises(NoRoom):
        room.check_create(connection)
    connection.execute("DELETE FROM filling")
    room.check_create(connection)


def test_a_full_disk_is_told_from_a_full_file(tmp_path: Path, connection: sqlite3.Connection) -> None:
    room = Room(tmp_path / FILE, RoomLimits(reserve=1 << 60))
    with pytest.raises(NoRoom, match=f"the disk of {tmp_path} is full"):
        room.check_create(connection)
    Room(tmp_path / FILE, RoomLimits(reserve=0)).check_create(connection)


def test_limits_that_leave_no_room_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 2 reserves"):
        RoomLimits(reserve=8 * MIB, file_max=15 * MIB)
    with pytest.raises(ConfigError, match="0 or more"):
        RoomLimits(reserve=-1)
    RoomLimits(reserve=8 * MIB, file_max=16 * MIB)


def test_what_is_in_the_log_is_no_room(
    tmp_path: Path, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes its place in the file at the next checkpoint."""
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=100, f_frsize=MIB))
    room = Room(tmp_path / FILE, RoomLimits(reserve=80 * MIB))
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    room.check_create(connection)
    fill(connection, 30)
    with pytest.raises(NoRoom):
        room.check_create(connection)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    room.check_create(connection)
