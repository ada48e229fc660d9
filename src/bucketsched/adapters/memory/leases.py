"""Leases, membership and plan in memory: for one process (embedded mode) and for tests.

A `MemoryLeaseWorld` stands for the lease service. Any number of members and coordinators share it; each has a session
of its own. Tests can end a session, make the service unreachable or hold all calls back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...core.checkpoint import Checkpoint
from ...core.cluster import ClusterConstants
from ...core.errors import OwnershipLost, Unavailable
from ...ports import Lease, LeaseHeld, Member, Orders, Plan, RangeStatus


@dataclass(slots=True, eq=False)
class Session:
    """What a slot, a lease or a candidacy lives and dies with. `number`: a member's incarnation."""

    member_id: str
    number: int = 0
    alive: bool = True


@dataclass(slots=True)
class RangeState:
    """What is stored of a range; `holder`: whose lease stands."""

    epoch: int = 0
    lane: int = -1
    released: bool = True
    predecessors: tuple[int, ...] = ()
    holder: Session | None = None

    def unfenced(self) -> tuple[int, ...]:
        """The lanes that may still write for the range: the last one too, if it did not release."""
        if self.released or self.lane in self.predecessors:
            return self.predecessors
        return (*self.predecessors, self.lane)


@dataclass(frozen=True, slots=True)
class View:
    """What members know by watches; it stands still while the service is unreachable."""

    members: tuple[Member, ...] = ()
    plan: Plan = field(default_factory=lambda: Plan(0))
    owners: dict[int, Member] = field(default_factory=dict)


class MemoryLeaseWorld:
    """The lease service's whole state."""

    def __init__(self, constants: ClusterConstants) -> None:
        self.constants = constants
        self.ranges = {r: RangeState() for r in range(constants.ranges)}
        self.slots: dict[int, Session] = {}
        self.joined: dict[str, tuple[Session, Member]] = {}
        self.candidates: list[Session] = []
        self.sessions = 0
        self.plan = Plan(0)
        self.orders = Orders()
        self.view = View()
        self.reachable = True
        self.version = 0
        self._moved = asyncio.Event()
        self._gate = asyncio.Event()
        self._gate.set()

    # ---- what a test, or the start of embedded mode, does to it

    def raise_epochs(self, checkpoints: Mapping[int, Checkpoint]) -> None:
        """Puts every range behind what its checkpoint says: epochs go on from there, its lane is to be fenced."""
        for range_id, checkpoint in checkpoints.items():
            state = self.ranges[range_id]
            if state.epoch < checkpoint.epoch:
                lane = checkpoint.lane
                self.ranges[range_id] = RangeState(checkpoint.epoch, lane, lane < 0, state.unfenced())
        self.change()

    def cut(self) -> None:
        """The service is unreachable from now on, for everybody, until `restore`."""
        self.reachable = False

    def restore(self) -> None:
        """Ends `cut`."""
        self.reachable = True
        self.change()

    def hold(self) -> None:
        """Calls wait from now on, until `go_on`."""
        self._gate.clear()

    def go_on(self) -> None:
        """Ends `hold`."""
        self._gate.set()

    # ---- what its adapters ask of it

    async def reach(self) -> None:
        """One request reaches the service. Raises Unavailable."""
        await asyncio.sleep(0)
        await self._gate.wait()
        if not self.reachable:
            raise Unavailable("the lease service is unreachable")

    def end(self, session: Session) -> None:
        """Ends a session and drops everything that is bound to it."""
        session.alive = False
        self.slots = {k: s for k, s in self.slots.items() if s is not session}
        self.joined = {k: v for k, v in self.joined.items() if v[0] is not session}
        self.candidates = [s for s in self.candidates if s is not session]
        for state in self.ranges.values():
            if state.holder is session:
                state.holder = None
        self.change()

    def statuses(self) -> list[RangeStatus]:
        """Every range, in order."""
        return [
            RangeStatus(r, s.epoch, s.lane, s.holder is not None, s.released, s.predecessors)
            for r, s in self.ranges.items()
        ]

    def change(self) -> None:
        """Tells everybody who watches."""
        self.version += 1
        if self.reachable:
            members = dict(self.joined.values())
            owners = {r: members[s.holder] for r, s in self.ranges.items() if s.holder in members}
            self.view = View(tuple(members.values()), self.plan, owners)
        self._moved.set()
        self._moved = asyncio.Event()

    async def changed(self, seen: int) -> int:
        """Waits until the state's version is another than `seen`; that version."""
        while self.version == seen:
            await self._moved.wait()
        return self.version


