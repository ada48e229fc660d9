"""Child processes: started in a session of their own, spoken to in JSON lines, ended by pid whatever happens."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

LINE_BYTES_MAX = 4 * 1024 * 1024
POLITE_S = 15.0
"""How long a child may take to end after SIGTERM."""
SHOWN_LINES = 15
ROOT = Path(__file__).resolve().parent.parent


class ChildFailed(Exception):
    """A child ended, or did not say what it should have said in time. The message holds its last words."""


class Child:
    """One running process. `pid` is that of the command itself."""

    def __init__(self, name: str, process: Process, log: Path) -> None:
        self.name, self.pid = name, process.pid
        self._process, self._log = process, log

    async def line(self, timeout_s: float) -> Any:
        """Its next line on stdout, decoded. Raises ChildFailed."""
        assert self._process.stdout is not None
        try:
            raw = await asyncio.wait_for(self._process.stdout.readline(), timeout_s)
        except TimeoutError:
            raise self.failed(f"said nothing within {timeout_s:.0f} s") from None
        if not raw:
            raise self.failed(f"ended with code {await self._process.wait()}")
        return json.loads(raw)

    async def ask(self, command: Mapping[str, Any], timeout_s: float) -> Any:
        """Sends a line to its stdin; its answer. Raises ChildFailed."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        return await self.line(timeout_s)

    def failed(self, what: str) -> ChildFailed:
        """The error that tells what went wrong, with the child's last lines on stderr."""
        said = self._log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
        return ChildFailed("\n    ".join([f"{self.name} {what}", *said]))

    def cpu_s(self) -> float:
        """The processor time that it has used so far; 0 where the system does not tell."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def ended(self) -> int:
        """Waits for its end; the exit code, negative after a signal."""
        return await self._process.wait()

    async def kill(self) -> None:
        """As by kill -9; returns when it is gone."""
        self._signal(signal.SIGKILL)
        await self._process.wait()

    async def end(self) -> None:
        """Asks it to end, and kills it if it does not."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(POLITE_S):
                await self._discard_output()
                await self._process.wait()
        except TimeoutError:
            await self.kill()

    async def _discard_output(self) -> None:
        """A child that still writes must not block on a full pipe."""
        assert self._process.stdout is not None
        while await self._process.stdout.read(1 << 16):
            pass

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            self._process.send_signal(number)


class Children:
    """All children of a run, and the folder for what they say on stderr. They end, in reverse order, with the block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[Child] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.end_all()

    async def start(self, name: str, *arguments: str, env: Mapping[str, str] | None = None) -> Child:
        """Starts `python -m arguments...`."""
        log = self._folder / f"{name}.log"
        command = (sys.executable, "-m", "bench.leash", str(os.getpid()), sys.executable, "-m", *arguments)
        with log.open("ab") as stderr:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=stderr,
                cwd=ROOT,
                env={**os.environ, **(env or {})},
                limit=LINE_BYTES_MAX,
                start_new_session=True,  # a Ctrl-C in the terminal is for us, who end them in order
            )
        child = Child(name, process, log)
        self._running.append(child)
        return child

    async def end_all(self) -> None:
        """Ends those that still run."""
        await self.end(*self._running)

    async def end(self, *children: Child) -> None:
        """Ends these, the last one first and each before the next."""
        for child in reversed(children):
            await asyncio.shield(asyncio.ensure_future(child.end()))
            if child in self._running:
                self._running.remove(child)


async def run_once(name: str, *arguments: str, env: Mapping[str, str], timeout_s: float) -> str:
    """Runs `python -m arguments...` to its end; what it printed. Raises ChildFailed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.leash", str(os.getpid()), sys.executable, "-m", *arguments),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        cwd=ROOT,
        env={**os.environ, **env},
        start_new_session=True,
    )
    try:
        printed, complained = await asyncio.wait_for(process.communicate(), timeout_s)
    except TimeoutError:
        raise ChildFailed(f"{name} did not end within {timeout_s:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await asyncio.shield(asyncio.ensure_future(process.wait()))
    if process.returncode:
        raise ChildFailed(f"{name} ended with code {process.returncode}: {complained.decode(errors='replace').strip()}")
    return printed.decode()


def run(work: Coroutine[Any, Any, int]) -> int:
    """Runs a demo or a measurement to its exit code. SIGTERM ends it in order, as Ctrl-C does."""

    async def until_signal() -> int:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(until_signal())
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    except ChildFailed as failure:
        print(f"failed: {failure}", file=sys.stderr)
        return 1
