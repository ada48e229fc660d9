"""A dead process is taken over from at once, a living one that looked dead lets go and comes back by itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from tests.nodes import Cluster, Process, until
from tests.workload import Workload, earliest, workload
from tools.stack.ports import free_port

pytestmark = pytest.mark.stack

PATIENT = {"zookeeper__session_timeout_ms": 10_000}
"""Sessions outlast whatever is shown here."""


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    """An api; those that coordinate and poll come and go."""
    cluster = make_cluster(shards=16, ranges=8, horizon_ms=60_000, grace_ms=2_000)
    cluster.start("rest", "api")
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


@pytest.mark.parametrize("victim_roles", ["poller", "poller,coordinator"])
async def test_a_killed_process_is_evicted_before_its_session_ends(
    cluster: Cluster, work: Workload, start: Callable[..., Process], victim_roles: str
) -> None:
    """With both roles it is the elected coordinator, being the first."""
    victim = start("victim", victim_roles, **PATIENT)
    await victim.ready()
    other = start("other", "poller,coordinator", **PATIENT)
    await cluster.settled(victim, other)
    tasks = await work.create(delays(400, 0.3, 6))
    await work.recorder.until_all(earliest(tasks))
    await victim.kill()
    await until(lambda: len(cluster.ranges_of(other)) == cluster.constants.ranges, "everything was taken over")
    await until(lambda: other.events("a dead process was evicted"), "its session was not waited for")
    await work.recorder.exactly(tasks)


async def test_a_process_that_is_told_to_end_is_not_taken_for_dead(
    cluster: Cluster, work: Workload, start: Callable[..., Process]
) -> None:
    """Its internal port is closed last: while it hands over it still answers there."""
    other = start("other", "poller,coordinator", **PATIENT)
    await other.ready()
    leaving = start("leaving", "poller,coordinator", **PATIENT)
    await cluster.settled(other, leaving)
    tasks = await work.create(delays(300, 0.3, 4))
    await work.recorder.until_all(earliest(tasks))
    assert await leaving.terminate() == 0
    await cluster.settled(other)
    await work.recorder.exactly(tasks)
    assert not other.events("a process is dead")
    assert len(leaving.events("range released")) == len(leaving.events("range taken"))


@asynccontextmanager
async def forwarding(port: int) -> AsyncIterator[tuple[asyncio.Server, set[asyncio.StreamWriter]]]:
    """A port that leads to another one; and its connections."""
    writers: set[asyncio.StreamWriter] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        writers.update((writer, back))
        await asyncio.gather(copy(reader, back), copy(there, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server, writers
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


async def test_a_living_process_that_looks_dead_lets_go_and_comes_back(
    cluster: Cluster, work: Workload, start: Callable[..., Process]
) -> None:
    """All ways to it end and refuse new connections, as if it had died; it works on, in the middle of a load."""
    other = start("other", "poller,coordinator", **PATIENT)
    await other.ready()
    port = free_port()
    async with forwarding(port) as (server, writers):
        addresses = {
            "node__internal_address": f"127.0.0.1:{port}",
            "node__advertise_internal": f"127.0.0.1:{server.sockets[0].getsockname()[1]}",
        }
        wronged = start("wronged", "poller", **addresses, **PATIENT)
        await cluster.settled(other, wronged)
        await until(lambda: len(writers) >= 2, "it is watched")
        epochs = {r: epoch for r, (epoch, owner) in cluster.taken().items() if owner is wronged}
        tasks = await work.create(delays(600, 0.3, 8))
        await work.recorder.until_all(earliest(tasks))
        server.close()
        for writer in writers:
            writer.transport.abort()
        await until(lambda: other.events("a dead process was evicted"), "it was evicted")
        await until(lambda: len(wronged.events("lane started")) == 2, "it came back by itself")
        await cluster.settled(other, wronged)
        assert all(cluster.taken()[r][0] > epoch for r, epoch in epochs.items()), "each was taken over"
        assert wronged.code is None
        await work.recorder.exactly(tasks + await work.create(delays(100, 0.3, 1)))
        assert len(other.events("a dead process was evicted")) == 1, "a port that never answered is no proof"
