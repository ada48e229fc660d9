"""Those who receive, each a process of its own.

    python -m tests.faults.outside messages PATH BOOTSTRAP TOPIC ...     a read_committed consumer
    python -m tests.faults.outside deliveries PATH ADDRESSES QUEUE       a worker

They write down what they see until they are told to stop.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from pathlib import Path
from typing import Any

import uvloop
from aiokafka import AIOKafkaConsumer

from bucketsched import Task, Worker
from bucketsched.core.message import from_headers

from .history import Event, HistoryWriter, now_ms
from .model import body_of

POLL_MS = 50
FAILING = 0.05
"""The share of deliveries that fail, and are tried again."""
NAPS_S = (0, 0, 0, 0.01, 0.3)


def message_event(record: Any, partition: tuple[str, int], seen_ms: int | None) -> Event:
    """A record as it is written down."""
    event = from_headers(record.headers, record.value)
    body = body_of(
        event.namespace,
        event.queue,
        event.type,
        event.payload,
        event.metadata,
        event.content_type,
        event.priority,
        event.due_ms,
    )
    return {
        "e": "message",
        "place": [*partition, record.offset],
        "dispatch": [event.task_id, event.generation, event.attempt],
        "body": body,
        "append": record.timestamp,
        "seen": seen_ms,
    }


async def record_messages(path: str, bootstrap: str, *topics: str) -> None:
    """Everything in the topics from their beginnings on."""
    history = HistoryWriter(Path(path))
    consumer = AIOKafkaConsumer(
        *topics,
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        fetch_max_wait_ms=POLL_MS,
        request_timeout_ms=5_000,
        retry_backoff_ms=50,
    )
    await consumer.start()
    print(json.dumps("ready"), flush=True)
    try:
        while True:
            found = await consumer.getmany(timeout_ms=POLL_MS, max_records=2_000)
            at_ms = now_ms()
            for place, records in found.items():
                for record in records:
                    history.note(message_event(record, (place.topic, place.partition), at_ms))
            await asyncio.sleep(0)
    finally:
        history.close()
        await consumer.stop()


async def record_deliveries(path: str, addresses: str, queue: str) -> None:
    """What a worker is given; some of it fails, and some of it takes a while."""
    history = HistoryWriter(Path(path))
    worker = Worker(addresses, queue, concurrency=200, lease=10)
    rng = random.Random(queue)

    @worker.default
    async def note(task: Task) -> None:
        body = body_of(
            task.namespace,
            task.queue,
            task.type,
            task.payload,
            task.metadata,
            task.content_type,
            task.priority,
            task.due_ms,
        )
        await history.record(
            {
                "e": "delivery",
                "dispatch": [task.id, task.generation, task.attempt],
                "body": body,
                "began": now_ms(),
            }
        )
        await asyncio.sleep(rng.choice(NAPS_S))
        if rng.random() < FAILING:
            raise RuntimeError("failed on purpose")

    async def announce() -> None:
        await worker.attached()
        print(json.dumps("ready"), flush=True)

    announcing = asyncio.create_task(announce())
    try:
        await worker.run()
    finally:
        announcing.cancel()
        history.close()


async def until_told(kind: str, path: str, *arguments: str) -> None:
    """Ends in order at SIGTERM."""
    work = record_messages if kind == "messages" else record_deliveries
    recording = asyncio.create_task(work(path, *arguments))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, recording.cancel)
    await asyncio.wait([recording])
    if not recording.cancelled():
        recording.result()


if __name__ == "__main__":
    uvloop.run(until_told(*sys.argv[1:]))
