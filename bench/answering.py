"""The child's side of `Child.ask`: a JSON line in, a JSON line out, until stdin ends."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any


async def answer(work: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]) -> None:
    """Says that it is ready, then does what each line asks for. What it raises ends the process."""
    _write("ready")
    while line := await asyncio.to_thread(sys.stdin.readline):
        _write(await work(json.loads(line)))


def _write(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
