"""Buckets that are over: what closes them, and tasks that are created (again) when they are closed.

Nobody waits for minutes to pass here: the cluster looks as if it had been down since before those buckets began.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from signal import SIGKILL

import pytest
from tests.nodes import Cluster, Process, in_thread, now_ms, until_state
from tests.workload import Workload, workload

from bucketsched import CancelOutcome, TaskState
from bucketsched.core import task_id as ids
from bucketsched.core.task import BUCKET_MS

pytestmark = pytest.mark.stack

DOWN_BUCKETS = 5


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Has an api, and no poller yet."""
    cluster = make_cluster(shards=8, ranges=4, horizon_ms=60_000, grace_ms=2_000)
    in_thread(lambda: asyncio.run(cluster.backdate(DOWN_BUCKETS)))
    cluster.start("api", "api,coordinator")
    return cluster


@pytest.fixture
async def work(cluster: Cluster) -> AsyncIterator[Workload]:
    api = cluster.processes[0]
    await api.ready()
    async with workload(cluster, api.address) as work:
        yield work


@pytest.fixture
async def poller(cluster: Cluster) -> Process:
    """At work, with every bucket closed that is over."""
    living = [process for process in cluster.processes[1:] if process.code is None]
    poller = living[0] if living else cluster.start("poller", "poller")
    await cluster.closed(past_bucket())
    return poller


def past_bucket() -> int:
    """A bucket that is closed as soon as somebody sees to it."""
    return now_ms() // BUCKET_MS - 2


def past_ms(index: int) -> int:
    """An instant in a bucket that is over, and that was open when the cluster went down."""
    return past_bucket() * BUCKET_MS + 997 * index % BUCKET_MS


def past_id(index: int, shard: int) -> str:
    """The id of a task that was to be created then."""
    return ids.text(ids.mint(past_ms(index), shard, now_ms() * 1_000 + index))


async def test_pollers_die_closing_buckets(cluster: Cluster, work: Workload) -> None:
    """Rows that waited since before the cluster went down go out late and once, whoever dies closing their buckets.

    And a create that is sent again now is not dispatched again, by a poller that never heard of the task.
    """
    async with cluster.rows() as rows:
        tasks = await rows.insert([rows.made(past_ms(i) - i % 3 * BUCKET_MS, work.queue) for i in range(90)])
    for place in ("close.read:2", "close.journaled:3"):
        victim = cluster.start("victim", "poller", place)
        assert await victim.ended() == -SIGKILL
    heir = cluster.start("heir", "poller")
    await work.recorder.exactly(tasks)
    await cluster.closed(past_bucket())
    assert {(await work.client.get(task.id)).state for task in tasks} == {TaskState.DISPATCHED}
    assert await heir.terminate() == 0
    await cluster.settled(cluster.start("stranger", "poller"))
    again = [work.client.create("t", b"x", queue=work.queue, task_id=task.id) for task in tasks]
    assert {task.id for task in await asyncio.gather(*again)} == {task.id for task in tasks}
    await work.recorder.exactly(tasks)


async def test_a_create_whose_bucket_closed_moves_to_now_once(work: Workload, poller: Process) -> None:
    """As when the first try was lost on its way: the client sends it again, and once more when it is over."""
    task_ids = [past_id(i, shard=i % 8) for i in range(16)]

    async def create_all() -> list[str]:
        created = await asyncio.gather(
            *(work.client.create("t", b"x", queue=work.queue, task_id=task_id) for task_id in task_ids)
        )
        return [task.id for task in created]

    assert await asyncio.gather(*(create_all() for _ in range(3))) == [task_ids] * 3
    tasks = [await work.client.create("t", b"x", queue=work.queue, task_id=task_id) for task_id in task_ids]
    await work.recorder.exactly(tasks)
    assert await create_all() == task_ids
    await work.recorder.exactly(tasks)
    for task in tasks:
        seen = work.recorder.of(task)
        assert seen.event.generation == 1
        assert seen.event.due_ms == task.due_ms < past_bucket() * BUCKET_MS + BUCKET_MS
        await until_state(work.client, task, TaskState.DISPATCHED)
        assert await work.client.cancel(task.id) is CancelOutcome.ALREADY_DISPATCHED


@pytest.mark.parametrize("place", ["dispatch.committed", "move.row-written"])
async def test_a_poller_dies_moving(cluster: Cluster, work: Workload, poller: Process, place: str) -> None:
    """Between the record, the row at its new place, and the mark at the old one."""
    assert await poller.terminate() == 0
    victim = cluster.start("victim", "poller", place)
    await cluster.settled(victim)
    creating = [
        asyncio.create_task(work.client.create("t", b"x", queue=work.queue, task_id=past_id(i, shard=i)))
        for i in range(8)
    ]
    assert await victim.ended() == -SIGKILL
    cluster.start("heir", "poller")
    tasks = await asyncio.gather(*creating)
    await work.recorder.exactly(tasks)
    for task in tasks:
        await until_state(work.client, task, TaskState.DISPATCHED)
