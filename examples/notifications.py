"""Notices of what becomes of tasks: a queue for dead letters, and a task that tells when it is done.

bucketsched dev                  # in another terminal
python examples/notifications.py
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

from bucketsched import Client, NoticeEvent, NoticeRule, RetryPolicy, Task, Worker

TOLD = 3
"""Notices that are to come."""


async def main(target: str) -> None:
    """Two payments fail for good, and a third one succeeds; all of them are told of."""
    async with Client(target) as client:
        name = uuid4().hex[:8]
        letters, payments = f"dead-letters-{name}", f"payments-{name}"
        await client.create_queue(letters)  # or of kind KAFKA: a dead-letter topic; or of kind WEBHOOK
        policy = RetryPolicy(max_attempts=2, initial_delay=0.1)
        rules = [NoticeRule([NoticeEvent.DEAD_LETTERED, NoticeEvent.EXPIRED], letters)]
        await client.create_queue(payments, retry=policy, notices=rules)

        notices: asyncio.Queue[Task] = asyncio.Queue()
        async with working(client, payments, pay), working(client, letters, notices.put):
            for order in (b"1", b"2"):
                await client.create("pay", order, queue=payments, metadata={"order": order.decode()})
            also_done = [NoticeRule([NoticeEvent.SUCCEEDED], letters)]  # besides those of its queue
            await client.create("pay", b"3", queue=payments, metadata={"order": "3"}, notices=also_done)
            for _ in range(TOLD):
                show(await notices.get())
        print(f"told: {TOLD} tasks")


async def pay(task: Task) -> None:
    """Orders 1 and 2 can't be paid."""
    if task.payload != b"3":
        raise ConnectionError("the bank does not answer")


def show(notice: Task) -> None:
    """What a notice says."""
    told = json.loads(notice.payload)
    why = f": {told['error']['type']}: {told['error']['message']}" if "error" in told else ""
    print(f"{notice.type}: order {told['metadata']['order']}, attempt {told['attempt']}{why}")


@asynccontextmanager
async def working(client: Client, queue: str, handler: Callable[[Task], Awaitable[None]]) -> AsyncIterator[None]:
    """A worker for everything in the queue."""
    worker = Worker(client, queue)
    worker.default(handler)
    at_work = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        with contextlib.suppress(asyncio.CancelledError):
            await at_work


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="127.0.0.1:7400", help="host:port of a server [%(default)s]")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)  # what handlers raise is told here by the notices of it
    asyncio.run(main(arguments.target))
