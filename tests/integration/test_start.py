"""The first start, and starts that must not be: one clear line and an exit code, or a cluster that is ready."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Iterator

import pytest
from tests.nodes import Cluster, Process, until

pytestmark = pytest.mark.stack

INVALID, UNAVAILABLE = 2, 5


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    return make_cluster(shards=4, ranges=2, horizon_ms=60_000, grace_ms=2_000)


@pytest.fixture
def taken_port() -> Iterator[str]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def command(cluster: Cluster, name: str, *arguments: str, **environment: str) -> Process:
    process = Process(name, [*arguments, "--config", str(cluster.config)], cluster.folder, environment)
    cluster.processes.append(process)
    return process


async def refused(process: Process, code: int, line: str) -> None:
    """It ended so, and said nothing but this one line, and perhaps that a server was slow to answer before."""
    assert (await process.ended(), process.out()) == (code, ""), process.err()
    said = [text for text in process.err().splitlines() if "the start waits for a server" not in text]
    assert len(said) == 1, said
    assert re.fullmatch(f"bucketsched: .*{line}.*", said[0]), said


async def test_wrong_settings_stop_the_start_with_one_line(cluster: Cluster, taken_port: str) -> None:
    wrong = [
        (cluster.start("empty", cassandra__keyspace="nobody_made_it"), INVALID, "run `bucketsched admin migrate`"),
        (
            cluster.start("away", node__start_s_max=0, cassandra__contact_points=["127.0.0.1:1"]),
            UNAVAILABLE,
            "no answer from 127.0.0.1:1",
        ),
        (cluster.start("root", zookeeper__root="/nobody_made_it"), INVALID, "zookeeper.root: .* no complete tree"),
        (cluster.start("centre", cassandra__local_datacenter="dc9"), INVALID, "no 'dc9' among datacenter1"),
        (cluster.start("port", node__grpc_address=taken_port), INVALID, f"{taken_port}: Address already in use"),
        (cluster.start("port", node__internal_address=taken_port), INVALID, f"{taken_port}: Address already in use"),
        (cluster.start("open", node__grpc_address="0.0.0.0:0"), INVALID, "node.allow_insecure_bind"),
        (cluster.start("unknown", node__colour="red"), INVALID, "setting node.colour"),
        (cluster.start("roles", "api,cook"), INVALID, "setting node.roles"),
        (cluster.start("failpoint", failpoint="dispatch.nowhere"), INVALID, "BUCKETSCHED_FAILPOINT"),
        (command(cluster, "shards", "admin", "migrate", "--shards", "128"), INVALID, "shards is 4 in this cluster"),
        (command(cluster, "ranges", "admin", "migrate", "--ranges", "3"), INVALID, "ranges"),
        (command(cluster, "nowhere", "node", "--set", "kafka.replication=many"), INVALID, "setting kafka.replication"),
    ]
    for process, code, line in wrong:
        await refused(process, code, line)


async def test_a_node_waits_for_servers_that_may_come_back(cluster: Cluster) -> None:
    """Without one of its servers it says what it waits for, is not ready, and stops when it is told to."""
    waiting = [
        (cluster.start("rowless", cassandra__contact_points=["127.0.0.1:1"]), "the start waits for a server"),
        (cluster.start("memberless", "api", zookeeper__hosts="127.0.0.1:1"), "the start waits for a server"),
        (cluster.start("lonely", "poller", zookeeper__hosts="127.0.0.1:1"), "127.0.0.1:1"),
        (cluster.start("mute", "poller", kafka__bootstrap="127.0.0.1:1"), "no Kafka broker answers at 127.0.0.1:1"),
    ]
    for process, line in waiting:
        await until(lambda process=process, line=line: line in process.err(), f"{process.name} says {line}")
        assert (process.code, process.out()) == (None, "")
    assert await asyncio.gather(*(process.terminate() for process, _ in waiting)) == [0] * len(waiting)


async def test_a_start_does_not_wait_for_ever(cluster: Cluster) -> None:
    process = cluster.start("hopeless", node__start_s_max=2, cassandra__contact_points=["127.0.0.1:1"])
    assert await process.ended() == UNAVAILABLE
    assert process.err().splitlines()[-1].startswith("bucketsched: ")


async def test_migrating_at_many_places_at_once_and_again(cluster: Cluster) -> None:
    """A cluster that exists stays as it is."""
    at_once = [command(cluster, f"migrate{i}", "admin", "migrate", "--output", "json") for i in range(3)]
    for process in at_once:
        assert await process.ended() == 0, process.err()
        assert str(cluster.constants.cluster_id) in process.out()
        assert '"checkpoints_written": 0' in process.out()


async def test_roles_start_in_any_order(cluster: Cluster) -> None:
    poller = cluster.start("poller", "poller")
    api = cluster.start("api", "api")
    await asyncio.gather(poller.ready(), api.ready())
    cluster.start("coordinator", "coordinator")
    await cluster.settled(poller)
