"""Outcomes of attempts on real servers: retries, dead letters, expiry, policies that change, owners that are killed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from tests.acceptance import outcomes
from tests.nodes import Cluster

from bucketsched import Client

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Two pollers own the ranges, so that a policy that changes is followed by both."""
    cluster = make_cluster(shards=16, ranges=8, horizon_ms=60_000, grace_ms=2_000)
    cluster.start("rest", "api,coordinator,deliver")
    for _ in range(2):
        cluster.start("poller", "poller")
    return cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    for process in cluster.processes:
        if process.code is None:
            await process.ready()
    await cluster.settled(*[process for process in cluster.processes[1:] if process.code is None])
    async with Client(cluster.processes[0].address) as client:
        yield client


async def test_retries_and_results(client: Client) -> None:
    await outcomes.retries_and_results(client)


async def test_dead_letters(client: Client) -> None:
    await outcomes.dead_letters(client)


async def test_running_and_expiry(client: Client) -> None:
    await outcomes.running_and_expiry(client)


async def test_waiting_retries(client: Client) -> None:
    await outcomes.waiting_retries(client)


async def test_changed_policies(client: Client) -> None:
    await outcomes.changed_policies(client)


async def test_retries_through_a_kill(cluster: Cluster, client: Client) -> None:
    """Of half of the owners; the other one takes over."""

    async def kill_and_restart() -> None:
        await cluster.processes[1].kill()

    await outcomes.retries_through_a_kill(client, kill_and_restart)
