"""Updates of tasks on real servers, also while their owner is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from signal import SIGKILL

import pytest
from tests.acceptance.changing import QUIET_S, Seen, moves_and_changes, races
from tests.nodes import Cluster, until
from tests.workload import Workload, workload

from bucketsched.errors import Unavailable

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    cluster = make_cluster(shards=16, ranges=8, horizon_ms=60_000, grace_ms=2_000)
    cluster.start("api", "api,coordinator")
    for _ in range(2):
        cluster.start("poller", "poller")
    return cluster


@pytest.fixture
async def work(cluster: Cluster) -> AsyncIterator[Workload]:
    for process in cluster.processes:
        if process.code is None:
            await process.ready()
    await cluster.settled(*[process for process in cluster.processes[1:] if process.code is None])
    async with workload(cluster, cluster.processes[0].address) as work:
        yield work


def seen_by(work: Workload) -> Seen:
    found: Seen = {}
    for seen in work.recorder.seen:
        found.setdefault(seen.event.task_id, []).append((seen.event.payload, seen.at_ms))
    return found


async def test_moves_and_changes(work: Workload) -> None:
    await moves_and_changes(work.client, work.queue, lambda: seen_by(work))


async def test_updates_race_with_the_dispatch(work: Workload) -> None:
    await races(work.client, work.queue, lambda: seen_by(work))


async def test_a_confirmed_update_outlives_its_owner(cluster: Cluster, work: Workload) -> None:
    """Half of the owners die right behind their answers: the new versions come, once, and the old ones never."""
    tasks = await work.create([4.0 + number / 20 for number in range(60)], b"old")
    confirmed: set[str] = set()

    async def update(task_id: str) -> None:
        try:
            if (await work.client.update(task_id, payload=b"new", delay=5.0)).outcome.updated:
                confirmed.add(task_id)
        except Unavailable:
            pass  # it may have been applied, or may be yet

    updates = [asyncio.create_task(update(task.id)) for task in tasks]
    while len(confirmed) < 10:  # noqa: ASYNC110 - told by no event
        await asyncio.sleep(0)
    cluster.processes[1].signal(SIGKILL)
    await asyncio.gather(*updates)
    await until(lambda: {task.id for task in tasks} <= seen_by(work).keys(), "every task")
    await asyncio.sleep(QUIET_S)
    found = seen_by(work)
    assert all(len(found[task.id]) == 1 for task in tasks)
    assert all(found[task_id][0][0] == b"new" for task_id in confirmed)
