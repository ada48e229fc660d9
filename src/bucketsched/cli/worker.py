"""`bucketsched worker`: receive tasks."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from .connection import Connection, connection_options
from .output import instant
from .parameters import LENGTH

if TYPE_CHECKING:
    from ..client import Client, Task


@click.group()
def worker() -> None:
    """Receive tasks."""


@worker.command()
@click.option("--queue", default="default", show_default=True)
@click.option("--count", type=click.IntRange(min=1), help="End after so many tasks.")
@click.option("--concurrency", type=click.IntRange(1, 10_000), default=100, show_default=True)
@click.option(
    "--lease",
    type=LENGTH,
    default="60s",
    show_default=True,
    help="A task that is not done by then is offered again: 1s to 12h.",
)
@connection_options
def echo(connection: Connection, queue: str, count: int | None, concurrency: int, lease: timedelta) -> None:
    """Print each received task as one line of JSON, and acknowledge it. Ends on SIGINT or SIGTERM."""
    from ..client import Client

    client = Client(connection.address, connection.namespace, timeout=connection.timeout_s)
    asyncio.run(_echo(client, queue, count, concurrency, lease.total_seconds()))


async def _echo(client: Client, queue: str, count: int | None, concurrency: int, lease_s: float) -> None:
    from ..client import Worker
    from ..client.clock import WallClock

    clock = WallClock()
    printed = 0
    async with client:
        worker = Worker(client, queue, concurrency=concurrency, lease=lease_s)

        @worker.default
        async def print_task(task: Task) -> None:
            nonlocal printed
            received_ns = clock.now_ns()
            if count is not None and printed >= count:
                await asyncio.Event().wait()  # one too many: the stop below gives it back
            printed += 1
            print(json.dumps(_described(task, received_ns), ensure_ascii=False), flush=True)
            if printed == count:
                worker.stop()
                worker.stop()

        await worker.run()


def _described(task: Task, received_ns: int) -> dict[str, Any]:
    try:
        payload: dict[str, str] = {"payload": task.text()}
    except UnicodeDecodeError:
        import base64

        payload = {"payload_base64": base64.b64encode(task.payload).decode()}
    return {
        "task_id": task.id,
        "type": task.type,
        "queue": task.queue,
        "due": instant(task.due),
        "dispatched": instant(task.dispatched),
        "lateness_ms": round(received_ns / 1e6 - task.due_ms, 3),
        "attempt": task.attempt,
        "generation": task.generation,
        "offer_count": task.offer_count,
        "metadata": task.metadata,
        **payload,
    }
