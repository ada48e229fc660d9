"""One server: a JVM with a folder, that can be started, stopped, killed, paused."""

from __future__ import annotations

import shutil
import signal
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from .errors import StackError
from .jars import Jars, Java, find_java
from .layout import Layout
from .process import POLL_S, Process, saved, spawn

START_S_MAX = 420
STOP_S_MAX = 30
LOG_LINES_SHOWN = 25


class Server(ABC):
    """A server of a stack. All methods block; call them from a thread where an event loop must go on."""

    kind: ClassVar[str]

    def __init__(self, folder: Path, jars: Jars, layout: Layout, number: int = 1) -> None:
        self.number = number
        self.name = self.name_of(number)
        self.folder = folder / self.name
        self.jars = jars
        self.layout = layout
        self.ports: dict[str, int] = {}
        """All ports of the stack, by name."""

    @classmethod
    def name_of(cls, number: int) -> str:
        """The name of the nth server of this kind; the first is called after its kind."""
        return cls.kind if number == 1 else f"{cls.kind}-{number}"

    @property
    def host(self) -> str:
        """Where it listens."""
        return "127.0.0.1"

    @property
    def address(self) -> str:
        """host:port where it listens for clients."""
        return f"{self.host}:{self.port}"

    @property
    def front(self) -> str:
        """host:port that clients are told: its address, unless the stack is fronted."""
        return f"{self.host}:{self.ports[f'{self.name}_front']}" if self.layout.fronted else self.address

    @property
    def port(self) -> int:
        """The clients' port."""
        return self.ports[self.port_names[0]]

    @property
    def port_names(self) -> tuple[str, ...]:
        """The names of its ports, the clients' first."""
        return (self.name, f"{self.name}_front") if self.layout.fronted else (self.name,)

    @property
    def log(self) -> Path:
        """What the server printed."""
        return self.folder / "log" / "server.log"

    @property
    def process(self) -> Process | None:
        """The living process, started by whomever; None if there is none."""
        found = saved(self.folder / "process.json")
        return found if found and found.alive else None

    @abstractmethod
    def answers(self) -> bool:
        """Whether it answers a client now."""

    @abstractmethod
    def configure(self, java: Java) -> list[str]:
        """Writes its configuration for its ports and gives the command line (without java itself)."""

    def prepare(self, java: Java) -> None:  # noqa: B027
        """What has to be done before a start; nothing, unless the server says otherwise."""

    def launch(self) -> bool:
        """Begins a start; False if it already runs. Raises StackError."""
        if self.process:
            return False
        java = find_java()
        self.folder.mkdir(parents=True, exist_ok=True)
        arguments = self.configure(java)
        self.prepare(java)
        spawn([java.command, *arguments], self.log, self.folder).save(self.folder / "process.json")
        return True

    def wait_ready(self, timeout_s: float = START_S_MAX) -> None:
        """Returns when it answers. Raises StackError if it ends instead, or does not answer in time."""
        deadline = time.monotonic() + timeout_s
        while not self.answers():
            if not self.process:
                raise StackError(f"{self.name} ended while starting; its log, {self.log}, ends with:\n{self.log_end()}")
            if time.monotonic() > deadline:
                raise StackError(f"{self.name} does not answer after {timeout_s:g} s, see {self.log}")
            time.sleep(POLL_S)

    def start(self, timeout_s: float = START_S_MAX) -> None:
        """Starts it if need be and returns when it answers. Raises StackError."""
        self.launch()
        self.wait_ready(timeout_s)

    def stop(self, polite_s: float = STOP_S_MAX) -> None:
        """Ends it in good order; kills it if that takes longer than `polite_s`. Returns when it is gone."""
        if process := self.process:
            process.end(polite_s)
        (self.folder / "process.json").unlink(missing_ok=True)

    def kill(self) -> None:
        """Ends it as a crash would. Returns when it is gone."""
        if process := self.process:
            process.signal(signal.SIGKILL)
            process.wait_gone(STOP_S_MAX)

    def pause(self) -> None:
        """Freezes it: connections stay, answers stop."""
        if process := self.process:
            process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets it go on after `pause`."""
        if process := self.process:
            process.signal(signal.SIGCONT)

    def restart(self) -> None:
        """Stops and starts it, on the same ports and data. Raises StackError."""
        self.stop()
        self.start()

    def wipe(self) -> None:
        """Removes its files. It must not be running."""
        if self.process:
            raise StackError(f"{self.name} runs; stop it before its files are removed")
        shutil.rmtree(self.folder, ignore_errors=True)

    def log_end(self) -> str:
        """The last lines of its log."""
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:])

    def class_path(self) -> str:
        """All its jars."""
        return f"{self.jars.of(self.kind)}/*"

    def write(self, name: str, text: str) -> Path:
        """Writes a file of its configuration."""
        path = self.folder / "conf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path
