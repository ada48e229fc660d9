"""How long the SDK waits before it tries again: as long as the server asks for, within its caller's time."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
from fake_server import FakeServer
from google.protobuf.duration_pb2 import Duration

from bucketsched import Client
from bucketsched.core.errors import BucketschedError, StorageFull, Unavailable
from bucketsched.errors import CreateUnavailable
from bucketsched.stubs.v1 import task_pb2

UNAVAILABLE_CODE, EXHAUSTED_CODE = 14, 8
ASKED_MS = 400


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    server = FakeServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server: FakeServer) -> AsyncIterator[Client]:
    async with Client(server.address) as client:
        await client.info()
        yield client


def asking(kind: type[Unavailable], after_ms: int = ASKED_MS) -> Unavailable:
    error = kind("not now")
    error.retry_after_ms = after_ms
    return error


class Refusals:
    """Refuses the first so many items, and notes when each came."""

    def __init__(self, count: int, code: int, after_ms: int) -> None:
        self._left, self._code, self._after_ms = count, code, after_ms
        self.at: list[float] = []

    def __call__(self, item: task_pb2.CreateTaskRequest) -> task_pb2.ItemError | None:
        self.at.append(time.monotonic())
        self._left -= 1
        if self._left < 0:
            return None
        delay = Duration()
        delay.FromMilliseconds(self._after_ms)
        return task_pb2.ItemError(code=self._code, message="not now", retry_delay=delay)

    def gaps(self) -> list[float]:
        return [after - before for before, after in zip(self.at, self.at[1:], strict=False)]


@pytest.mark.parametrize("code", [UNAVAILABLE_CODE, EXHAUSTED_CODE])
async def test_a_create_waits_as_long_as_it_is_asked_to(server: FakeServer, client: Client, code: int) -> None:
    server.on_item = refusals = Refusals(2, code, ASKED_MS)
    created = await client.create("t", delay=60)
    assert created.id in server.tasks
    assert min(refusals.gaps()) >= ASKED_MS / 1_000


async def test_a_call_waits_as_long_as_it_is_asked_to(server: FakeServer, client: Client) -> None:
    task = await client.create("t", delay=60)
    failures: list[BucketschedError] = [asking(Unavailable), asking(StorageFull)]
    at: list[float] = []

    def refuse() -> None:
        at.append(time.monotonic())
        if failures:
            raise failures.pop()

    server.on_cancel = refuse
    await client.cancel(task.id)
    assert len(at) == 3
    assert min(at[1] - at[0], at[2] - at[1]) >= ASKED_MS / 1_000


async def test_a_wait_that_is_longer_than_its_caller_has_is_not_begun(server: FakeServer, client: Client) -> None:
    """The error is that of the server, not one of a last try without a chance."""
    server.on_item = refusals = Refusals(1_000, UNAVAILABLE_CODE, 60_000)
    began = time.monotonic()
    with pytest.raises(CreateUnavailable, match="UNAVAILABLE: not now"):
        await client.create("t", delay=60, timeout=8)
    assert time.monotonic() - began < 7
    assert len(refusals.at) == 1


async def test_a_full_disk_is_told_by_name(server: FakeServer, client: Client) -> None:
    server.on_item = Refusals(1_000, EXHAUSTED_CODE, 5_000)
    with pytest.raises(CreateUnavailable, match="RESOURCE_EXHAUSTED: not now") as caught:
        await client.create("t", delay=60, timeout=0.2)
    assert isinstance(caught.value.cause, StorageFull)
    server.on_item = None
    task = await client.create("t", delay=60)

    def refuse() -> None:
        raise StorageFull("the disk is full")

    server.on_cancel = refuse
    impatient = Client(server.address, timeout=0.2)
    with pytest.raises(StorageFull):
        await impatient.cancel(task.id)
    await impatient.close()
