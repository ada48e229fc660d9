"""The bare aiokafka: full transactions of the scheduler's own messages, one behind the other.

`python -m bench.raw_transactions BOOTSTRAP QUEUE TOPIC`. Asked {"transactions", "records"}, it answers {"began_ns",
"seconds", "cpu_s"}. aiokafka's settings are at their best for this: batches of up to 1 MiB, one partition a
transaction, and 2 ms instead of 20 ms of waiting where the transaction before is still being ended.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from typing import Any

import uvloop
from aiokafka import AIOKafkaProducer
from aiokafka.producer import sender

from . import sample
from .answering import answer

BATCH_BYTES = 1024 * 1024
BACKOFF_S = 0.002
TRANSACTION_TIMEOUT_MS = 10_000


async def produce(bootstrap: str, queue: str, topic: str) -> None:
    """Until stdin ends."""
    assert hasattr(sender, "BACKOFF_OVERRIDE")
    sender.BACKOFF_OVERRIDE = BACKOFF_S
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        transactional_id=f"bench-{uuid.uuid4()}",
        max_batch_size=BATCH_BYTES,
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
    )
    await producer.start()
    message = sample.message(queue, topic)
    partitions = sorted(await producer.partitions_for(topic))

    async def transaction(turn: int, records: int) -> None:
        partition = partitions[turn % len(partitions)]
        async with producer.transaction():
            sent = [
                await producer.send(topic, message.value, headers=message.headers, partition=partition)
                for _ in range(records)
            ]
            await asyncio.gather(*sent)

    async def work(asked: dict[str, Any]) -> dict[str, Any]:
        began_ns, began, cpu_began = time.time_ns(), time.perf_counter(), time.process_time()
        for turn in range(asked["transactions"]):
            await transaction(turn, asked["records"])
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
        return {"began_ns": began_ns, "seconds": seconds, "cpu_s": cpu_s}

    try:
        await answer(work)
    finally:
        await producer.stop()


if __name__ == "__main__":
    uvloop.run(produce(*sys.argv[1:]))
