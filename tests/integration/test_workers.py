"""Worker queues in a cluster: from the queue's topic by a deliver process to the SDK's workers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
from tests.nodes import Cluster, now_ms, until, until_state

from bucketsched import Client, CreatedTask, NewTask, NoRetry, RetryAfter, Task, TaskState, Worker

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Two deliver processes beside the rest; a lease is short there."""
    cluster = make_cluster(shards=8, ranges=4, horizon_ms=60_000, grace_ms=2_000)
    cluster.start("rest", "api,poller,coordinator")
    cluster.start("deliver", "deliver")
    cluster.start("deliver", "deliver")
    return cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    for process in cluster.processes:
        await process.ready()
    await cluster.settled(cluster.processes[0])
    async with Client(cluster.processes[0].address) as client:
        yield client


@pytest.fixture
async def queue(client: Client) -> str:
    return (await client.create_queue(f"w-{uuid4().hex[:8]}")).name


async def create(client: Client, queue: str, delays_s: list[float]) -> list[CreatedTask]:
    created = await client.create_many([NewTask("job", b"x", queue, delay=delay) for delay in delays_s])
    return [task for task in created if isinstance(task, CreatedTask)]


@asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[None]:
    running = asyncio.create_task(worker.run(handle_signals=False))
    try:
        yield
    finally:
        worker.stop()
        await running


async def test_a_worker_gets_every_task_once_and_in_time(client: Client, queue: str) -> None:
    worker = Worker(client, queue)
    done: list[tuple[int, Task]] = []

    @worker.task("job")
    async def job(task: Task) -> None:
        done.append((now_ms(), task))

    async with working(worker):
        tasks = await create(client, queue, [0.5 + i / 100 for i in range(200)])
        await until(lambda: len(done) >= len(tasks), "every task is done")
    assert Counter(task.id for _, task in done) == Counter(task.id for task in tasks)
    assert all(at_ms >= task.due_ms for at_ms, task in done)
    assert {(task.payload, task.queue, task.attempt) for _, task in done} == {(b"x", queue, 1)}


async def test_what_was_due_before_there_was_a_worker_waits_for_one(client: Client, queue: str) -> None:
    tasks = await create(client, queue, [0.0] * 50)
    worker = Worker(client, queue)
    done: list[str] = []

    @worker.task("job")
    async def job(task: Task) -> None:
        done.append(task.id)

    async with working(worker):
        await until(lambda: len(done) >= len(tasks), "every task is done")
    assert sorted(done) == sorted(task.id for task in tasks)


async def test_a_failed_attempt_is_followed_by_another_and_all_are_on_record(client: Client, queue: str) -> None:
    worker = Worker(client, queue)
    tried: list[str] = []
    once: set[str] = set()

    @worker.task("job")
    async def job(task: Task) -> str:
        tried.append(task.key)
        once.add(task.once("charge"))
        if len(tried) < 3:
            raise RuntimeError("not yet") if len(tried) == 1 else RetryAfter(0.3, "busy")
        return "done"

    async with working(worker):
        [task] = await create(client, queue, [0.1])
        await until(lambda: len(tried) == 3, "the third attempt")
        await until_state(client, task, TaskState.SUCCEEDED)
    assert tried == [f"{task.id}/0/{attempt}" for attempt in (1, 2, 3)]
    assert len(once) == 1


async def test_a_task_that_fails_for_good_is_a_dead_letter(client: Client, queue: str) -> None:
    worker = Worker(client, queue)

    @worker.task("job")
    async def job(task: Task) -> None:
        raise NoRetry("no such customer") from LookupError("customer 7")

    async with working(worker):
        [task] = await create(client, queue, [0.1])
        await until_state(client, task, TaskState.FAILED)
    assert (await client.get(task.id)).fail_reason == "LookupError: customer 7"


async def test_a_dead_deliver_process_loses_nothing(cluster: Cluster, client: Client, queue: str) -> None:
    """At least once: what it had handed out and nobody acknowledged comes again, from the other one."""
    worker = Worker(client, queue, concurrency=20, lease=5)
    done: Counter[str] = Counter()

    @worker.task("job")
    async def job(task: Task) -> None:
        await asyncio.sleep(0.05)
        done[task.id] += 1

    async with working(worker):
        tasks = await create(client, queue, [0.5 + i / 200 for i in range(400)])
        await until(lambda: len(done) > 50, "some tasks are done")
        await cluster.processes[1].kill()
        await until(lambda: len(done) >= len(tasks), "every task is done")
    assert done.keys() == {task.id for task in tasks}
