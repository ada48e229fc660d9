"""The commands about ownership: what they print and how they end, on ownership in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest

from bucketsched import app
from bucketsched.adapters.memory.leases import MemoryLeaseWorld, MemoryMembership, MemoryPlanStore
from bucketsched.app.ownership import Ownership
from bucketsched.cli import main
from bucketsched.coordinator.administration import Administration
from bucketsched.core.assignment import Move
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.errors import NotFound
from bucketsched.ports import Member, NodeOrder, Orders, Plan, RangeReport, Rebalance, RebalanceState

NOT_FOUND, CONFLICT, INVALID = 3, 4, 2
CONSTANTS = ClusterConstants(uuid4(), shards=8, ranges=4, lanes=4)


class Reports:
    """Owners that say what they have in memory; that of range 3 does not answer."""

    async def of(self, members: object) -> dict[int, RangeReport]:
        return {r: RangeReport(r, 1, "active", 100 * r) for r in range(3)}


class Scene:
    """Two pollers, of which one has three of the four ranges, and an api."""

    def __init__(self) -> None:
        self.orders = Orders()
        self.plan = {0: 0, 1: 0, 2: 0, 3: 1}
        self.shards_known = True
        self.carried_out = False
        """Whether what is ordered is carried out at once."""
        self.world: MemoryLeaseWorld | None = None

    async def play(self, work: Callable[[Ownership], Awaitable[object]]) -> object:
        self.world = world = MemoryLeaseWorld(CONSTANTS)
        world.orders, world.plan = self.orders, Plan(1, dict(self.plan))
        members = [await self._join(world, name) for name in "ab"]
        await MemoryMembership(world).join(Member("api-1", ("api",), name="api"), wants_lane=False)
        for r, lane in self.plan.items():
            await members[lane].leases().acquire(r)
        coordinator = asyncio.create_task(self._coordinate(world, members))
        try:
            administration = Administration(MemoryPlanStore(world))
            return await work(Ownership(CONSTANTS, self.shards_known, administration, Reports()))
        finally:
            coordinator.cancel()
            self.orders = world.orders

    async def _join(self, world: MemoryLeaseWorld, name: str) -> MemoryMembership:
        membership = MemoryMembership(world)
        member = Member(f"{name}-1", ("poller",), internal_address=f"{name}:7401", zone="z", name=name)
        await membership.join(member, wants_lane=True)
        return membership

    async def _coordinate(self, world: MemoryLeaseWorld, members: list[MemoryMembership]) -> None:
        while True:
            await asyncio.sleep(0.001)
            rebalance = world.orders.rebalance
            if not self.carried_out or rebalance is None or rebalance.state is not RebalanceState.RUNNING:
                continue
            for move in rebalance.moves:
                world.ranges[move.range_id].holder = None
                world.ranges[move.range_id].released = True
                await members[move.target].leases().acquire(move.range_id)
                world.plan = Plan(world.plan.version + 1, world.plan.assignment | {move.range_id: move.target})
            done = Rebalance(rebalance.rebalance_id, rebalance.moves, rebalance.at_once, RebalanceState.DONE)
            world.orders = Orders(world.orders.version + 1, world.orders.nodes, done)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene()
    monkeypatch.setattr(app, "in_ownership", lambda settings, work, say: asyncio.run(scene.play(work)))
    return scene


Admin = Callable[..., Any]


@pytest.fixture
def admin(scene: Scene, capsys: pytest.CaptureFixture[str]) -> Admin:
    """Runs a command that must end with `code`; its JSON document, or what it said on stderr."""

    def run(*arguments: str, code: int = 0) -> Any:
        assert main(["admin", *arguments, "--output", "json"]) == code
        out, err = capsys.readouterr()
        return json.loads(out) if out else err

    return run


def test_ranges(scene: Scene, admin: Admin) -> None:
    scene.plan = {0: 0, 1: 0, 2: 0}
    found = admin("ranges")["ranges"]
    assert found[0] == {
        "range": 0,
        "shards": "0-1",
        "node": "a",
        "lane": 0,
        "held": True,
        "epoch": 1,
        "released": False,
        "unfenced": [],
        "planned_lane": 0,
        "rows": 0,
        "phase": "active",
    }
    assert [row["rows"] for row in found] == [0, 100, 200, None]
    assert {name: found[3][name] for name in ("node", "lane", "held", "planned_lane")} == {
        "node": None,
        "lane": None,
        "held": False,
        "planned_lane": None,
    }
    scene.shards_known = False
    assert admin("ranges")["ranges"][0]["shards"] is None


def test_lanes_and_nodes(scene: Scene, admin: Admin) -> None:
    scene.orders = Orders(0, {"b": NodeOrder(drained=True), "gone": NodeOrder(cordoned=True)})
    lanes = admin("lanes")["lanes"]
    assert [(row["lane"], row["node"], row["held"], row["share"], row["state"]) for row in lanes] == [
        (0, "a", 3, 4.0, "active"),
        (1, "b", 1, 0.0, "draining"),
    ]
    nodes = {row["node"]: row for row in admin("nodes")["nodes"]}
    assert {name: row["state"] for name, row in nodes.items()} == {
        "a": "active",
        "api": "active",
        "b": "draining",
        "gone": "absent",
    }
    assert nodes["b"]["drained"]
    assert nodes["a"]["internal_address"] == "a:7401"
    assert nodes["api"]["lane"] is None


def test_what_is_on_the_way_is_shown(
    scene: Scene, admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = MemoryPlanStore.read

    async def moved(store: MemoryPlanStore) -> object:
        plan, members, ranges = await read(store)
        return Plan(plan.version, plan.assignment | {0: 1, 1: 1}), members, ranges

    monkeypatch.setattr(MemoryPlanStore, "read", moved)
    lanes = admin("lanes")["lanes"]
    assert [(row["held"], row["planned"], row["coming"], row["going"]) for row in lanes] == [(3, 1, 0, 2), (1, 3, 2, 0)]


def test_cordon_and_drain_order_and_take_back(scene: Scene, admin: Admin) -> None:
    assert admin("cordon", "b-1")["state"] == "cordoned"
    assert admin("drain", "1")["state"] == "draining"
    assert scene.orders.nodes == {"b": NodeOrder(cordoned=True, drained=True)}
    admin("cordon", "b", "--undo")
    assert admin("drain", "b", "--undo")["state"] == "active"
    assert scene.orders.nodes == {}


def test_an_unknown_node_is_told_with_the_known_ones(admin: Admin) -> None:
    assert admin("drain", "c", code=NOT_FOUND) == "bucketsched: node: no node is called 'c'; there are a, api, b\n"
    assert "no lane" in str(admin("cordon", "api", code=CONFLICT))


def test_a_dry_run_changes_nothing_and_shows_the_cost(scene: Scene, admin: Admin) -> None:
    found = admin("rebalance", "--dry-run", "--at-once", "4")
    move = {"range": 2, "from_lane": 0, "from_node": "a", "to_lane": 1, "to_node": "b"}
    assert found["moves"] == [move | {"rows": 200, "expected_pause_ms": 42}]
    assert found["state"] == "proposed"
    assert scene.orders == Orders()


def test_a_rebalance_is_ordered_and_waited_for(scene: Scene, admin: Admin) -> None:
    found = admin("rebalance")
    assert found["state"] == "running"
    assert scene.orders.rebalance is not None
    assert scene.orders.rebalance.moves == (Move(2, 0, 1),)
    scene.orders, scene.carried_out = Orders(), True
    found = admin("rebalance", "--wait")
    assert {name: found[name] for name in ("state", "done", "skipped")} == {
        "state": "done",
        "done": 1,
        "skipped": 0,
    }
    scene.plan = {0: 0, 1: 0, 2: 1, 3: 1}
    assert admin("rebalance", "--wait")["state"] == "balanced"


def test_no_more_moves_than_allowed(scene: Scene, admin: Admin) -> None:
    scene.plan = dict.fromkeys(range(4), 0)
    assert len(admin("rebalance", "--dry-run")["moves"]) == 2
    assert len(admin("rebalance", "--max-moves", "1")["moves"]) == 1
    assert scene.orders.rebalance is not None
    assert len(scene.orders.rebalance.moves) == 1


def test_a_rebalance_that_runs_is_joined_and_can_be_cancelled(scene: Scene, admin: Admin) -> None:
    scene.orders = Orders(0, {}, Rebalance("r1", (Move(0, 0, 1), Move(1, 0, 1)), 1))
    found = admin("rebalance")
    assert (found["rebalance"], found["state"], len(found["moves"])) == ("r1", "running", 2)
    assert admin("rebalance", "--cancel") == {"cancelled": "r1"}
    assert scene.orders.rebalance is not None
    assert scene.orders.rebalance.state is RebalanceState.CANCELLED
    assert admin("rebalance", "--cancel") == {"cancelled": None}
    assert main(["admin", "rebalance", "--cancel", "--wait"]) == INVALID


def test_tables_are_for_people(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["admin", "rebalance", "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert "expected pause ms" in out
    assert err == "1 moves; nothing was changed\n"
    for command in ("ranges", "lanes", "nodes"):
        assert main(["admin", command]) == 0
        assert "draining" not in capsys.readouterr().out
    assert main(["admin", "cordon", "b"]) == 0
    assert "cordoned" in capsys.readouterr().out


async def test_waiting_for_a_drain_ends_when_nothing_is_left(scene: Scene) -> None:
    said: list[str] = []

    async def drained(ownership: Ownership) -> None:
        waiting = asyncio.create_task(ownership.until_drained("b", said.append))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert scene.world is not None
        scene.world.ranges[3].holder = None
        scene.world.plan = Plan(2, dict.fromkeys(range(4), 0))
        await asyncio.wait_for(waiting, 10)
        with pytest.raises(NotFound):
            await ownership.until_drained("nobody", said.append)

    await scene.play(drained)
    assert said == ["b still has 1 ranges"]


async def test_waiting_that_is_cancelled_cancels_the_rebalance(scene: Scene) -> None:
    said: list[str] = []

    async def interrupted(ownership: Ownership) -> None:
        ordered = await ownership.administration.begin([Move(2, 0, 1)], 1)
        waiting = asyncio.create_task(ownership.until_rebalanced(ordered, said.append))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    await scene.play(interrupted)
    assert scene.orders.rebalance is not None
    assert scene.orders.rebalance.state is RebalanceState.CANCELLED
    assert said[0] == "0 of 1 moved, 0 under way"
    assert said[1].startswith("cancelled")
