"""A worker that writes down when its handler began: `python -m bench.worker_recorder ADDRESS QUEUE`, until SIGTERM."""

from __future__ import annotations

import asyncio
import sys
import time

import uvloop

from bucketsched import Task, Worker

from .arrivals import Arrivals

WRITE_INTERVAL_S = 0.2
CONCURRENCY = 1_000


async def record(address: str, queue: str) -> None:
    """Until it is told to stop."""
    arrivals = Arrivals()
    worker = Worker(address, queue, concurrency=CONCURRENCY)

    @worker.default
    async def note(task: Task) -> None:
        arrivals.add(task.id, time.time_ns())

    async def write() -> None:
        await worker.attached()
        arrivals.ready()
        while True:
            await asyncio.sleep(WRITE_INTERVAL_S)
            arrivals.write_all()

    writing = asyncio.create_task(write())
    try:
        await worker.run()
    finally:
        writing.cancel()
        arrivals.write_all()


if __name__ == "__main__":
    uvloop.run(record(*sys.argv[1:]))
