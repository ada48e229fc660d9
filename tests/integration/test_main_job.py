"""The main job on real servers: a task goes in by gRPC, waits in its bucket, and comes out on time."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable

import pytest
from tests.nodes import Cluster, Process, now_ms, until_state
from tests.workload import Workload, workload

from bucketsched import CancelOutcome, Priority, TaskState

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Every role in a process of its own, and two pollers."""
    cluster = make_cluster(shards=16, ranges=8, horizon_ms=60_000, grace_ms=2_000)
    for name, roles in (("coordinator", "coordinator"), ("poller", "poller"), ("poller", "poller")):
        cluster.start(name, roles)
    cluster.start("api", "api")
    return cluster


def pollers(cluster: Cluster) -> list[Process]:
    return [process for process in cluster.processes if process.name.endswith("poller")]


@pytest.fixture
async def work(cluster: Cluster) -> AsyncIterator[Workload]:
    """By the process that is nothing but an api, while both pollers own ranges."""
    for process in cluster.processes:
        await process.ready()
    await cluster.settled(*pollers(cluster))
    async with workload(cluster, cluster.processes[3].address) as work:
        yield work


async def test_a_task_comes_out_on_time_as_it_went_in(work: Workload) -> None:
    payload, metadata = bytes(range(256)), {"trace": "00-ab", "name": "ü €"}
    task = await work.client.create(
        "mail.send",
        payload,
        queue=work.queue,
        delay=1.5,
        priority=Priority.HIGH,
        metadata=metadata,
        content_type="text/x",
    )
    assert (await work.client.get(task.id)).state is TaskState.PENDING
    await work.recorder.exactly([task])
    seen = work.recorder.of(task)
    assert (seen.event.payload, seen.event.metadata, seen.event.type) == (payload, metadata, "mail.send")
    assert seen.headers["ce_id"] == f"{task.id}/0/1".encode()
    assert seen.headers["ce_specversion"] == b"1.0"
    assert seen.headers["ce_source"] == f"/bucketsched/default/{work.queue}".encode()
    assert seen.headers["content-type"] == b"text/x"
    assert (seen.event.generation, seen.event.attempt, seen.event.due_ms) == (0, 1, task.due_ms)
    assert seen.event.epoch >= 1
    assert task.due_ms <= seen.event.dispatched_ms <= seen.at_ms


async def test_get_shows_what_became_of_it(work: Workload) -> None:
    [task] = await work.create([0.3])
    await work.recorder.until_all([task])
    found = await until_state(work.client, task, TaskState.DISPATCHED)
    assert found.dispatched is not None
    assert found.dispatched >= found.due
    assert await work.client.cancel(task.id) is CancelOutcome.ALREADY_DISPATCHED


async def test_many_at_random_instants_are_all_in_time(work: Workload) -> None:
    rng = random.Random(3)
    tasks = await work.create([rng.uniform(0, 4) for _ in range(600)])
    await work.recorder.exactly(tasks)
    late = sorted(seen.late_ms for seen in work.recorder.seen)
    assert late[len(late) // 2] < 500
    assert late[-1] < 5_000


async def test_what_is_due_already_runs_now(work: Workload) -> None:
    before_ms = now_ms()
    tasks = await work.create([0.0] * 20)
    await work.recorder.exactly(tasks)
    assert all(before_ms <= seen.event.dispatched_ms for seen in work.recorder.seen)
    assert max(seen.late_ms for seen in work.recorder.seen) < 5_000


async def test_a_cancelled_task_never_comes(work: Workload) -> None:
    near = await work.create([1.5] * 40)
    far = await work.create([86_400.0] * 3)
    cancelled = near[::2] + far
    assert {await work.client.cancel(task.id) for task in cancelled} == {CancelOutcome.CANCELLED}
    assert await work.client.cancel(near[0].id) is CancelOutcome.ALREADY_CANCELLED
    assert {(await work.client.get(task.id)).state for task in cancelled} == {TaskState.CANCELLED}
    await work.recorder.exactly(near[1::2])
    assert {(await work.client.get(task.id)).state for task in cancelled} == {TaskState.CANCELLED}
