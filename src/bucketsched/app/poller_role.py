"""The poller role: a lane for as long as its slot stands, then another one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol

import structlog

from ..coordinator.follower import RangeFollower
from ..core.cluster import ClusterConstants
from ..core.errors import OwnershipLost, Unavailable
from ..core.execution import AttemptReport, EndResult
from ..core.task import TaskRow
from ..core.task_change import TaskChange
from ..poller.dispatcher import LaneLost
from ..poller.figures import LaneCounters
from ..poller.lane import Lane
from ..poller.limits import LaneLimits
from ..ports import (
    CancelResult,
    Catalog,
    Changed,
    CheckpointStore,
    Clock,
    HintAnswer,
    Journal,
    Leases,
    Member,
    Membership,
    RangeReport,
    ReadyCalls,
    TaskStore,
)

log = structlog.get_logger(__name__)
RETRY_S = 0.5
CLOCK_LOOK_S = 0.2
STAND_BY_S = 1.0
"""An objection that lasts so long makes a member without a lane of this process."""
TURN_S = 0.3
"""Between two lanes that would step aside at the same time: the last one sees that the others leave, and stays."""
STEP_ASIDE_S_MAX = 60.0
"""How long others may take to take over what a node with a wrong clock gives up."""
STARTING = "starting"
"""What ails a lane until it has begun: it has not proved yet that it can commit."""
LOOK_S = 0.02
PLAN_S_MAX = 2.0
"""How long a process that leaves waits for a plan that says so: without a coordinator there is none."""
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
        calls: ReadyCalls | None = None,
    ) -> None:
        self._prepare = prepare
        self._member, self._membership, self._make_journal = member, membership, make_journal
        self._store, self._checkpoints, self._catalog = store, checkpoints, catalog
        self._clock, self._constants, self._limits = clock, constants, limits
        self._calls = calls
        self._follower: RangeFollower | None = None
        self._slot = -1
        self._stopping = self._told_leaving = False
        self.objection: Callable[[], str] = lambda: ""
        """Why this process should own no ranges; "": nothing speaks against it."""
        self.ailing: Callable[[], str] = lambda: ""
        """What it can't reach, or has not reached yet; while there is anything it gets nothing new."""
        self.out_of_reach: Callable[[], bool] = lambda: False
        """Whether some server does not answer at present, be it in doubt besides or not."""
        self.cut_off: Callable[[], str] = lambda: ""
        """Why it can't work for its ranges at all, so that others should, if nothing ails them; "": it can."""
        self.lane: Lane | None = None
        self.counters = LaneCounters()

    def announce(self, member: Member) -> None:
        """How the process joins; before `work`."""
        self._member = member

    async def work(self) -> None:
        """Until cancelled or stopped."""
        while not self._stopping:
            try:
                await self._stand_by()
                await self._serve_lane()
            except (Unavailable, OwnershipLost, LaneLost) as error:
                self.counters.lanes_lost += 1
                log.warning("lane ended", reason=str(error), kind=type(error).__name__, recurring=True)
            if not self._stopping:
                await self._clock.sleep(RETRY_S)

    async def _stand_by(self) -> None:
        """While something speaks against owning ranges; as a member without a lane, for the sake of other roles."""
        began, joined = self._clock.monotonic(), False
        while (reason := self.objection() or self._doubts()) and not self._stopping:
            if self._clock.monotonic() - began >= STAND_BY_S:
                log.error("no ranges are taken", reason=reason, recurring=True)
                if not joined or self._membership.session_lost():
                    joined = await self._join_without_a_lane()
            await self._clock.sleep(LOOK_S if not joined else CLOCK_LOOK_S)

    def _doubts(self) -> str:
        """Why it should not join with a lane yet: it can't work, or less well than others. Where servers falter for all
        and all sessions are gone, one that reaches them now and then has to do, as ranges must have owners."""
        ailing = self.ailing()
        if not ailing or (not self.out_of_reach() and not self._has_heirs()):
            return ""
        return f"no steady contact with {ailing} yet"

    async def _join_without_a_lane(self) -> bool:
        try:
            await self._prepare()
        except Unavailable as error:
            log.warning("joining unprepared", reason=str(error), recurring=True)  # it needs what can't be reached
        await self._membership.join(self._member, wants_lane=False)
        return True

    async def _step_aside(self) -> bool:
        """Returns once its ranges are given to others as something speaks against its owning them; never where nobody
        could take them. False: it could not hand them over, so that it is to leave them as they are.
        """
        told = STARTING
        while True:
            told = await self._tell(told)
            if self.objection():
                await self._clock.sleep(TURN_S * self._slot)
            if reason := self.objection():
                if self._has_heirs():
                    log.error("giving the ranges up", reason=reason)
                    await self.leave(STEP_ASIDE_S_MAX)
                    return True
                log.error("there is nobody to give the ranges to", reason=reason, recurring=True)
            elif await self._is_cut_off() and await self._leave_for_others():
                return False
            await self._clock.sleep(CLOCK_LOOK_S)

    async def _is_cut_off(self) -> bool:
        """True if others can serve its ranges and it can't. Looked at twice: after a pause of the process the answers
        are there, and not read yet."""
        for pause_s in (CLOCK_LOOK_S, 0):
            if not (reason := self.cut_off()):
                return False
            if not self._has_heirs():
                log.error("there is nobody to give the ranges to", reason=reason, recurring=True)
                return False
            await self._clock.sleep(pause_s)
        log.error("leaving the ranges to others", reason=reason)
        return True

    async def _leave_for_others(self) -> bool:
        """Ends the session once others are to take the ranges, which fence this lane: nothing can be handed over.

        False: nobody is to take them, so that it stays.
        """
        self._told_leaving = True
        try:
            await self._membership.announce_leaving()
        except Unavailable as error:
            log.warning("staying, as leaving can't be told", reason=str(error), recurring=True)
            return False
        began = self._clock.monotonic()
        while self._slot in self._membership.plan().assignment.values():
            if not self.cut_off() or self._clock.monotonic() - began > PLAN_S_MAX:
                log.warning("staying, as nobody was to take the ranges in time", recurring=True)
                return False
            await self._clock.sleep(LOOK_S)
        await self._membership.leave()
        return True

    async def _tell(self, told: str) -> str:
        """Lets the others know what ails this process, where they don't, and that it stays; what they know then."""
        ailing = self.ailing()
        try:
            if self._told_leaving:
                await self._membership.announce_leaving(False)
                self._told_leaving = False
            if ailing != told:
                await self._membership.announce_ailing(ailing)
        except (Unavailable, OwnershipLost) as error:
            log.info("the others are not told how this process is", ailing=ailing, error=str(error), recurring=True)
            return told
        return ailing

    def _has_heirs(self) -> bool:
        """There are other lanes that stay, and that nothing ails: a cluster that is stopped as a whole has none, nor
        has one that has lost what all need."""
        members = self._membership.members()
        return any(m.lane >= 0 and m.lane != self._slot and not m.leaving and not m.ailing for m in members)

    async def _serve_lane(self) -> None:
        await self._prepare()
        member = await self._membership.join(replace(self._member, ailing=STARTING), wants_lane=True)
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
        self._slot, self._told_leaving = slot, False
        self._follower = RangeFollower(self._membership, slot, lane, self._clock, self._calls)
        running = asyncio.create_task(lane.run())
        following = asyncio.create_task(self._follower.run())
        aside = asyncio.create_task(self._step_aside())
        try:
            await asyncio.wait([running, following, aside], return_when=asyncio.FIRST_COMPLETED)
            if aside.done() and not running.done():
                following.cancel()
                if aside.result():
                    await _hand_over(lane)
        except asyncio.CancelledError:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            if self._stopping:
                await _hand_over(lane)
            raise
        finally:
            self._follower = None
            for task in (running, following, aside):
                task.cancel()
            ended = await asyncio.gather(running, following, aside, return_exceptions=True)
        for result in ended:
            if isinstance(result, Exception):
                raise result

    def stop(self) -> None:
        """From now on a cancelled `work` hands its ranges over first."""
        self._stopping = True

    async def leave(self, seconds: float) -> None:
        """Has the coordinator give this lane's ranges to others, which read ahead before they take them.

        Returns when all are gone, at the latest after so many seconds; as soon as there is nobody to take them, and
        after PLAN_S_MAX where nobody plans it. What is left then is released without a plan, by the end of `work`.
        """
        lane, plan = self.lane, self._membership.plan()
        if lane is None or not self._has_heirs():
            return
        try:
            await self._membership.announce_leaving()
        except (Unavailable, OwnershipLost) as error:
            log.warning("leaving unannounced", reason=str(error))
            return
        began = self._clock.monotonic()
        while lane is self.lane and lane.ranges and self._has_heirs():
            waited_s = self._clock.monotonic() - began
            if waited_s > seconds or (waited_s > PLAN_S_MAX and self._membership.plan() == plan):
                log.warning("leaving with ranges that nobody has taken", ranges=len(lane.ranges))
                return
            await self._clock.sleep(LOOK_S)

    def reports(self) -> list[RangeReport]:
        """How each of its ranges stands."""
        return self.lane.reports() if self.lane else []

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

    async def change(self, namespace_id: bytes, task_id: bytes, change: TaskChange) -> Changed | HintAnswer:
        """See ports.RangeOwner."""
        return await self.lane.change(namespace_id, task_id, change) if self.lane else HintAnswer.NOT_OWNER

    async def finish(self, reports: Sequence[AttemptReport]) -> list[EndResult | HintAnswer]:
        """See ports.RangeOwner."""
        return await self.lane.finish(reports) if self.lane else [HintAnswer.NOT_OWNER] * len(reports)

    async def ready(self, range_ids: Sequence[int], lane: int) -> None:
        """See ports.RangeOwner."""
        if self._follower is not None:
            self._follower.ready(range_ids, lane)


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
