"""A plain `read_committed` consumer that writes down what became visible when.

`python -m bench.topic_recorder BOOTSTRAP TOPIC`, until SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections import deque
from typing import Any

import uvloop
from aiokafka import AIOKafkaConsumer

from .arrivals import Arrivals

WRITE_INTERVAL_S = 0.2
QUIET_MS = 100
ID_HEADER = "ce_taskid"


async def record(bootstrap: str, topic: str) -> None:
    """Everything in the topic, from its beginning on."""
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        group_id=None,
    )
    await consumer.start()
    try:
        await _consume(consumer)
    finally:
        await consumer.stop()


async def _consume(consumer: Any) -> None:
    """Records are looked into later, while nothing comes, or a few at a time: receiving goes first."""
    arrivals, came = Arrivals(), deque[tuple[int, list[Any]]]()
    arrivals.ready()
    wrote = time.monotonic()
    while True:
        found = await consumer.getmany(timeout_ms=QUIET_MS)
        at_ns = time.time_ns()
        came.extend((at_ns, records) for records in found.values())
        if not found:
            _note(came, arrivals, len(came))
            arrivals.write_all()
        elif time.monotonic() - wrote > WRITE_INTERVAL_S:
            _note(came, arrivals, 50)
            arrivals.write()
            wrote = time.monotonic()


def _note(came: deque[tuple[int, list[Any]]], arrivals: Arrivals, count: int) -> None:
    for _ in range(min(count, len(came))):
        at_ns, records = came.popleft()
        for record in records:
            arrivals.add(dict(record.headers)[ID_HEADER].decode(), at_ns)


async def until_told(bootstrap: str, topic: str) -> None:
    """Ends in order at SIGTERM."""
    recording = asyncio.create_task(record(bootstrap, topic))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, recording.cancel)
    await asyncio.wait([recording])
    if not recording.cancelled():
        recording.result()


if __name__ == "__main__":
    uvloop.run(until_told(*sys.argv[1:]))
