"""What operators see of a cluster's ownership, and what they order.

It is read from, and written to, where coordinators find it: no process of the cluster has to answer. Orders for a node
are kept under its name; the elected coordinator follows them at its next look, half a second later at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol
from uuid import uuid4

from ..core.assignment import Move, Seat, Standing, distribute, fair_shares, moves_between
from ..core.errors import FailedPrecondition, NotFound, Unavailable
from ..core.rebalancing import Progress, progress
from ..ports import Member, NodeOrder, Orders, OrderStore, Plan, PlanStore, RangeStatus, Rebalance, RebalanceState
from .standing import standing_of

WRITE_ROUNDS_MAX = 20
"""How often an order is tried again because somebody else has ordered something meanwhile."""


class OwnershipStore(PlanStore, OrderStore, Protocol):
    """Everything that ownership is made of."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node as operators see it. `member` None: it has orders and is not there."""

    name: str
    member: Member | None
    order: NodeOrder
    held: int
    """Ranges whose lease it holds."""
    planned: int
    """Ranges that the plan gives to it."""
    share: float
    """What it would have if ranges could be divided; 0 where it is to get nothing."""

    @property
    def state(self) -> str:
        """One word."""
        if self.member is None:
            return "absent"
        if self.member.leaving:
            return "leaving"
        if self.order.drained:
            return "draining" if self.held or self.planned else "drained"
        if self.member.ailing:
            return "ailing"
        return "cordoned" if self.order.cordoned else "active"


@dataclass(frozen=True, slots=True)
class Picture:
    """A cluster's ownership as it was read."""

    plan: Plan
    members: list[Member]
    ranges: list[RangeStatus]
    orders: Orders

    @property
    def lanes(self) -> dict[int, Member]:
        """Who has which lane."""
        return {member.lane: member for member in self.members if member.lane >= 0}

    @property
    def held(self) -> dict[int, int]:
        """Range -> the lane whose lease stands."""
        return {status.range_id: status.lane for status in self.ranges if status.held}

    def order(self, name: str) -> NodeOrder:
        """What is ordered for a node."""
        return self.orders.nodes.get(name, NodeOrder())

    def seats(self) -> list[Seat]:
        """The lanes as a plan sees them, except that it can't be told from here who is held off for flapping."""
        return [Seat(m.lane, m.weight, m.zone, standing_of(m, self.order(m.node))) for m in self.members if m.lane >= 0]

    def nodes(self) -> list[NodeStatus]:
        """By name; those that have orders only are last."""
        held, planned = Counter(self.held.values()), Counter(self.plan.assignment.values())
        shares = fair_shares(len(self.ranges), [s for s in self.seats() if s.standing is Standing.OPEN])
        there = [
            NodeStatus(m.node, m, self.order(m.node), held[m.lane], planned[m.lane], shares.get(m.lane, 0.0))
            for m in sorted(self.members, key=lambda m: (m.node, m.member_id))
        ]
        absent = sorted(self.orders.nodes.keys() - {m.node for m in self.members})
        return there + [NodeStatus(name, None, self.order(name), 0, 0, 0.0) for name in absent]

    def node_named(self, name: str) -> str:
        """The node with this name, member id or lane number. Raises NotFound, which lists the names."""
        known = [status.name for status in self.nodes()]
        if name in known:
            return name
        for member in self.members:
            if name == member.member_id or (member.lane >= 0 and name == str(member.lane)):
                return member.node
        raise NotFound("node", f"no node is called {name!r}; there are {', '.join(sorted(set(known))) or 'none'}")

    def progress(self) -> Progress:
        """What has become of the last rebalance."""
        last = self.orders.rebalance or Rebalance("", (), 0)
        takers = {seat.lane for seat in self.seats() if seat.standing is Standing.OPEN}
        return progress(last.moves, self.plan.assignment, self.held, takers, frozenset(last.failed))

    def running(self) -> Rebalance | None:
        """The rebalance that is under way."""
        rebalance = self.orders.rebalance
        return rebalance if rebalance is not None and rebalance.state is RebalanceState.RUNNING else None


