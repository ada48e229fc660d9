"""A file system of a few MiB that can be filled and emptied; where that is not allowed, the database's own limit."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 1024 * 1024


class SmallDisk:
    """`data` is the folder for a server's data."""

    needs_restart = False
    """Whether a server learns of new room only by a start."""

    def __init__(self, folder: Path, reserve_mib: int) -> None:
        self.folder = folder
        self.reserve_mib = reserve_mib
        self.data = folder / "data"

    @property
    def arguments(self) -> tuple[str, ...]:
        """What `bucketsched dev` is to be given besides."""
        return ("--reserve-mib", str(self.reserve_mib))

    def fill(self) -> None:
        """Somebody else takes all that is left."""

    def empty(self) -> None:
        """Gives back what was taken, and makes room for as much again."""


class Mounted(SmallDisk):
    """A tmpfs."""

    def __init__(self, folder: Path, reserve_mib: int, size_mib: int) -> None:
        super().__init__(folder, reserve_mib)
        self._size_mib = size_mib

    def fill(self) -> None:
        with (self.folder / "filling").open("ab", buffering=0) as filling:
            try:
                while filling.write(bytes(64 * 1024)):
                    pass
            except OSError:
                pass

    def empty(self) -> None:
        (self.folder / "filling").unlink(missing_ok=True)
        self._size_mib *= 4
        subprocess.run(["mount", "-o", f"remount,size={self._size_mib}m", str(self.folder)], check=True)


class Limited(SmallDisk):
    """A database with a limit; the room comes back with a start that allows more."""

    needs_restart = True

    def __init__(self, folder: Path, reserve_mib: int, size_mib: int) -> None:
        super().__init__(folder, reserve_mib)
        self._size_mib = size_mib

    @property
    def arguments(self) -> tuple[str, ...]:
        """See SmallDisk."""
        return ("--reserve-mib", str(self.reserve_mib), "--max-mib", str(self._size_mib))

    def empty(self) -> None:
        self._size_mib *= 4


@contextmanager
def small_disk(folder: Path, reserve_mib: int, size_mib: int) -> Iterator[SmallDisk]:
    """A tmpfs of this size where this process may mount one."""
    place = folder / "small"
    place.mkdir()
    mounted = os.geteuid() == 0 and _mount(place, size_mib)
    try:
        yield (Mounted if mounted else Limited)(place, reserve_mib, size_mib)
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(place)], check=True)


def _mount(place: Path, size_mib: int) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(place)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
