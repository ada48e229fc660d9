"""`bucketsched dev` as a real process: quick to start, small, and nothing lost or doubled however it ends."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
from tests.nodes import Process, now_ms, until, until_ms, until_state
from tools.stack.ports import free_port

from bucketsched import CancelOutcome, Client, CreatedTask, NewTask, Task, TaskState, Worker
from bucketsched.core import task_id as ids
from bucketsched.core.journal_record import decode
from bucketsched.core.task import FactKind, RowRef
from bucketsched.errors import Unavailable

pytestmark = pytest.mark.integration

READY_S_MAX = 5.0
"""A second on an idle machine."""
RESIDENT_MIB_MAX = 100.0
ROUNDS = 10
RACES = 1_000
RACE_S = 4.0
PLACES = [
    "create.stored",
    "dispatch.produced:2",
    "dispatch.committed",
    "dispatch.marked",
    "takeover.leased",
    "takeover.checkpoint-read",
    "takeover.fenced",
    "takeover.replayed",
    "takeover.checkpoint-written",
    "takeover.cleared",
    "takeover.loaded",
]


class Server:
    """A data directory and an address, and the processes that serve them one after the other."""

    def __init__(self, folder: Path, data: Path | None = None, more: Callable[[], Sequence[str]] = lambda: ()) -> None:
        """`more`: arguments of `bucketsched dev` besides."""
        self.folder, self.data, self._more = folder, data or folder / "data", more
        self.address = f"127.0.0.1:{free_port()}"
        self.processes: list[Process] = []

    def spawn(self, failpoint: str = "") -> Process:
        arguments = ["dev", "--output", "json", "--data-dir", str(self.data), "--grpc-address", self.address]
        arguments += ["--metrics-address", "127.0.0.1:0", *self._more()]
        environment = {"BUCKETSCHED_FAILPOINT": failpoint} if failpoint else {}
        process = Process(f"{len(self.processes):02}-dev", arguments, self.folder, environment)
        self.processes.append(process)
        return process

    async def start(self) -> Process:
        process = self.spawn()
        assert await process.ready() == self.address
        return process

    def journaled(self) -> Counter[tuple[str, FactKind]]:
        """How often the journal says what of each task, in all its generations and attempts."""
        found: Counter[tuple[str, FactKind]] = Counter()
        for (value,) in self._read("SELECT record FROM journal ORDER BY lane, offset"):
            for section in decode(value).sections:
                found.update((_id(ref), FactKind.DISPATCHED) for ref in section.dispatched)
                found.update((_id(other.ref), other.kind) for other in section.others)
        return found

    def undelivered(self) -> int:
        """How many messages are not acknowledged."""
        [(count,)] = self._read("SELECT count(*) FROM outbox")
        return int(count)

    def _read(self, query: str) -> list[tuple[Any, ...]]:
        [path] = [path for path in self.data.iterdir() if path.read_bytes()[:15] == b"SQLite format 3"]
        with closing(sqlite3.connect(path)) as database:
            return database.execute(query).fetchall()


def _id(ref: bytes) -> str:
    return ids.text(RowRef.unpack(ref).task_id)


@dataclass
class Echo:
    """A worker that writes down what it gets, and when."""

    got: list[tuple[int, Task]] = field(default_factory=list)

    def counts(self) -> Counter[str]:
        return Counter(task.id for _, task in self.got)

    async def until_all(self, tasks: list[CreatedTask]) -> None:
        wanted = {task.id for task in tasks}
        await until(lambda: wanted <= self.counts().keys(), "the worker got every task")

    def early(self) -> list[Task]:
        return [task for at_ms, task in self.got if at_ms < task.due_ms]


@asynccontextmanager
async def echoing(client: Client, queue: str = "default") -> AsyncIterator[Echo]:
    echo, worker = Echo(), Worker(client, queue, concurrency=1_000)

    @worker.default
    async def write_down(task: Task) -> None:
        echo.got.append((now_ms(), task))

    running = asyncio.create_task(worker.run(handle_signals=False))
    try:
        yield echo
    finally:
        worker.stop()
        await running


async def create(client: Client, delays_s: list[float]) -> list[CreatedTask]:
    created = await client.create_many([NewTask("t", b"x", delay=delay) for delay in delays_s])
    return [task for task in created if isinstance(task, CreatedTask)]


@pytest.mark.alone
async def test_it_is_ready_soon_and_small(server: Server) -> None:
    begun = time.monotonic()
    process = await server.start()
    assert time.monotonic() - begun < READY_S_MAX
    assert process.memory_mib() < RESIDENT_MIB_MAX
    async with Client(server.address) as client, echoing(client) as echo:
        tasks = await create(client, [0.5 + i / 1_000 for i in range(2_000)])
        await echo.until_all(tasks)
        assert echo.counts() == Counter(task.id for task in tasks)
        assert not echo.early()
        await until_state(client, tasks[0], TaskState.SUCCEEDED)
    assert process.memory_mib() < RESIDENT_MIB_MAX
    assert await process.terminate() == 0
    both = (FactKind.DISPATCHED, FactKind.SUCCEEDED)
    assert server.journaled() == {(task.id, kind): 1 for task in tasks for kind in both}


async def test_what_was_created_survives_a_stop(server: Server) -> None:
    first = await server.start()
    async with Client(server.address) as client:
        tasks = await create(client, [1.0, 0.0, 2.5])
        [cancelled] = await create(client, [1.0])
        assert await client.cancel(cancelled.id) is CancelOutcome.CANCELLED
        assert await first.terminate() == 0
        await server.start()
        async with echoing(client) as echo:
            await echo.until_all(tasks)
        assert echo.counts() == Counter(task.id for task in tasks)
        assert (await client.get(cancelled.id)).state is TaskState.CANCELLED


async def test_killed_at_random_moments(server: Server) -> None:
    """Under a load of creates, cancels and acks. The worker and the clients live through all of it."""
    rng = random.Random(11)
    created: list[CreatedTask] = []
    cancelled: list[CreatedTask] = []
    over = asyncio.Event()

    async def create_and_cancel(client: Client) -> None:
        while not over.is_set():
            tasks = await create(client, [rng.uniform(0, 2) for _ in range(20)])
            created.extend(tasks)
            for task in tasks[:3]:
                if (await client.cancel(task.id)).cancelled:
                    cancelled.append(task)
            await asyncio.sleep(rng.uniform(0, 0.1))

    process = await server.start()
    async with Client(server.address, timeout=60) as client, echoing(client) as echo:
        loads = [asyncio.create_task(create_and_cancel(client)) for _ in range(4)]
        for _ in range(ROUNDS):
            await asyncio.sleep(rng.uniform(0.2, 1.2))
            created.append(await client.create("t", b"x", delay=rng.uniform(0, 1)))
            await process.kill()  # with an answer as fresh as can be
            process = await server.start()
        over.set()
        await asyncio.gather(*loads)
        gone = {task.id for task in cancelled}
        await echo.until_all([task for task in created if task.id not in gone])
        assert not gone & echo.counts().keys()
        assert not echo.early()
    assert await process.terminate() == 0
    assert len(created) > 20 * ROUNDS
    assert len(cancelled) > ROUNDS
    journaled = server.journaled()
    assert set(journaled.values()) == {1}
    assert {(task_id, FactKind.CANCELLED) for task_id in gone} <= journaled.keys()
    assert not gone & {task_id for task_id, kind in journaled if kind is FactKind.DISPATCHED}


async def test_killed_at_every_failpoint(server: Server) -> None:
    """In turn, each process with what the one before has left, while a client goes on creating."""
    first = await server.start()
    async with Client(server.address, timeout=60) as client:
        tasks = await create(client, [0.2 + i / 30 for i in range(300)])
        await until_ms(tasks[5].due_ms)
        await first.kill()
        creating = []
        for place in PLACES:
            victim = server.spawn(place)
            creating.append(asyncio.create_task(create(client, [0.2 + i / 10 for i in range(5)])))
            assert await victim.ended() == -SIGKILL
        last = await server.start()
        tasks += [task for created in await asyncio.gather(*creating) for task in created]
        assert len(tasks) == 300 + 5 * len(PLACES)
        async with echoing(client) as echo:
            await echo.until_all(tasks)
            assert not echo.early()
    assert await last.terminate() == 0
    both = (FactKind.DISPATCHED, FactKind.SUCCEEDED)
    assert server.journaled() == {(task.id, kind): 1 for task in tasks for kind in both}


async def test_cancel_against_dispatch(server: Server) -> None:
    await server.start()
    rng = random.Random(5)
    async with Client(server.address) as client, echoing(client) as echo:
        tasks = await create(client, [1.5 + rng.uniform(0, RACE_S) for _ in range(RACES)])

        async def cancel(task: CreatedTask) -> CancelOutcome:
            await until_ms(task.due_ms - int(rng.choice((200, 0, rng.uniform(-10, 20)))))
            return await client.cancel(task.id)

        outcomes = await asyncio.gather(*(cancel(task) for task in tasks))
        too_late = {CancelOutcome.ALREADY_DISPATCHED, CancelOutcome.ALREADY_SUCCEEDED}  # the worker may be done with it
        assert {CancelOutcome.CANCELLED} < set(outcomes) <= {CancelOutcome.CANCELLED} | too_late, Counter(outcomes)
        went = [t for t, o in zip(tasks, outcomes, strict=True) if o in too_late]
        await echo.until_all(went)
        await asyncio.sleep(0.3)
        assert echo.counts() == Counter(task.id for task in went)


async def test_ten_thousand_tasks_at_one_instant(server: Server) -> None:
    await server.start()
    async with Client(server.address) as client, echoing(client) as echo:
        due_in = 6.0
        begun = time.monotonic()
        tasks: list[CreatedTask] = []
        while len(tasks) < 10_000:
            tasks += await create(client, [due_in - (time.monotonic() - begun)] * 1_000)
        await echo.until_all(tasks)
        assert echo.counts() == Counter(task.id for task in tasks)
        assert not echo.early()


async def test_starts_that_must_not_be(server: Server) -> None:
    """One line and an exit code; the data of the process that runs stay untouched."""
    await server.start()
    second = server.spawn()
    assert await second.ended() == 2
    [line] = second.err().splitlines()
    assert line.startswith("bucketsched: ")
    assert "data" in line
    other = Process(
        "other",
        ["dev", "--data-dir", str(server.folder / "more"), "--grpc-address", server.address, "--metrics-address", ""],
        server.folder,
        {},
    )
    assert await other.ended() == 2
    [line] = other.err().splitlines()[-1:]
    assert f"{server.address}: Address already in use" in line
    async with Client(server.address) as client:
        assert (await create(client, [0.0]))[0].id
        with pytest.raises(Unavailable):
            await Client("127.0.0.1:1", timeout=0.3).create("t")