class Administration:
    """Raises Unavailable where the store does not answer."""

    def __init__(self, store: OwnershipStore) -> None:
        self._store = store

    async def look(self) -> Picture:
        """Everything as it stands."""
        plan, members, ranges = await self._store.read()
        return Picture(plan, members, ranges, await self._store.read_orders())

    async def cordon(self, name: str, undo: bool) -> NodeStatus:
        """Nothing new for a node; or again. Raises NotFound, FailedPrecondition."""
        return await self._order_node(name, lambda order: replace(order, cordoned=not undo), _keep)

    async def drain(self, name: str, undo: bool) -> NodeStatus:
        """Everything of a node to others; or no longer. Raises NotFound, FailedPrecondition."""
        check = _keep if undo else _check_that_others_can_take
        return await self._order_node(name, lambda order: replace(order, drained=not undo), check)

    async def _order_node(
        self, name: str, ordered: Callable[[NodeOrder], NodeOrder], check: Callable[[Picture, str], None]
    ) -> NodeStatus:
        node = ""

        def change(picture: Picture) -> Orders:
            nonlocal node
            node = picture.node_named(name)
            if all(m.lane < 0 for m in picture.members if m.node == node) and node not in picture.orders.nodes:
                raise FailedPrecondition("node", f"{node} has no lane: it owns nothing and gets nothing")
            check(picture, node)
            nodes = {**picture.orders.nodes, node: ordered(picture.order(node))}
            return replace(picture.orders, nodes={n: o for n, o in nodes.items() if o != NodeOrder()})

        found = [status for status in (await self._change(change)).nodes() if status.name == node]
        return found[0] if found else NodeStatus(node, None, NodeOrder(), 0, 0, 0.0)

    async def propose(self, moves_max: int | None) -> list[Move]:
        """What a rebalance would move, `moves_max` of it at most: with all of it, every lane has its share."""
        return proposal(await self.look(), moves_max)

    async def begin(self, moves: Iterable[Move], at_once: int) -> Rebalance:
        """Orders moves. Where a rebalance runs already, that one goes on."""
        wanted = Rebalance(uuid4().hex[:8], tuple(moves), at_once)

        def change(picture: Picture) -> Orders:
            return picture.orders if picture.running() else replace(picture.orders, rebalance=wanted)

        rebalance = (await self._change(change)).orders.rebalance
        assert rebalance is not None
        return rebalance

    async def cancel(self) -> Rebalance | None:
        """Nothing more of the running rebalance is begun. None: there was none."""
        cancelled: Rebalance | None = None

        def change(picture: Picture) -> Orders:
            nonlocal cancelled
            running = picture.running()
            cancelled = running and replace(running, state=RebalanceState.CANCELLED)
            return replace(picture.orders, rebalance=cancelled) if cancelled else picture.orders

        await self._change(change)
        return cancelled

    async def _change(self, change: Callable[[Picture], Orders]) -> Picture:
        """Writes what `change` makes of the orders; the picture with them."""
        for _ in range(WRITE_ROUNDS_MAX):
            picture = await self.look()
            orders = change(picture)
            if orders == picture.orders:
                return picture
            if (written := await self._store.write_orders(orders)) is not None:
                return replace(picture, orders=written)
        raise Unavailable("the orders change all the time; try again")


def proposal(picture: Picture, moves_max: int | None) -> list[Move]:
    """See Administration.propose."""
    wanted = distribute(len(picture.ranges), picture.seats(), picture.plan.assignment)
    return moves_between(picture.plan.assignment, wanted)[:moves_max]


def _keep(picture: Picture, node: str) -> None:
    """Nothing speaks against it."""


def _check_that_others_can_take(picture: Picture, node: str) -> None:
    others = [m for m in picture.members if m.lane >= 0 and m.node != node]
    if all(standing_of(m, picture.order(m.node)) is not Standing.OPEN for m in others):
        raise FailedPrecondition(
            "node", f"no other node could take the ranges of {node}: start one, or take back the orders for others"
        )