class MemoryLeases:
    """ports.Leases of one joined lane."""

    def __init__(self, world: MemoryLeaseWorld, session: Session, lane: int) -> None:
        self._world = world
        self._session = session
        self._lane = lane

    async def acquire(self, range_id: int) -> Lease:
        """See ports.Leases."""
        await self._reach()
        state = self._world.ranges[range_id]
        if state.holder not in (None, self._session):
            raise LeaseHeld(f"range {range_id} is held by lane {state.lane}")
        new = RangeState(state.epoch + 1, self._lane, False, state.unfenced(), self._session)
        self._world.ranges[range_id] = new
        self._world.change()
        return Lease(range_id, new.epoch, new.predecessors)

    async def clear_predecessors(self, lease: Lease) -> None:
        """See ports.Leases."""
        state = await self._standing(lease)
        state.predecessors = ()
        self._world.change()

    async def validate(self, leases: Sequence[Lease]) -> set[int]:
        """See ports.Leases."""
        await self._reach()
        return {lease.range_id for lease in leases if self._stands(lease)}

    async def release(self, lease: Lease) -> None:
        """See ports.Leases."""
        state = await self._standing(lease)
        state.released, state.holder = True, None
        self._world.change()

    async def _reach(self) -> None:
        await self._world.reach()
        if self._world.slots.get(self._lane) is not self._session:
            raise OwnershipLost(f"slot {self._lane} is gone")

    async def _standing(self, lease: Lease) -> RangeState:
        await self._reach()
        if not self._stands(lease):
            raise OwnershipLost(f"the lease on range {lease.range_id} of epoch {lease.epoch} is gone")
        return self._world.ranges[lease.range_id]

    def _stands(self, lease: Lease) -> bool:
        state = self._world.ranges[lease.range_id]
        return state.epoch == lease.epoch and state.holder is self._session


class MemoryMembership:
    """ports.Membership of one process."""

    def __init__(self, world: MemoryLeaseWorld) -> None:
        self._world = world
        self._session: Session | None = None
        self._lane = -1
        self._seen = world.version
        self._lost = False

    async def join(self, member: Member, wants_lane: bool) -> Member:
        """See ports.Membership."""
        await self.leave()
        world = self._world
        await world.reach()
        if member.member_id in world.joined:
            raise Unavailable(f"another process has joined as {member.member_id}")
        free = [k for k in range(world.constants.lanes) if k not in world.slots] if wants_lane else [-1]
        if not free:
            raise Unavailable(f"all {world.constants.lanes} lanes of the cluster are taken")
        world.sessions += 1
        self._session, self._lane, self._lost = Session(member.member_id, world.sessions), free[0], False
        if wants_lane:
            world.slots[self._lane] = self._session
        joined = replace(member, lane=self._lane, incarnation=world.sessions)
        world.joined[member.member_id] = (self._session, joined)
        self._seen = world.version
        world.change()
        return joined

    def leases(self) -> MemoryLeases:
        """The leases of the lane that `join` gave. Raises OwnershipLost where it gave none."""
        if self._session is None or self._lane < 0:
            raise OwnershipLost("this process has no lane")
        return MemoryLeases(self._world, self._session, self._lane)

    def members(self) -> list[Member]:
        """See ports.Membership."""
        return list(self._world.view.members)

    def plan(self) -> Plan:
        """See ports.Membership."""
        return self._world.view.plan

    def owner_of(self, range_id: int) -> Member | None:
        """See ports.Membership."""
        return self._world.view.owners.get(range_id)

    async def changed(self, seen: int | None = None) -> int:
        """See ports.Membership."""
        if seen is not None:
            return await self._world.changed(seen)
        self._seen = await self._world.changed(self._seen)
        return self._seen

    async def announce_leaving(self, leaving: bool = True) -> None:
        """See ports.Membership."""
        await self._announce(leaving=leaving)

    async def announce_ailing(self, ailing: str) -> None:
        """See ports.Membership."""
        await self._announce(ailing=ailing)

    async def _announce(self, **changes: Any) -> None:
        await self._world.reach()
        held = [name for name, (session, _) in self._world.joined.items() if session is self._session]
        if not held:
            raise OwnershipLost("this process is no member")
        session, member = self._world.joined[held[0]]
        self._world.joined[held[0]] = session, replace(member, **changes)
        self._world.change()

    def session_lost(self) -> bool:
        """See ports.Membership. Nobody knows it before the service can be reached again."""
        self._lost = self._lost or (self._session is not None and not self._session.alive and self._world.reachable)
        return self._lost

    async def leave(self) -> None:
        """See ports.Membership."""
        self.expire()

    def expire(self) -> None:
        """Ends this member's session, without its knowing."""
        if self._session is not None:
            self._world.end(self._session)


