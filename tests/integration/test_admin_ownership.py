"""Operators' commands against a cluster at work: what they show, and that what they order loses and doubles nothing."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Callable
from typing import Any

import pytest
from tests.nodes import DEADLINE_S, Cluster, Process, until
from tests.workload import earliest, workload

from bucketsched.adapters.zookeeper.plan_store import ZooKeeperPlanStore
from bucketsched.coordinator.administration import Administration, Picture
from bucketsched.core.assignment import Move

pytestmark = pytest.mark.stack

RANGES = 6
NOT_FOUND, CONFLICT, INTERRUPTED = 3, 4, 130


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    """An api that coordinates, and three pollers."""
    cluster = make_cluster(shards=12, ranges=RANGES, horizon_ms=60_000, grace_ms=2_000)
    cluster.start("rest", "api,coordinator", node__name="rest")
    for name in "abc":
        cluster.start(name, "poller", node__name=name, node__zone="z1")
    return cluster


@pytest.fixture
async def admin(cluster: Cluster) -> Callable[..., Any]:
    """Runs `bucketsched admin ...`; its JSON document. `code`: the exit code that it must have."""
    for process in cluster.processes[:4]:
        await process.ready()

    async def run(*arguments: str, code: int = 0) -> Any:
        process = command(cluster, *arguments)
        assert await process.ended() == code, process.err()
        return json.loads(process.out()) if process.out() else process.err()

    return run


def command(cluster: Cluster, *arguments: str) -> Process:
    number = len(cluster.processes)
    options = ["--config", str(cluster.config), "--output", "json"]
    cluster.processes.append(Process(f"{number:02}-admin", ["admin", *arguments, *options], cluster.folder, {}))
    return cluster.processes[-1]


async def held(admin: Callable[..., Any], wanted: dict[str, int]) -> None:
    """Waits until the nodes hold so many ranges each, and the plan wants nothing else."""
    for _ in range(60):
        found = {n["node"]: (n["held"], n["planned"]) for n in (await admin("nodes"))["nodes"] if n["lane"] is not None}
        if found == {name: (count, count) for name, count in wanted.items()}:
            return
        await asyncio.sleep(0.2)
    raise AssertionError(f"{found} is not {wanted}")


async def seen(operator: Administration, wanted: Callable[[Picture], bool]) -> Picture:
    """Waits until ownership is as wanted."""
    async with asyncio.timeout(DEADLINE_S):
        while not wanted(picture := await operator.look()):  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.1)
    return picture


async def test_what_is_shown(cluster: Cluster, admin: Callable[..., Any]) -> None:
    await held(admin, {"a": 2, "b": 2, "c": 2})
    nodes = {n["node"]: n for n in (await admin("nodes"))["nodes"]}
    assert {n: (v["state"], v["roles"]) for n, v in nodes.items()} == {
        "a": ("active", ["poller"]),
        "b": ("active", ["poller"]),
        "c": ("active", ["poller"]),
        "rest": ("active", ["api", "coordinator"]),
    }
    assert nodes["a"]["zone"] == "z1"
    ranges = (await admin("ranges"))["ranges"]
    assert [r["range"] for r in ranges] == list(range(RANGES))
    assert [r["shards"] for r in ranges] == ["0-1", "2-3", "4-5", "6-7", "8-9", "10-11"]
    assert all(r["held"] and r["phase"] == "active" and r["rows"] == 0 for r in ranges)
    assert all(r["lane"] == r["planned_lane"] == nodes[r["node"]]["lane"] for r in ranges)
    lanes = (await admin("lanes"))["lanes"]
    assert [(row["held"], row["share"], row["coming"], row["going"]) for row in lanes] == [(2, 2.0, 0, 0)] * 3


async def test_drain_cordon_and_rebalance(cluster: Cluster, admin: Callable[..., Any]) -> None:
    await held(admin, {"a": 2, "b": 2, "c": 2})
    assert (await admin("drain", "c", "--wait"))["state"] == "drained"
    await held(admin, {"a": 3, "b": 3, "c": 0})
    assert (await admin("cordon", "a"))["state"] == "cordoned"
    assert "there are a, b, c, rest" in await admin("cordon", "nobody", code=NOT_FOUND)
    assert (await admin("drain", "c", "--undo"))["state"] == "active"
    await held(admin, {"a": 3, "b": 2, "c": 1})
    assert (await admin("cordon", "a", "--undo"))["state"] == "active"
    await held(admin, {"a": 3, "b": 2, "c": 1})
    proposed = await admin("rebalance", "--dry-run")
    assert (proposed["state"], len(proposed["moves"])) == ("proposed", 1)
    assert (proposed["moves"][0]["from_node"], proposed["moves"][0]["to_node"]) == ("a", "c")
    assert proposed["moves"][0]["expected_pause_ms"] > 0
    done = await admin("rebalance", "--wait")
    assert (done["state"], done["done"], done["skipped"]) == ("done", 1, 0)
    await held(admin, {"a": 2, "b": 2, "c": 2})
    assert (await admin("rebalance", "--wait"))["state"] == "balanced"
    assert (await admin("rebalance", "--cancel"))["cancelled"] is None


async def test_orders_outlive_coordinator_and_node(cluster: Cluster, admin: Callable[..., Any]) -> None:
    await admin("drain", "c", "--wait")
    rest, c = cluster.processes[0], cluster.processes[3]
    await asyncio.gather(rest.terminate(), c.terminate())
    assert {n["node"]: n["state"] for n in (await admin("nodes"))["nodes"]}["c"] == "absent"
    cluster.processes[0] = again = cluster.start("rest", "api,coordinator", node__name="rest")
    cluster.processes.pop()
    cluster.processes[3] = cluster.start("c", "poller", node__name="c")
    cluster.processes.pop()
    await again.ready()
    await cluster.processes[3].ready()
    await asyncio.sleep(1.5)
    await held(admin, {"a": 3, "b": 3, "c": 0})
    await admin("drain", "c", "--undo")
    await held(admin, {"a": 2, "b": 2, "c": 2})


async def test_a_rebalance_in_the_middle_of_traffic(cluster: Cluster, admin: Callable[..., Any]) -> None:
    """Every range moves to the next lane, two at a time, while tasks fall due; another one is cancelled."""
    await held(admin, {"a": 2, "b": 2, "c": 2})
    store = ZooKeeperPlanStore(cluster.settings.zookeeper, cluster.constants)
    operator = Administration(store)
    rng = random.Random(1)
    async with workload(cluster, cluster.processes[0].address) as work:
        tasks = await work.create([rng.uniform(0.3, 12) for _ in range(900)])
        await work.recorder.until_all(earliest(tasks))
        before = (await operator.look()).held
        await operator.begin([Move(r, lane, (lane + 1) % 3) for r, lane in sorted(before.items())], 2)
        picture = await seen(operator, lambda picture: not picture.running())
        assert picture.held == {r: (lane + 1) % 3 for r, lane in before.items()}
        assert len(picture.progress().done) == RANGES
        later = await work.create([rng.uniform(0.3, 4) for _ in range(300)])
        cluster.processes[0].pause()  # the only coordinator: what is ordered now is not begun
        await operator.begin([Move(r, lane, (lane + 1) % 3) for r, lane in sorted(picture.held.items())], 1)
        waiting = command(cluster, "rebalance", "--wait")
        await until(lambda: "under way" in waiting.err(), "it follows the rebalance that runs")
        waiting.signal(signal.SIGINT)
        assert await waiting.ended() == INTERRUPTED
        assert "cancelled" in waiting.err()
        cluster.processes[0].resume()
        await cluster.processes[0].ready()
        await asyncio.sleep(2)
        found = await seen(operator, lambda picture: len(picture.held) == RANGES)
        assert found.held == found.plan.assignment, "a cancelled rebalance leaves a sound plan"
        assert len(found.progress().waiting) == RANGES, "nothing of it was begun"
        await work.recorder.exactly(tasks + later)
    await store.resign()
