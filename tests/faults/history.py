"""What happened, seen from outside: JSON lines that are on the disk before whoever writes them goes on.

Each process of the rig writes a file of its own. All of them read one clock: this machine's, which no fault touches.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]
LINES_WAITING_MAX = 100_000


def now_ms() -> int:
    """The rig's one clock."""
    return time.time_ns() // 1_000_000


class HistoryWriter:
    """Appends events to a file. Many that come at once share an fsync, which runs in a thread of its own."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
        self._lines: list[bytes] = []
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._write, name="history", daemon=True)
        self._thread.start()

    def note(self, event: Event) -> None:
        """Writes an event soon; the caller does not wait."""
        with self._changed:
            assert len(self._lines) < LINES_WAITING_MAX, "the disk does not keep up with the history"
            self._lines.append(json.dumps(event, separators=(",", ":")).encode() + b"\n")
            self._changed.notify()

    async def record(self, *events: Event) -> None:
        """Returns when the events are on the disk."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        for event in events:
            self.note(event)
        with self._changed:
            self._waiting.append((loop, done))
            self._changed.notify()
        await done

    def close(self) -> None:
        """Writes what is left."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._file.close()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._waiting or self._closing)
                lines, self._lines = self._lines, []
                waiting, self._waiting = self._waiting, []
                if not (lines or waiting):
                    return
            self._file.write(b"".join(lines))
            self._file.flush()
            os.fsync(self._file.fileno())
            for loop, done in waiting:
                loop.call_soon_threadsafe(_set, done)


def _set(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


class HistoryReader:
    """Follows a file that is still written."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def fresh(self) -> Iterator[Event]:
        """The events since the last call, whole lines only."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._at += len(line)
                yield json.loads(line)


def read(path: Path) -> list[Event]:
    """All events of a file; none if there is no such file."""
    return list(HistoryReader(path).fresh())
