"""The coordinator: campaigns, reads, plans, writes; again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from ..core import failpoints
from ..core.assignment import assign
from ..core.errors import OwnershipLost, Unavailable
from ..ports import Clock, Member, Membership, Plan, PlanStore, RangeStatus

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PlanningLimits:
    """How fast a coordinator reacts."""

    settle_s: float = 0.3
    """Lanes that joined get their share when none has joined for so long: a cluster that starts is planned once."""
    settle_s_max: float = 2.0
    """However many join one after the other, the first waits no longer than this."""
    poll_s: float = 0.5
    look_s_min: float = 0.05
    """Changes come in swarms: it looks no more often than this."""
    retry_s: float = 0.2
    retry_s_max: float = 2.0


class Coordinator:
    """One candidate. `membership`, if given, wakes it at a change; without, it looks every `poll_s`."""

    def __init__(
        self,
        plan_store: PlanStore,
        clock: Clock,
        limits: PlanningLimits | None = None,
        membership: Membership | None = None,
    ) -> None:
        self._store = plan_store
        self._clock = clock
        self._limits = limits or PlanningLimits()
        self._membership = membership
        self._joined: dict[tuple[int, str], float] = {}
        self._seen = 0
        self._ranges = 0

    async def run(self) -> None:
        """Works until cancelled; then resigns, so that another one follows at once."""
        pause = self._limits.retry_s
        try:
            while True:
                try:
                    await self._store.campaign()
                    wait_s = await self.plan_once()
                    pause = self._limits.retry_s
                    await self._clock.sleep(self._limits.look_s_min)
                    await self._change(wait_s)
                except OwnershipLost as error:
                    log.info("the plan is somebody else's now", reason=str(error))
                    await self._clock.sleep(self._limits.retry_s)
                except Unavailable as error:
                    log.warning("no planning", error=str(error), recurring=True)
                    await self._clock.sleep(pause)
                    pause = min(2 * pause, self._limits.retry_s_max)
        finally:
            await self._store.resign()

    async def plan_once(self) -> float:
        """Writes a new plan if one is needed; the seconds until it wants to look again.

        Raises OwnershipLost, Unavailable.
        """
        plan, members = await self._store.read_plan()
        ranges: list[RangeStatus] = []
        if not self._ranges or len(plan.assignment) < self._ranges:
            plan, members, ranges = await self._store.read()
            self._ranges = len(ranges)
        weights, unsettled_s = self._settled(members, plan)
        current = {**_held(ranges, weights), **plan.assignment}
        wanted = assign(self._ranges, weights, current)
        if wanted and wanted != plan.assignment:
            failpoints.reach("plan.computed")
            written = await self._store.write(Plan(plan.version, wanted))
            moved = sum(plan.assignment.get(r) != lane for r, lane in wanted.items())
            log.info("planned", version=written.version, lanes=len(weights), moved=moved)
        return min(self._limits.poll_s, unsettled_s)

    def _settled(self, members: Sequence[Member], plan: Plan) -> tuple[dict[int, int], float]:
        """Weights of the lanes to plan with, and the seconds until those that are left out have settled.

        A lane that the plan knows counts at once: whoever took its slot takes its ranges.
        """
        now = self._clock.monotonic()
        lanes = {(m.lane, m.member_id): m.weight for m in members if m.lane >= 0}
        self._joined = {key: self._joined.get(key, now) for key in lanes}
        planned = set(plan.assignment.values())
        new = [joined for (lane, _), joined in self._joined.items() if lane not in planned]
        if not new:
            return {lane: weight for (lane, _), weight in lanes.items()}, self._limits.poll_s
        left_s = min(max(new) + self._limits.settle_s, min(new) + self._limits.settle_s_max) - now
        known = {lane: weight for (lane, _), weight in lanes.items() if left_s <= 0 or lane in planned}
        return known, left_s if left_s > 0 else self._limits.poll_s

    async def _change(self, seconds: float) -> None:
        """Waits for a change, or that long."""
        if self._membership is None:
            await self._clock.sleep(seconds)
            return
        changed = asyncio.ensure_future(self._membership.changed(self._seen))
        waits = [changed, asyncio.ensure_future(self._clock.sleep(seconds))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if changed.done():
                self._seen = changed.result()
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)


def _held(ranges: Sequence[RangeStatus], lanes: Mapping[int, int]) -> dict[int, int]:
    """Where the plan says nothing, a range stays with whoever holds it."""
    return {status.range_id: status.lane for status in ranges if status.held and status.lane in lanes}
