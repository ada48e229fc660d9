"""Processes by pid and start time: a pid that was given to somebody else meanwhile is not ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

POLL_S = 0.05


@dataclass(frozen=True)
class Process:
    """A process that was started here, by this process or by an earlier one."""

    pid: int
    born: str
    """When the kernel says that it began; with the pid it names one process until the next boot."""

    @property
    def alive(self) -> bool:
        """Whether it still runs. A child that has ended is reaped on the way."""
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        return born(self.pid) == self.born

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, if it is still the same process."""
        if self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait_gone(self, timeout_s: float) -> bool:
        """Waits for its end; False if it still runs after the time-out."""
        deadline = time.monotonic() + timeout_s
        while self.alive:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def end(self, polite_s: float) -> None:
        """Asks it to end, kills it if it has not after `polite_s`, and returns when it is gone."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        if not self.wait_gone(polite_s):
            self.signal(signal.SIGKILL)
            self.wait_gone(60)

    def save(self, path: Path) -> None:
        """Writes it down for a later process; atomically."""
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self)))
        fresh.replace(path)


def saved(path: Path) -> Process | None:
    """The process written down there, alive or not; None if there is none."""
    try:
        return Process(**json.loads(path.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def spawn(command: list[str], log: Path, folder: Path) -> Process:
    """Starts a command in a session of its own, appending its output to `log`. Raises OSError."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder, start_new_session=True
        )
    child.returncode = 0  # reaped by `alive`, not by Popen's destructor
    return Process(child.pid, born(child.pid) or "")


def born(pid: int) -> str | None:
    """The start time of a process in some fixed notation; None if there is no such process or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None if Path("/proc/self").exists() else _born_by_ps(pid)
    return None if fields[0] in "ZX" else f"{_boot()}:{fields[19]}"


def _boot() -> str:
    """Names this boot of the machine, as start times count from there."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _born_by_ps(pid: int) -> str | None:
    """For systems without /proc."""
    shown = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, start = shown.stdout.strip().partition(" ")
    return None if not start or state.startswith("Z") else start.strip()
