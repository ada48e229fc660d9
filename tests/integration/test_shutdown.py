"""However early, and whatever is away: a process that is told to stop stops, in order and soon."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.nodes import Cluster, Process, until

pytestmark = pytest.mark.stack

TERMINATED = 143
SOON_S = 6.0
"""Generous: a second on an idle machine."""
START_S = 1.5
MOMENTS = 7


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    return make_cluster(shards=4, ranges=2, horizon_ms=60_000, grace_ms=2_000)


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections and says nothing."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(100)
        yield f"127.0.0.1:{listening.getsockname()[1]}"


async def minds_signals(process: Process) -> None:
    """Waits until the process has a handler for SIGTERM: before, it is Python that starts."""

    def handled() -> bool:
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
        return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)

    await until(handled, "it minds SIGTERM")


async def stopped(process: Process, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
    """Its exit code, and how long it took."""
    began = time.monotonic()
    process.signal(number)
    return await process.ended(), time.monotonic() - began


async def test_at_any_moment_of_a_start(tmp_path: Path, cluster: Cluster) -> None:
    """From the first one on at which the program itself runs."""
    for moment in range(MOMENTS):
        dev = Process(f"dev{moment}", ["dev", "--data-dir", f"data{moment}", "--grpc-address", "127.0.0.1:0",
                                       "--metrics-address", ""], tmp_path, {})  # fmt: skip
        node = cluster.start(f"node{moment}")
        for process in (dev, node):
            await minds_signals(process)
        loaded = Path(f"/proc/{dev.pid}/maps").read_text()  # noqa: ASYNC240 - it is no disk
        assert moment or "uvloop" not in loaded, "it minds them before it loads what takes time"
        await asyncio.sleep(moment * START_S / MOMENTS)
        for process in (dev, node):
            code, _ = await stopped(process)
            assert code in (0, TERMINATED), process.err()
            assert "Traceback" not in process.err()


async def test_while_it_waits_for_servers(cluster: Cluster, silent: str) -> None:
    """Nobody depends on it yet, so it need not wait for anybody."""
    nowhere = "127.0.0.1:1"
    connecting = cluster.start("silent-store", cassandra__contact_points=[silent])
    await minds_signals(connecting)
    code, seconds = await stopped(connecting)  # at once: it gives up by itself after some seconds
    assert code in (0, TERMINATED), connecting.err()
    assert seconds < SOON_S
    waiting = [
        (cluster.start("no-lease", zookeeper__hosts=nowhere), "ZooKeeper can't be reached"),
        (cluster.start("silent-lease", zookeeper__hosts=silent), "ZooKeeper can't be reached"),
        (cluster.start("no-journal", kafka__bootstrap=nowhere), "no Kafka broker answers"),
        (cluster.start("silent-journal", kafka__bootstrap=silent), "no steady contact with Kafka yet"),
    ]
    for process, line in waiting:
        await minds_signals(process)
        await until(lambda process=process, line=line: line in process.err(), f"{process.name} says {line}")
    await asyncio.sleep(START_S)
    for process, _ in waiting:
        code, seconds = await stopped(process, signal.SIGINT)
        assert code == 0, (process.name, process.err())
        assert seconds < SOON_S, process.name


async def test_told_twice_it_leaves_at_once(cluster: Cluster) -> None:
    node = cluster.start("busy")
    await node.ready()
    await cluster.settled(node)
    node.signal(signal.SIGSTOP)  # so that it can't be done before the second one comes
    node.signal(signal.SIGTERM)
    node.signal(signal.SIGCONT)
    await asyncio.sleep(0.6)
    code, seconds = await stopped(node)
    assert code in (0, TERMINATED)
    assert seconds < SOON_S
