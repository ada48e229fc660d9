"""Poller roles in one memory world, and a coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

from lane_world import World

from bucketsched.adapters.memory.journal import MemoryJournal
from bucketsched.adapters.memory.leases import MemoryMembership, MemoryPlanStore
from bucketsched.app.poller_role import PollerRole
from bucketsched.coordinator.planning import Coordinator, PlanningLimits
from bucketsched.poller.limits import LaneLimits
from bucketsched.ports import Member


class Pollers:
    """Those that were started, in order."""

    def __init__(self, world: World) -> None:
        self.world, self.tasks = world, list[asyncio.Task[None]]()
        self.roles: list[PollerRole] = []
        self.memberships: list[MemoryMembership] = []
        coordinator = Coordinator(MemoryPlanStore(world.leases), world.clock, PlanningLimits(settle_s=0.1))
        self.tasks.append(asyncio.create_task(coordinator.run()))

    def make(self, name: str, journal: type[MemoryJournal] = MemoryJournal) -> PollerRole:
        """A role that does not work yet. `journal`: what it writes through."""
        world, membership = self.world, MemoryMembership(self.world.leases)

        async def prepare() -> None:
            pass

        role = PollerRole(
            Member(name, ("poller",)), membership, lambda lane: journal(world.journal, lane), world.store,
            world.checkpoints, world.catalog, world.clock, world.constants, LaneLimits(), prepare,
        )  # fmt: skip
        self.roles.append(role)
        self.memberships.append(membership)
        return role

    def work(self, role: PollerRole) -> PollerRole:
        """From now on it works."""
        self.spawn(role.work())
        return role

    def start(self, name: str, objection: Callable[[], str] = lambda: "") -> PollerRole:
        """Both; `objection`: what speaks against its owning ranges."""
        role = self.make(name)
        role.objection = objection
        return self.work(role)

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Works beside them."""
        self.tasks.append(asyncio.create_task(work))

    def active(self, role: PollerRole) -> int:
        """How many ranges it serves."""
        return len(role.lane.active()) if role.lane else 0

    async def close(self) -> None:
        """Ends all of them."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@asynccontextmanager
async def some_pollers(**constants: int) -> AsyncIterator[Pollers]:
    """For a test."""
    pollers = Pollers(await World(**constants).prepare())
    try:
        yield pollers
    finally:
        await pollers.close()