class MemoryPlanStore:
    """ports.PlanStore of one candidate."""

    def __init__(self, world: MemoryLeaseWorld, member_id: str = "") -> None:
        self._world = world
        self._session = Session(member_id)

    async def campaign(self) -> None:
        """See ports.PlanStore."""
        while True:
            await self._world.reach()
            seen = self._world.version
            if self.elected():
                return
            await self._world.changed(seen)

    def elected(self) -> bool:
        if not self._session.alive:
            self._session = Session(self._session.member_id)
        if self._place() is None:
            self._world.candidates.append(self._session)
        return self._place() == 0

    def _place(self) -> int | None:
        """How many candidates are ahead of this one."""
        return next((n for n, session in enumerate(self._world.candidates) if session is self._session), None)

    async def read(self) -> tuple[Plan, list[Member], list[RangeStatus]]:
        """See ports.PlanStore."""
        await self._world.reach()
        plan, members = self._world.plan, [member for _, member in self._world.joined.values()]
        return Plan(plan.version, dict(plan.assignment)), members, self._world.statuses()

    async def read_plan(self) -> tuple[Plan, list[Member]]:
        """See ports.PlanStore."""
        plan, members, _ = await self.read()
        return plan, members

    async def write(self, plan: Plan) -> Plan:
        """See ports.PlanStore."""
        world = self._world
        await world.reach()
        if self._place() != 0:
            raise OwnershipLost("this process is not the elected coordinator")
        if world.plan.version != plan.version:
            raise OwnershipLost(f"the plan is at version {world.plan.version}, not {plan.version}")
        world.plan = Plan(plan.version + 1, dict(plan.assignment))
        world.change()
        return world.plan

    async def read_orders(self) -> Orders:
        """See ports.OrderStore."""
        await self._world.reach()
        return replace(self._world.orders, nodes=dict(self._world.orders.nodes))

    async def write_orders(self, orders: Orders) -> Orders | None:
        """See ports.OrderStore."""
        world = self._world
        await world.reach()
        if world.orders.version != orders.version:
            return None
        world.orders = replace(orders, version=orders.version + 1, nodes=dict(orders.nodes))
        world.change()
        return world.orders

    async def evict(self, member: Member) -> bool:
        """See ports.PlanStore."""
        world = self._world
        await world.reach()
        place = self._place()
        if place is None or (place and world.candidates[place - 1].member_id != member.member_id):
            return False
        held = [session for session in world.candidates if session.member_id == member.member_id]
        joined = world.joined.get(member.member_id)
        if joined is not None and joined[0].number == member.incarnation:
            held.append(joined[0])
        for dead in held:
            world.end(dead)
        return bool(held)

    async def resign(self) -> None:
        """See ports.PlanStore."""
        self.expire()

    def expire(self) -> None:
        """Ends this candidate's session, without its knowing."""
        self._world.end(self._session)
