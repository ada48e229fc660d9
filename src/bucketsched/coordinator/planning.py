"""The coordinator: campaigns, reads, plans, writes; again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

import structlog

from ..core import failpoints
from ..core.assignment import ANY_IMBALANCE, IMBALANCE_SHARE, Assignment, Move, Seat, Standing, distribute
from ..core.errors import OwnershipLost, Unavailable
from ..core.flapping import Attendance, FlappingLimits
from ..core.rebalancing import MOVE_S_MAX, advance, planned_back, progress
from ..core.waiting import any_of
from ..ports import (
    Clock,
    Member,
    Membership,
    NodeOrder,
    Orders,
    OrderStore,
    Plan,
    PlanStore,
    RangeStatus,
    RebalanceState,
)
from .standing import standing_of

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
    move_s_max: float = MOVE_S_MAX
    flapping: FlappingLimits = field(default_factory=FlappingLimits)


class Coordinator:
    """One candidate. `membership`, if given, wakes it at a change; without, it looks every `poll_s`.

    `orders`: where operators leave theirs; None: nowhere.
    """

    def __init__(
        self,
        plan_store: PlanStore,
        clock: Clock,
        limits: PlanningLimits | None = None,
        membership: Membership | None = None,
        orders: OrderStore | None = None,
    ) -> None:
        self._store = plan_store
        self._clock = clock
        self._limits = limits or PlanningLimits()
        self._membership = membership
        self._orders = orders
        self._attendance = Attendance(self._limits.flapping)
        self._joined: dict[tuple[int, str], float] = {}
        self._moving: dict[tuple[str, Move], float] = {}
        self._seen = 0
        self._ranges = 0

    async def run(self) -> None:
        """Works until cancelled; then resigns, so that another one follows at once."""
        noting = asyncio.get_running_loop().create_task(self._note_joinings())
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
            noting.cancel()
            await self._store.resign()

    async def plan_once(self) -> float:
        """Writes a new plan if one is needed; the seconds until it wants to look again.

        Raises OwnershipLost, Unavailable.
        """
        (plan, members), orders = await asyncio.gather(self._store.read_plan(), self._read_orders())
        ranges: list[RangeStatus] = []
        if not self._ranges or len(plan.assignment) < self._ranges or _running(orders):
            plan, members, ranges = await self._store.read()
            self._ranges = len(ranges)
        seats, unsettled_s = self._seats(members, plan, orders)
        current = {**_held(ranges, {seat.lane for seat in seats}), **plan.assignment}
        # what is under way by order is uneven in between: only what has no owner is planned beside it
        wanted = distribute(self._ranges, seats, current, ANY_IMBALANCE if _running(orders) else IMBALANCE_SHARE)
        if _running(orders):
            wanted = await self._advance(orders, wanted, seats, ranges)
        if wanted and wanted != plan.assignment:
            failpoints.reach("plan.computed")
            written = await self._store.write(Plan(plan.version, wanted))
            moved = sum(plan.assignment.get(r) != lane for r, lane in wanted.items())
            log.info("planned", version=written.version, lanes=len(seats), moved=moved)
        return min(self._limits.poll_s, unsettled_s)

    async def _read_orders(self) -> Orders:
        return await self._orders.read_orders() if self._orders else Orders()

    async def _advance(
        self, orders: Orders, wanted: Assignment, seats: Sequence[Seat], ranges: Sequence[RangeStatus]
    ) -> Assignment:
        """The plan with the next of the ordered moves; takes note of their end, and of those that come to nothing."""
        assert orders.rebalance is not None
        rebalance, failed = orders.rebalance, frozenset(orders.rebalance.failed)
        takers = {seat.lane for seat in seats if seat.standing is Standing.OPEN}
        held = {status.range_id: status.lane for status in ranges if status.held}
        found = progress(rebalance.moves, wanted, held, takers, failed)
        if late := self._late(rebalance.rebalance_id, found.moving):
            log.error("ranges are not taken by whom they were to go to", ranges=[move.range_id for move in late])
            wanted = planned_back(wanted, late, {seat.lane for seat in seats})
            failed |= {move.range_id for move in late}
            found = progress(rebalance.moves, wanted, held, takers, failed)
        state = RebalanceState.DONE if found.over else rebalance.state
        told = replace(rebalance, state=state, failed=tuple(sorted(failed)))
        if told != rebalance and self._orders is not None:
            await self._orders.write_orders(replace(orders, rebalance=told))
        if found.over:
            counts = {"done": len(found.done), "skipped": len(found.skipped), "failed": len(found.failed)}
            log.info("rebalanced", rebalance=rebalance.rebalance_id, **counts)
        return advance(wanted, found, rebalance.at_once)

    def _late(self, rebalance_id: str, moving: Sequence[Move]) -> list[Move]:
        """Those that have been under way for too long, as far as this coordinator has seen."""
        now = self._clock.monotonic()
        keys = {(rebalance_id, move): move for move in moving}
        self._moving = {key: self._moving.get(key, now) for key in keys}
        return [move for key, move in keys.items() if now - self._moving[key] >= self._limits.move_s_max]

    async def _note_joinings(self) -> None:
        """Also while another one is elected: who follows it shall know who flaps."""
        seen = 0
        while self._membership is not None:
            self._note(self._membership.members())
            seen = await self._membership.changed(seen)

    def _note(self, members: Sequence[Member]) -> None:
        joinings = [(m.node, m.incarnation) for m in members if m.lane >= 0]
        self._attendance.see(self._clock.monotonic(), joinings)

    def _seats(self, members: Sequence[Member], plan: Plan, orders: Orders) -> tuple[list[Seat], float]:
        """The lanes to plan with, and the seconds until those that are left out have settled.

        A lane that the plan knows counts at once: whoever took its slot takes its ranges.
        """
        self._note(members)
        now = self._clock.monotonic()
        lanes = {(m.lane, m.member_id): m for m in members if m.lane >= 0}
        self._joined = {key: self._joined.get(key, now) for key in lanes}
        planned = set(plan.assignment.values())
        new = [joined for (lane, _), joined in self._joined.items() if lane not in planned]
        seats = {m.lane: self._seat(m, orders.nodes.get(m.node, NodeOrder()), now) for m in lanes.values()}
        if not new:
            return list(seats.values()), self._limits.poll_s
        left_s = min(max(new) + self._limits.settle_s, min(new) + self._limits.settle_s_max) - now
        known = [seat for seat in seats.values() if left_s <= 0 or seat.lane in planned]
        return known, left_s if left_s > 0 else self._limits.poll_s

    def _seat(self, member: Member, order: NodeOrder, now: float) -> Seat:
        standing = standing_of(member, order)
        left_s = self._attendance.held_off_s(now, member.node)
        if standing is Standing.OPEN and left_s > 0:
            log.warning("a node joins again and again", node=member.node, waits_s=round(left_s), recurring=member.node)
            standing = Standing.HELD_OFF
        return Seat(member.lane, member.weight, member.zone, standing)

    async def _change(self, seconds: float) -> None:
        """Waits for a change, or that long."""
        if self._membership is None:
            await self._clock.sleep(seconds)
            return
        changed = asyncio.ensure_future(self._membership.changed(self._seen))
        await any_of(changed, self._clock.sleep(seconds))
        if changed.done():
            self._seen = changed.result()


def _held(ranges: Sequence[RangeStatus], lanes: AbstractSet[int]) -> dict[int, int]:
    """Where the plan says nothing, a range stays with whoever holds it."""
    return {status.range_id: status.lane for status in ranges if status.held and status.lane in lanes}


def _running(orders: Orders) -> bool:
    return orders.rebalance is not None and orders.rebalance.state is RebalanceState.RUNNING
