"""The poller role: a lane for as long as its slot stands, then another one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import structlog

from ..coordinator.follower import RangeFollower
from ..core.cluster import ClusterConstants
from ..core.errors import OwnershipLost, Unavailable
from ..core.task import TaskRow
from ..poller.dispatcher import LaneLost
from ..poller.figures import LaneCounters
from ..poller.lane import Lane
from ..poller.limits import LaneLimits
from ..ports import (
    CancelResult,
    Catalog,
    CheckpointStore,
    Clock,
    HintAnswer,
    Journal,
    Leases,
    Member,
    Membership,
    TaskStore,
)

log = structlog.get_logger(__name__)
RETRY_S = 0.5
HAND_OVER_STALL_S_MAX = 5.0
"""How long a stop goes on where not one range can be handed over: then others take them, as after a crash."""


class LaneMembership(Membership, Protocol):
    """A membership that also gives the leases of the lane it joined with."""

    def leases(self) -> Leases:
        """Raises OwnershipLost where the slot is gone."""
        ...


class PollerRole:
    """Joins with a lane, serves it, and joins anew when slot or session are lost. Implements RangeOwner.

    `prepare` makes what joining needs, before each time: the lease service may have been restored empty meanwhile.
    """

    def __init__(
        self,
        member: Member,
        membership: LaneMembership,
        make_journal: Callable[[int], Journal],
        store: TaskStore,
        checkpoints: CheckpointStore,
        catalog: Catalog,
        clock: Clock,
        constants: ClusterConstants,
        limits: LaneLimits,
        prepare: Callable[[], Awaitable[None]],
    ) -> None:
        self._prepare = prepare
        self._member, self._membership, self._make_journal = member, membership, make_journal
        self._store, self._checkpoints, self._catalog = store, checkpoints, catalog
        self._clock, self._constants, self._limits = clock, constants, limits
        self._stopping = False
        self.lane: Lane | None = None
        self.counters = LaneCounters()

    def announce(self, member: Member) -> None:
        """How the process joins; before `work`."""
        self._member = member

    async def work(self) -> None:
        """Until cancelled or stopped."""
        while not self._stopping:
            try:
                await self._serve_lane()
            except (Unavailable, OwnershipLost, LaneLost) as error:
                self.counters.lanes_lost += 1
                log.warning("lane ended", reason=str(error), kind=type(error).__name__, recurring=True)
            if not self._stopping:
                await self._clock.sleep(RETRY_S)

    async def _serve_lane(self) -> None:
        await self._prepare()
        member = await self._membership.join(self._member, wants_lane=True)
        journal = self._make_journal(member.lane)
        lane = Lane(
            self._constants,
            journal,
            self._membership.leases(),
            self._store,
            self._checkpoints,
            self._catalog,
            self._clock,
            self._limits,
            self.counters,
        )
        try:
            await lane.start()
            log.info("lane started", lane=member.lane, member=member.member_id)
            self.lane = lane
            await self._follow(lane, member.lane)
        finally:
            self.lane = None
            await lane.close()

    async def _follow(self, lane: Lane, slot: int) -> None:
        """Runs the lane while the plan is followed; ends with the first of both, or after a hand-over."""
        running = asyncio.create_task(lane.run())
        following = asyncio.create_task(RangeFollower(self._membership, slot, lane, self._clock).run())
        try:
            await asyncio.wait([running, following], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            if self._stopping:
                await _hand_over(lane)
            raise
        finally:
            for task in (running, following):
                task.cancel()
            ended = await asyncio.gather(running, following, return_exceptions=True)
        for result in ended:
            if isinstance(result, Exception):
                raise result

    def stop(self) -> None:
        """From now on a cancelled `work` hands its ranges over first."""
        self._stopping = True

    # ---- RangeOwner

    async def hint(self, rows: Sequence[TaskRow]) -> list[HintAnswer]:
        """See ports.RangeOwner."""
        return await self.lane.hint(rows) if self.lane else [HintAnswer.NOT_OWNER] * len(rows)

    async def admit(self, row: TaskRow) -> HintAnswer:
        """See ports.RangeOwner."""
        return await self.lane.admit(row) if self.lane else HintAnswer.NOT_OWNER

    async def cancel(self, namespace_id: bytes, task_id: bytes) -> CancelResult | HintAnswer:
        """See ports.RangeOwner."""
        return await self.lane.cancel(namespace_id, task_id) if self.lane else HintAnswer.NOT_OWNER


async def _hand_over(lane: Lane) -> None:
    """Hands all ranges over, or as many as the servers that it takes let it."""
    stopping, left = asyncio.create_task(lane.stop()), len(lane.ranges) + 1
    try:
        while not stopping.done() and len(lane.ranges) < left:
            left = len(lane.ranges)
            await asyncio.wait([stopping], timeout=HAND_OVER_STALL_S_MAX)
        if not stopping.done():
            log.warning("leaving without a hand-over: servers do not answer", ranges=left)
    finally:
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
