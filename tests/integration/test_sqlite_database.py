"""A data directory has one owner, and is opened only if it is ours."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bucketsched.adapters.sqlite.database import DATABASE_FILE, Database
from bucketsched.adapters.sqlite.schema import MIGRATIONS
from bucketsched.core.errors import ConfigError, NotWritten, Unavailable

HOLDER = """
import asyncio, sys
from pathlib import Path
from bucketsched.adapters.sqlite.database import Database
async def hold():
    Database.open(Path(sys.argv[1]))
    print("open", flush=True)
    await asyncio.sleep(60)
asyncio.run(hold())
"""


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = Database.open(tmp_path)
    yield opened
    await opened.close()


async def test_a_second_process_is_told_who_has_the_directory(tmp_path: Path) -> None:
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdout is not None
    assert await asyncio.wait_for(holder.stdout.readline(), 20) == b"open\n"
    with pytest.raises(ConfigError, match=rf"^data directory {tmp_path} is in use by process {holder.pid}$"):
        Database.open(tmp_path)
    holder.send_signal(signal.SIGKILL)
    await holder.wait()
    await Database.open(tmp_path).close()


async def test_a_closed_directory_can_be_opened_again(tmp_path: Path) -> None:
    first = Database.open(tmp_path)
    await first.write(lambda c: c.execute("INSERT INTO lanes VALUES (1, 2, 3, 4)"))
    with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"):
        Database.open(tmp_path)
    await first.close()
    await first.close()
    second = Database.open(tmp_path)
    assert await second.read(lambda c: c.execute("SELECT * FROM lanes").fetchall()) == [(1, 2, 3, 4)]
    await second.close()


async def test_missing_directories_are_made(tmp_path: Path) -> None:
    await Database.open(tmp_path / "a" / "b").close()
    assert (tmp_path / "a" / "b" / DATABASE_FILE).exists()
    assert (tmp_path / "a" / "b").stat().st_mode & 0o077 == 0


def _not_a_database(directory: Path) -> None:
    (directory / DATABASE_FILE).write_bytes(b"something else " * 1_000)


def _foreign(directory: Path) -> None:
    with sqlite3.connect(directory / DATABASE_FILE) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()


def _newer(directory: Path) -> None:
    asyncio.run(_make_newer(directory))


async def _make_newer(directory: Path) -> None:
    await Database.open(directory).close()
    connection = sqlite3.connect(directory / DATABASE_FILE)
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    connection.close()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [(_not_a_database, "not a database"), (_foreign, "not a bucketsched database"), (_newer, "upgrade")],
)
def test_what_is_not_ours_stops_the_start_with_one_line(tmp_path: Path, spoil: object, reason: str) -> None:
    assert callable(spoil)
    spoil(tmp_path)
    for _ in range(2):  # the lock is given back, or the second try would speak of it
        with pytest.raises(ConfigError, match=reason) as refused:
            Database.open(tmp_path)
        assert str(tmp_path) in str(refused.value)
        assert "\n" not in str(refused.value)


def test_a_file_in_the_way_stops_the_start_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"File exists|Not a directory"):
        Database.open(tmp_path / "file")


async def test_commits_are_synced(database: Database) -> None:
    """NORMAL would lose commits at a loss of power."""
    settings = [
        await database.write(lambda c, name=name: c.execute(f"PRAGMA {name}").fetchone()[0])  # type: ignore[misc]
        for name in ("journal_mode", "synchronous")
    ]
    assert settings == ["wal", 2]


async def test_a_read_sees_every_write_answered_before(database: Database) -> None:
    for i in range(200):
        await database.write(lambda c, i=i: c.execute("INSERT INTO lanes VALUES (?, 0, 0, 0)", (i,)))  # type: ignore[misc]
        assert await database.read(lambda c: c.execute("SELECT count(*) FROM lanes").fetchone()[0]) == i + 1


async def test_the_reader_does_not_write(database: Database) -> None:
    with pytest.raises(Unavailable, match="readonly"):
        await database.read(lambda c: c.execute("INSERT INTO lanes VALUES (1, 0, 0, 0)"))


async def test_a_closed_database_says_so(tmp_path: Path) -> None:
    database = Database.open(tmp_path)
    last = asyncio.create_task(database.write(lambda c: c.execute("INSERT INTO lanes VALUES (1, 0, 0, 0)").rowcount))
    await asyncio.sleep(0)
    await database.close()
    assert await last == 1, "what was begun is finished"
    with pytest.raises(NotWritten):
        await database.write(lambda c: None)
    with pytest.raises(Unavailable):
        await database.read(lambda c: None)
