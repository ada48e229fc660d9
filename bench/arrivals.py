"""The recorders' side of a recording: JSON lines on stdout, each a list of [task id, nanoseconds]."""

from __future__ import annotations

import json
import sys
from collections import deque

LINE_ARRIVALS_MAX = 500


class Arrivals:
    """Collects cheaply, and writes when there is time for it."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, int]] = deque()

    def ready(self) -> None:
        """Tells that from now on everything is received."""
        _write("ready")

    def add(self, task_id: str, at_ns: int) -> None:
        """Notes an arrival."""
        self._waiting.append((task_id, at_ns))

    def write(self, arrivals_max: int = LINE_ARRIVALS_MAX) -> None:
        """Writes the oldest ones."""
        if count := min(len(self._waiting), arrivals_max):
            _write([self._waiting.popleft() for _ in range(count)])

    def write_all(self) -> None:
        """Writes all of them."""
        while self._waiting:
            self.write()


def _write(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
