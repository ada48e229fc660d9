"""Planned moves between living processes, and pollers that are replaced one after the other under load."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import pytest
from tests.nodes import Cluster, Process, until
from tests.workload import Workload, earliest, workload

pytestmark = pytest.mark.stack
LATE_MS_MAX = 5_000


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    """An api and a coordinator; the pollers come and go."""
    cluster = make_cluster(shards=16, ranges=8, horizon_ms=60_000, grace_ms=2_000)
    cluster.start("rest", "api,coordinator")
    return cluster


@pytest.fixture
async def work(cluster: Cluster) -> AsyncIterator[Workload]:
    async with workload(cluster, await cluster.processes[0].ready()) as work:
        yield work


def delays(count: int, first_s: float, last_s: float) -> list[float]:
    rng = random.Random(count)
    return [rng.uniform(first_s, last_s) for _ in range(count)]


def preloaded(process: Process) -> list[bool]:
    return [event["preloaded"] for event in process.events("range taken")]


@pytest.mark.alone
async def test_pollers_are_replaced_one_after_the_other(cluster: Cluster, work: Workload) -> None:
    """Each is told to end while tasks are created and fall due; what it owned was read ahead by who takes it."""
    pollers = [cluster.start(name, "poller") for name in ("one", "two")]
    for process in pollers:
        await process.ready()
    await cluster.settled(*pollers)
    tasks = await work.create(delays(600, 0.5, 20))
    going_on = True

    async def keep_creating() -> None:
        while going_on:
            tasks.extend(await work.create(delays(10, 0.1, 3)))
            await asyncio.sleep(0.1)

    creating = asyncio.create_task(keep_creating())
    await work.recorder.until_all(earliest(tasks))
    for name in ("three", "four"):
        leaving, staying = pollers
        assert await leaving.terminate() == 0
        await cluster.settled(staying)
        pollers = [staying, cluster.start(name, "poller")]
        await cluster.settled(*pollers)
    going_on = False
    await creating
    await work.recorder.exactly(tasks)
    assert max(seen.late_ms for seen in work.recorder.seen) < LATE_MS_MAX
    taken = [warm for process in cluster.processes for warm in preloaded(process)]
    assert sum(taken) >= cluster.constants.ranges // 2, "ranges were read ahead of their leases"
    for process in pollers:
        assert await process.terminate() == 0


@pytest.mark.alone
async def test_a_joining_poller_gets_its_share_without_a_gap(cluster: Cluster, work: Workload) -> None:
    old = cluster.start("old", "poller")
    await cluster.settled(old)
    tasks = await work.create(delays(600, 0.5, 12))
    await work.recorder.until_all(earliest(tasks))
    new = cluster.start("new", "poller")
    await cluster.settled(old, new)
    await work.recorder.exactly(tasks)
    assert max(seen.late_ms for seen in work.recorder.seen) < LATE_MS_MAX
    assert any(preloaded(new))
    await until(lambda: len(cluster.ranges_of(new)) == cluster.constants.ranges // 2, "it has its share")
    for process in (new, old):
        assert await process.terminate() == 0


@pytest.mark.parametrize(
    ("giving", "failpoint"),
    [
        (True, "hand-over.stored"),
        (True, "hand-over.stopped"),
        (True, "hand-over.released"),
        (False, "preload.loaded"),
        (False, "takeover.leased"),
        (False, "takeover.replayed"),
        (False, "takeover.checkpoint-written"),
    ],
)
async def test_a_death_in_the_middle_of_a_move(cluster: Cluster, work: Workload, giving: bool, failpoint: str) -> None:
    """By kill -9, of the giver or the taker; a third process is there to take over."""
    old = cluster.start("old", "poller", failpoint=failpoint if giving else "")
    await cluster.settled(old)
    tasks = await work.create(delays(300, 0.5, 8))
    await work.recorder.until_all(earliest(tasks))
    new = cluster.start("new", "poller", failpoint="" if giving else failpoint)
    victim, heir = (old, new) if giving else (new, old)
    assert await victim.ended() == -9
    await cluster.settled(heir)
    await work.recorder.exactly(tasks)
    assert await heir.terminate() == 0
