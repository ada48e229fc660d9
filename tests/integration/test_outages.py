"""One of the servers is away for some seconds: what can go on goes on, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.nodes import Cluster, now_ms
from tests.workload import Workload, earliest, workload
from tools.stack import Stack

from bucketsched import CreatedTask

pytestmark = [pytest.mark.stack, pytest.mark.timeout(180)]

AWAY_S = 4.0
LATE_MS_MAX = 2_000


@pytest.fixture(scope="module")
def cluster(_own_stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two processes with all roles, on servers that nobody else uses."""
    folder = tmp_path_factory.mktemp("cluster")
    cluster = Cluster(_own_stack.addresses, folder, shards=8, ranges=4, horizon_ms=60_000, grace_ms=2_000)
    for name in ("one", "two"):
        cluster.start(name)
    yield cluster
    cluster.close()


@pytest.fixture(autouse=True)
def _cluster_logs(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.show_logs()


@pytest.fixture
async def work(cluster: Cluster) -> AsyncIterator[Workload]:
    one, two = cluster.processes
    await one.ready()
    await two.ready()
    await cluster.settled(one, two)
    async with workload(cluster, f"{one.address},{two.address}") as work:
        yield work


def delays(count: int, last_s: float) -> list[float]:
    rng = random.Random(count)
    return [rng.uniform(0.3, last_s) for _ in range(count)]


async def create_meanwhile(work: Workload) -> list[CreatedTask]:
    """Some tasks a second, while a server is away."""
    tasks: list[CreatedTask] = []
    for _ in range(int(AWAY_S / 0.5)):
        tasks += await work.create([0.7] * 5)
        await asyncio.sleep(0.5)
    return tasks


def late_between(work: Workload, tasks: list[CreatedTask], first_ms: int, last_ms: int) -> int:
    """How late those of these tasks came at most that were due in this time."""
    meant = {task.id for task in tasks if first_ms <= task.due_ms < last_ms}
    late = [seen.late_ms for seen in work.recorder.seen if seen.event.task_id in meant]
    assert late, "nothing was due meanwhile"
    return max(late)


async def test_without_zookeeper_owners_go_on(work: Workload, private_stack: Stack) -> None:
    tasks = await work.create(delays(300, 7))
    await asyncio.to_thread(private_stack.zookeeper.kill)
    away_ms = now_ms()
    tasks += await create_meanwhile(work)
    back_ms = now_ms()
    await asyncio.to_thread(private_stack.zookeeper.start)
    await work.recorder.exactly(tasks)
    assert late_between(work, tasks, away_ms, back_ms) < LATE_MS_MAX


async def test_without_kafka_tasks_are_accepted(work: Workload, private_stack: Stack) -> None:
    tasks = await work.create(delays(300, 7))
    await work.recorder.until_all(earliest(tasks))
    await asyncio.to_thread(private_stack.kafka.kill)
    tasks += await create_meanwhile(work)
    await asyncio.to_thread(private_stack.kafka.start)
    await work.recorder.exactly(tasks, 60)


async def test_without_cassandra_what_is_loaded_goes_out_in_time(work: Workload, private_stack: Stack) -> None:
    tasks = await work.create(delays(300, 7))
    await work.recorder.until_all(earliest(tasks))
    await asyncio.to_thread(private_stack.cassandra.pause)
    away_ms = now_ms()
    creating = asyncio.create_task(work.create([0.5] * 5))
    await asyncio.sleep(AWAY_S)
    back_ms = now_ms()
    await asyncio.to_thread(private_stack.cassandra.resume)
    await work.recorder.exactly(tasks + await creating)
    assert late_between(work, tasks, away_ms, back_ms) < LATE_MS_MAX
