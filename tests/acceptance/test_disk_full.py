"""The disk of an embedded server is full: it says so, keeps what it has accepted, and goes on when there is room."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from small_disk import SmallDisk, small_disk
from test_embedded import Echo, Server, echoing
from tests.nodes import Process, until
from tests.outages.caller import Told, details

from bucketsched import Client, CreatedTask
from bucketsched.core.task import FactKind
from bucketsched.errors import CreateUnavailable, StorageFull
from bucketsched.stubs.v1 import task_pb2, task_pb2_grpc

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

RESERVE_MIB = 8
SIZE_MIB = 40
PAYLOAD = bytes(48 * 1024)
BATCH = 20
FAR_S = 3_000.0
BACK_S = 60.0
PATIENCE_S = 60.0
"""Long beside what a create takes on a busy machine."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path, RESERVE_MIB, SIZE_MIB) as disk:
        yield disk


@pytest.fixture
def server(tmp_path: Path, disk: SmallDisk) -> Iterator[Server]:
    server = Server(tmp_path, disk.data, lambda: disk.arguments)
    yield server
    for process in server.processes:
        process.end()
        process.show()


@asynccontextmanager
async def served(server: Server) -> AsyncIterator[tuple[Process, Client]]:
    process = await server.start()
    async with Client(server.address) as client:
        yield process, client


async def fill_with_tasks(server: Server, delay_s: float) -> list[CreatedTask]:
    """Until the server takes no more; those that it took. It is asked without the SDK, which would try again."""
    accepted: list[CreatedTask] = []
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = task_pb2_grpc.TaskServiceStub(channel)
        for _ in range(10 * SIZE_MIB * 1024 // 48 // BATCH):
            delay = Duration()
            delay.FromMilliseconds(int(1_000 * delay_s) + 10 * len(accepted))
            items = [task_pb2.CreateTaskRequest(type="t", payload=PAYLOAD, delay=delay) for _ in range(BATCH)]
            answer = await stub.BatchCreateTasks(task_pb2.BatchCreateTasksRequest(requests=items), timeout=PATIENCE_S)
            for result in answer.results:
                if result.WhichOneof("result") == "created":
                    due = result.created.due_time
                    due_ms = due.seconds * 1_000 + due.nanos // 1_000_000
                    accepted.append(CreatedTask(result.created.task_id, due_ms))
            refused = [result.error for result in answer.results if result.WhichOneof("result") == "error"]
            assert {error.code for error in refused} <= {grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]}, refused
            if refused:
                return accepted
    raise AssertionError(f"it took {len(accepted)} tasks")


async def refusal(address: str) -> Told:
    """What one create is told, without the SDK's patience."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = task_pb2_grpc.TaskServiceStub(channel)
        began = time.monotonic()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.CreateTask(task_pb2.CreateTaskRequest(type="t", payload=PAYLOAD), timeout=PATIENCE_S)
    assert time.monotonic() - began < 10, "it is refused at once: by default it would be tried for as long"
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "MiB are left" in (caught.value.details() or "")
    return details(caught.value)


async def accepts_again(client: Client) -> CreatedTask:
    """Within a moment: nobody has to restart anything."""
    deadline = time.monotonic() + BACK_S
    while True:
        try:
            return await client.create("t", b"again", delay=0.1)
        except CreateUnavailable as error:
            if not isinstance(error.cause, StorageFull) or time.monotonic() > deadline:
                raise


def check(server: Server, echo: Echo, tasks: list[CreatedTask]) -> None:
    journaled = Counter(task_id for task_id, kind in server.journaled().elements() if kind is FactKind.DISPATCHED)
    assert journaled == Counter(task.id for task in tasks), "all that was accepted, each once, and nothing else"
    assert not echo.early()


async def test_creates_are_refused_clearly_and_what_is_stored_goes_out(server: Server) -> None:
    """The reserve is for what was accepted: all of it is dispatched, delivered and acknowledged on a disk without room
    for more.
    """
    async with served(server) as (process, client):
        tasks = await fill_with_tasks(server, 4.0)
        assert len(tasks) > 100
        told = await refusal(server.address)
        assert (told.reason, told.retry_s) == ("STORAGE_FULL", 5.0)
        async with echoing(client) as echo:
            await echo.until_all(tasks)
        assert await process.terminate() == 0
    check(server, echo, tasks)


@pytest.mark.parametrize("killed", [False, True])
async def test_nothing_accepted_is_lost_on_a_disk_without_a_byte_left(
    server: Server, disk: SmallDisk, killed: bool
) -> None:
    async with served(server) as (process, client):
        far = await client.create("t", b"far", delay=FAR_S)
        tasks = await fill_with_tasks(server, 1.0)
        async with echoing(client) as echo:
            await until(lambda: len(echo.got) > 10, "the first tasks come")
            await asyncio.to_thread(disk.fill)
            await refusal(server.address)
            if killed:
                await process.kill()
            if killed or disk.needs_restart:
                if process.code is None:
                    assert await process.terminate() == 0
                await asyncio.to_thread(disk.empty)
                process = await server.start()
            else:
                await asyncio.sleep(1.0)
                await asyncio.to_thread(disk.empty)
            tasks.append(await accepts_again(client))
            await echo.until_all(tasks)
        assert (await client.get(far.id)).payload == b"far"
        assert await process.terminate() == 0
    check(server, echo, tasks)


async def test_a_start_on_a_full_disk_waits_for_room(server: Server, disk: SmallDisk) -> None:
    async with served(server) as (process, client):
        tasks = await fill_with_tasks(server, 2.0)
        await process.kill()
    await asyncio.to_thread(disk.fill)
    process = server.spawn()
    if disk.needs_restart:
        await process.ready()
        assert await process.terminate() == 0
        disk.empty()
        process = server.spawn()
    else:
        await until(lambda: "full" in process.err() or process.code is not None, "it says what it waits for")
        assert process.code is None, process.err()
        await asyncio.to_thread(disk.empty)
    await process.ready()
    async with Client(server.address) as client, echoing(client) as echo:
        await echo.until_all(tasks)
    assert await process.terminate() == 0
    check(server, echo, tasks)
