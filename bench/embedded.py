"""An embedded server of one's own, and a worker that records."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bucketsched import Client

from .load import Creation, create, now_ms
from .processes import Child, Children
from .progress import say
from .recording import Recording

READY_S_MAX = 30.0
QUEUE = "default"
WARM_UP_TASKS = 50
WARM_UP_S_MAX = 10.0


@asynccontextmanager
async def embedded(children: Children, folder: Path) -> AsyncIterator[tuple[Client, Recording]]:
    """A server on a free port with its data in `folder`, warmed up; its client and what its worker receives."""
    addresses = ("--grpc-address", "127.0.0.1:0", "--metrics-address", "")
    server = await children.start(
        "server", "bucketsched", "dev", "--data-dir", str(folder), *addresses, "--output", "json"
    )
    address = (await server.line(READY_S_MAX))["address"]
    say(f"the embedded server is ready at {address} (pid {server.pid})")
    worker = await children.start("worker", "bench.worker_recorder", address, QUEUE)
    recording = await Recording.of(worker)
    say(f"a worker is attached (pid {worker.pid})")
    try:
        async with Client(address) as client:
            await _warm_up(client, recording, worker)
            yield client, recording
    finally:
        await recording.close()
        await children.end(server, worker)


async def _warm_up(client: Client, recording: Recording, worker: Child) -> None:
    creation = Creation()
    await create(client, QUEUE, [now_ms()] * WARM_UP_TASKS, creation)
    if creation.errors or not await recording.all_of(creation.due_ms, WARM_UP_S_MAX):
        raise worker.failed(f"did not get the first tasks; {creation.errors[:1]}")
    recording.forget()
