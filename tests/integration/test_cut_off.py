"""A poller that is cut off from Kafka alone, or with all others, by a proxy of its own that can be taken away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest
from kafka_proxy import KafkaProxy
from tests.nodes import Cluster, Process, now_ms, until
from tests.workload import workload

pytestmark = [pytest.mark.stack, pytest.mark.timeout(240)]

LATE_MS_MAX = 15_000
"""Of the tasks that wait for another poller; 5 s on an idle machine."""


@pytest.fixture
async def proxies(make_cluster: Callable[..., Cluster]) -> AsyncIterator[tuple[Cluster, list[KafkaProxy]]]:
    """A cluster whose processes reach Kafka through a proxy each."""
    cluster = make_cluster(shards=8, ranges=4, horizon_ms=60_000, grace_ms=20_000)
    proxies = [KafkaProxy(cluster.kafka) for _ in range(2)]
    for proxy in proxies:
        await proxy.start()
    yield cluster, proxies
    for process in cluster.processes:
        await process.terminate()
    for proxy in proxies:
        await proxy.stop()


async def started(cluster: Cluster, proxies: list[KafkaProxy]) -> list[Process]:
    """A process behind each of them, and two ranges for each."""
    pair = [
        cluster.start(name, kafka__bootstrap=proxy.address) for name, proxy in zip(("one", "two"), proxies, strict=True)
    ]
    for process in pair:
        await process.ready()
    await shared(cluster, pair)
    return pair


async def shared(cluster: Cluster, pair: list[Process]) -> None:
    await until(lambda: [len(cluster.ranges_of(process)) for process in pair] == [2, 2], "each has its share")


async def test_the_ranges_of_one_that_can_not_reach_kafka_go_to_the_other(
    proxies: tuple[Cluster, list[KafkaProxy]],
) -> None:
    cluster, both = proxies
    one, two = await started(cluster, both)
    async with workload(cluster, two.address) as work:
        tasks = await work.create([2.0 + n / 50 for n in range(500)])
        cut_ms = now_ms()
        await both[0].stop()
        await until(lambda: cluster.ranges_of(two) == {0, 1, 2, 3}, "the other has all ranges")
        taken_ms = now_ms() - cut_ms
        await work.recorder.until_all(tasks)
        late = sorted(seen.late_ms for seen in work.recorder.seen)
        print(
            {"taken_ms": taken_ms, "late_ms_max": late[-1], "over_2_s": sum(ms > 2_000 for ms in late), "of": len(late)}
        )
        assert late[-1] < LATE_MS_MAX
        await both[0].start()
        await shared(cluster, [one, two])
        await work.recorder.quiet()
        work.recorder.check(tasks)
    assert one.events("leaving the ranges to others")


async def test_where_kafka_is_away_for_both_nothing_moves(proxies: tuple[Cluster, list[KafkaProxy]]) -> None:
    """They find out, and reach it again, one after the other."""
    cluster, both = proxies
    one, two = await started(cluster, both)
    before = cluster.taken()
    async with workload(cluster, two.address) as work:
        tasks = await work.create([1.0 + n / 10 for n in range(300)])
        for proxy in both:
            await proxy.stop()
        for process in (one, two):
            await until(partial(process.events, "there is nobody to give the ranges to"), f"{process.name} says so")
        for proxy in both:
            await proxy.start()
        await work.recorder.until_all(tasks)
        await work.recorder.quiet()
        work.recorder.check(tasks)
    assert cluster.taken() == before
    assert not one.events("leaving the ranges to others") + two.events("leaving the ranges to others")
