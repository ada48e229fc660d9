"""Ranges change hands: by a hand-over, by a death, and from one who does not know that it is over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import pytest
from tests.nodes import Cluster, Process, until
from tests.workload import Workload, earliest, workload

pytestmark = pytest.mark.stack


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


@pytest.fixture
async def start(cluster: Cluster) -> AsyncIterator[Callable[..., Process]]:
    """Starts processes that end with the test."""
    before = len(cluster.processes)
    yield cluster.start
    for process in cluster.processes[before:]:
        process.end()


def delays(count: int, first_s: float, last_s: float) -> list[float]:
    rng = random.Random(count)
    return [rng.uniform(first_s, last_s) for _ in range(count)]


@pytest.mark.alone
async def test_a_stop_hands_over_without_a_gap(cluster: Cluster, work: Workload, start: Callable[..., Process]) -> None:
    one, two = start("one", "poller"), start("two", "poller")
    await cluster.settled(one, two)
    tasks = await work.create(delays(400, 0.3, 5))
    await work.recorder.until_all(earliest(tasks))
    assert await one.terminate() == 0
    assert len(one.events("range released")) == len(one.events("range taken"))
    await work.recorder.exactly(tasks)
    assert cluster.ranges_of(two) == set(range(cluster.constants.ranges))
    assert max(seen.late_ms for seen in work.recorder.seen) < 5_000


async def test_a_rolling_restart_of_everything(cluster: Cluster, work: Workload, start: Callable[..., Process]) -> None:
    """Every process is replaced while tasks are created and fall due; a client knows both api processes."""
    one, two = start("one", "api,poller"), start("two", "api,poller")
    await cluster.settled(one, two)
    addresses = f"{one.address},{two.address}"
    async with workload(cluster, addresses) as both:
        tasks = await both.create(delays(300, 1, 10))

        async def keep_creating() -> None:
            for _ in range(60):
                tasks.extend(await both.create([1.0] * 3))
                await asyncio.sleep(0.1)

        creating = asyncio.create_task(keep_creating())
        three = start("three", "api,poller")
        await three.ready()
        assert await one.terminate() == 0
        await cluster.settled(two, three)
        four = start("four", "api,poller", node__grpc_address=one.address)
        await four.ready()
        assert await two.terminate() == 0
        await cluster.settled(three, four)
        await creating
        await both.recorder.exactly(tasks)


async def test_a_zombie_does_no_harm_and_comes_back(
    cluster: Cluster, work: Workload, start: Callable[..., Process]
) -> None:
    """Stopped in the middle of its work for longer than its session lives, it wakes up as an owner of nothing."""
    zombie, other = start("zombie", "poller"), start("other", "poller")
    await cluster.settled(zombie, other)
    epochs = {range_id: epoch for range_id, (epoch, _) in cluster.taken().items()}
    tasks = await work.create(delays(600, 0.3, 9))
    await work.recorder.until_all(earliest(tasks))
    zombie.pause()
    await until(lambda: len(cluster.ranges_of(other)) == cluster.constants.ranges, "everything was taken over")
    seen = len(work.recorder.seen)
    zombie.resume()
    await cluster.settled(zombie, other)
    assert seen < len(tasks)
    assert all(epoch > epochs[range_id] for range_id, (epoch, owner) in cluster.taken().items() if owner is zombie)
    later = await work.create(delays(100, 0.3, 1))
    await work.recorder.exactly(tasks + later)


async def test_two_zombies_in_turn(cluster: Cluster, work: Workload, start: Callable[..., Process]) -> None:
    """Each takes over from the other, while the other believes in itself."""
    pair = [start("left", "poller"), start("right", "poller")]
    await cluster.settled(*pair)
    tasks = await work.create(delays(500, 0.3, 10))
    for sleeper, other in (pair, pair[::-1]):
        sleeper.pause()
        await until(lambda other=other: len(cluster.ranges_of(other)) == cluster.constants.ranges, "taken over")
        sleeper.resume()
        await cluster.settled(*pair)
    await work.recorder.exactly(tasks)
