"""Processes whose wall clock is wrong, and is set while they run: libfaketime (Debian's package `faketime`).

    clock = FakeClock(folder)
    process = cluster.start("one", environment=clock.environment)
    clock.shift(-5)          # at once, in every process that was started with this environment

CLOCK_REALTIME is faked, CLOCK_MONOTONIC and CLOCK_BOOTTIME are not: to the process it looks as if somebody had set the
machine's clock. For Python processes only: JVMs hang under it.
"""

from __future__ import annotations

import os
from pathlib import Path

LIBRARIES = "/usr/lib", "/usr/local/lib"
SLEEP = """\
# libfaketime takes clock_nanosleep for a wait until a faked instant, which fails at once: sleep by a lock instead.
import threading, time

def _sleep(seconds, _wait=threading.Event().wait):
    _wait(seconds)

time.sleep = _sleep
"""


def library() -> str:
    """Where libfaketime is. Raises FileNotFoundError."""
    for folder in LIBRARIES:
        for path in sorted(Path(folder).glob("**/faketime/libfaketimeMT.so.1")):
            return str(path)
    raise FileNotFoundError("libfaketime is missing: apt-get install faketime")


class FakeClock:
    """The wall clock of the processes started with `environment`. It is right until `shift` is called."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "faketime"
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "sitecustomize.py").write_text(SLEEP)
        self._file = self._folder / "offset"
        self.shift(0)

    def shift(self, seconds: float) -> None:
        """From now on the clock is so much ahead of the true one (negative: behind)."""
        fresh = self._folder / "offset.new"
        fresh.write_text(f"{seconds:+.3f}\n")
        os.replace(fresh, self._file)

    @property
    def environment(self) -> dict[str, str]:
        """For a child process."""
        return {
            "LD_PRELOAD": library(),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "PYTHONPATH": str(self._folder),
        }
