"""Servers are away for some seconds: what can go on goes on, and nothing is lost or doubled.

In full length, and all of them killed as well as paused: `python -m tests.outages`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.nodes import Cluster
from tests.outages.outage import Outage, Trial
from tests.workload import Workload, workload
from tools.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.alone, pytest.mark.timeout(240)]

AWAY_S = 4.0
BRIEF_S = 1.0
"""A killed Cassandra takes long enough to come back."""
CREATE_TIMEOUT_MS = 2_000
OUTAGES = [
    Outage("zookeeper-killed", ("zookeeper",), "killed", AWAY_S),
    Outage("cassandra-killed", ("cassandra",), "killed", BRIEF_S),
    Outage("cassandra-paused", ("cassandra",), "paused", AWAY_S),
    Outage("kafka-killed", ("kafka",), "killed", AWAY_S),
    Outage("all-killed", ("kafka", "zookeeper", "cassandra"), "killed", BRIEF_S, 50),
]


@pytest.fixture(scope="module")
def cluster(_own_stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two processes with all roles, on servers that nobody else uses."""
    folder = tmp_path_factory.mktemp("cluster")
    cluster = Cluster(_own_stack.addresses, folder, shards=8, ranges=4, horizon_ms=60_000, grace_ms=20_000)
    for name in ("one", "two"):
        cluster.start(name, limits__create_timeout_ms=CREATE_TIMEOUT_MS)
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


@pytest.mark.parametrize("outage", OUTAGES, ids=lambda outage: outage.name)
async def test_an_outage_ends_by_itself(private_stack: Stack, cluster: Cluster, work: Workload, outage: Outage) -> None:
    report = await Trial(private_stack, cluster, work).run(outage)
    print(report.as_json())
    assert not report.broken, report
