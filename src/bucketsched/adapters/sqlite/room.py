"""How much room there is, and who may still use it.

A full disk must not stop what is stored already: a dispatch writes a record and a copy of each message, and an
acknowledgement, which makes room, needs a little to be written itself. So creates are refused first, then dispatches
wait, and the last of the reserve is for what makes room.

The database never gives space back to the disk, but uses what was freed in it; so that counts as room. What is still in
the log takes its place in the file soon; so that does not.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import ConfigError, NoRoom

MIB = 1024 * 1024
DISPATCH_SHARE = 4
"""Dispatches wait when less than this part of the reserve is left."""
SHORT_RESERVES = 2
"""Room is short when less than so many reserves are left."""
RESERVES_MIN = 2
"""A limited file holds at least so many reserves."""


@dataclass(frozen=True, slots=True)
class RoomLimits:
    """Bytes. `reserve`: what creates leave; `file_max`: of the database's file, 0: as the disk allows."""

    reserve: int = 64 * MIB
    file_max: int = 0

    def __post_init__(self) -> None:
        if self.reserve < 0:
            raise ConfigError(f"the reserve must be 0 or more MiB, is {self.reserve / MIB:g}")
        if self.file_max and self.file_max < RESERVES_MIN * self.reserve:
            least = RESERVES_MIN * self.reserve / MIB
            raise ConfigError(
                f"the limit of the database must be at least {RESERVES_MIN} reserves, {least:g} MiB, "
                f"is {self.file_max / MIB:g} MiB"
            )


class Room:
    """Of one data directory and the database's file in it."""

    def __init__(self, file: Path, limits: RoomLimits) -> None:
        self._directory, self._file, self._limits = file.parent, file, limits
        self.short = False
        """Creates are refused, or soon are, as it was when somebody looked last."""

    def limit(self, connection: sqlite3.Connection) -> None:
        """Has this connection refuse to let the file grow beyond its limit."""
        if self._limits.file_max:
            (page,) = connection.execute("PRAGMA page_size").fetchone()
            connection.execute(f"PRAGMA max_page_count = {max(1, self._limits.file_max // page)}").fetchone()

    def check_create(self, connection: sqlite3.Connection) -> None:
        """Raises NoRoom where only the reserve is left."""
        self._check(connection, self._limits.reserve)

    def check_dispatch(self, connection: sqlite3.Connection) -> None:
        """Raises NoRoom where only what is kept for making room is left."""
        self._check(connection, self._limits.reserve // DISPATCH_SHARE)

    def look(self, connection: sqlite3.Connection) -> None:
        """Finds out whether room is short."""
        self._left(connection)

    def log_bytes(self) -> int:
        """How long the log is, whatever of it is still needed."""
        log = self._file.with_name(f"{self._file.name}-wal")
        return log.stat().st_size if log.exists() else 0

    def _check(self, connection: sqlite3.Connection, keep: int) -> None:
        left, where = self._left(connection)
        if left < keep:
            raise NoRoom(f"{where}: {left / MIB:.1f} MiB are left, {keep / MIB:.1f} MiB are kept for what is stored")

    def _left(self, connection: sqlite3.Connection) -> tuple[int, str]:
        """Bytes, and what limits them."""
        left, where = self._measure(connection)
        self.short = left < SHORT_RESERVES * self._limits.reserve
        return left, where

    def _measure(self, connection: sqlite3.Connection) -> tuple[int, str]:
        (page,) = connection.execute("PRAGMA page_size").fetchone()
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        (free,) = connection.execute("PRAGMA freelist_count").fetchone()
        disk = os.statvfs(self._directory)
        in_log = max(0, pages * page - self._file.stat().st_size)
        on_disk = disk.f_bavail * disk.f_frsize - in_log + free * page
        in_file = self._limits.file_max - (pages - free) * page
        if self._limits.file_max and in_file < on_disk:
            return max(0, in_file), "the database is at its limit"
        return max(0, on_disk), f"the disk of {self._directory} is full"
