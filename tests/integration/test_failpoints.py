"""Processes that die at the worst places. What was acknowledged is dispatched exactly once all the same."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from signal import SIGKILL

import pytest
from tests.nodes import Cluster, Process
from tests.workload import Workload, workload

from bucketsched import Client, TaskState
from bucketsched.errors import Unavailable

pytestmark = pytest.mark.stack

DISPATCH = ["dispatch.produced", "dispatch.committed", "dispatch.marked"]
TAKEOVER = [
    "takeover.leased",
    "takeover.checkpoint-read",
    "takeover.fenced",
    "takeover.replayed",
    "takeover.checkpoint-written",
    "takeover.cleared",
    "takeover.loaded",
]


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    """An api and a coordinator; the pollers come and go."""
    cluster = make_cluster(shards=8, ranges=4, horizon_ms=60_000, grace_ms=2_000)
    cluster.start("api", "api")
    cluster.start("coordinator", "coordinator")
    return cluster


@pytest.fixture
async def work(cluster: Cluster) -> AsyncIterator[Workload]:
    api = cluster.processes[0]
    await api.ready()
    async with workload(cluster, api.address) as work:
        yield work


@pytest.fixture
async def start(cluster: Cluster) -> AsyncIterator[Callable[..., Process]]:
    """Starts processes that end with the test."""
    before = len(cluster.processes)
    yield cluster.start
    for process in cluster.processes[before:]:
        if process.code is None:
            assert await process.terminate() == 0


def delays(count: int, first_s: float, last_s: float) -> list[float]:
    rng = random.Random(count)
    return [rng.uniform(first_s, last_s) for _ in range(count)]


async def died(process: Process) -> None:
    assert await process.ended() == -SIGKILL, process.err()[-2000:]


@pytest.mark.parametrize("place", DISPATCH)
async def test_a_poller_dies_dispatching(
    cluster: Cluster, work: Workload, start: Callable[..., Process], place: str
) -> None:
    victim, other = start("victim", "poller", f"{place}:6"), start("other", "poller")
    await cluster.settled(victim, other)
    tasks = await work.create(delays(200, 0.5, 4))
    await died(victim)
    assert len(work.recorder.seen) < len(tasks), "it died too late to be missed"
    await work.recorder.exactly(tasks)


async def test_pollers_die_taking_over(cluster: Cluster, work: Workload, start: Callable[..., Process]) -> None:
    """One after the other, each of its inheritance; of the first one's last transactions nothing is marked."""
    first = start("first", "poller", "dispatch.committed:12", poller__mark_interval_ms=5_000)
    await cluster.settled(first)
    tasks = await work.create(delays(200, 0.5, 4) + delays(100, 4, 18))
    await died(first)
    for place in TAKEOVER:
        await died(start("heir", "poller", f"{place}:2"))
    last = start("last", "poller")
    await work.recorder.exactly(tasks)
    assert cluster.ranges_of(last) == set(range(cluster.constants.ranges))
    assert {(await work.client.get(task.id)).state for task in tasks[::10]} == {TaskState.DISPATCHED}


async def test_an_api_dies_with_tasks_stored_and_nobody_told(
    cluster: Cluster, work: Workload, start: Callable[..., Process]
) -> None:
    start("poller", "poller")
    victim = start("victim", "api", "create.stored:1")
    async with Client(await victim.ready()) as client:
        task_id = await client.mint(delay=3)
        with pytest.raises(Unavailable):
            await client.create("t", b"x", queue=work.queue, task_id=task_id, timeout=1)
    await died(victim)
    assert (await work.client.get(task_id)).state is TaskState.PENDING
    task = await work.client.create("t", b"x", queue=work.queue, task_id=task_id)
    await work.recorder.exactly([task])


async def test_a_client_goes_to_the_next_api(cluster: Cluster, work: Workload, start: Callable[..., Process]) -> None:
    start("poller", "poller")
    victim = start("victim", "api", "create.stored:1")
    await victim.ready()
    async with Client(f"{victim.address},{cluster.processes[0].address}") as client:
        tasks = [await client.create("t", b"x", queue=work.queue, delay=2) for _ in range(3)]
    await work.recorder.exactly(tasks)


async def test_a_coordinator_dies_with_its_plan(
    cluster: Cluster, work: Workload, start: Callable[..., Process]
) -> None:
    one = start("one", "poller")
    await cluster.settled(one)
    tasks = await work.create(delays(60, 0.5, 6))
    victim = start("victim", "coordinator", "plan.computed:1")
    await victim.ready()
    await cluster.processes[1].kill()
    two = start("two", "poller")
    await died(victim)
    cluster.processes[1] = start("coordinator", "coordinator")
    cluster.processes.pop()
    await cluster.settled(one, two)
    await work.recorder.exactly(tasks)
