"""A poller's follower of the plan: takes what it is given, gives up what others are given; warm if both sides live."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

import structlog

from ..core.errors import OwnershipLost, Unavailable
from ..core.waiting import first_of
from ..ports import Clock, LeaseHeld, Member, Membership, ReadyCalls
from .warm_moves import Announcer, Patience

log = structlog.get_logger(__name__)

LOOK_S = 0.2
"""How often it looks at the plan and at the session without being told of a change."""
HELD_RETRY_S = 0.2
FAILED_RETRY_S = 0.5
MOVES_IN_FLIGHT_MAX = 64
"""Ranges being taken or given up at a time."""


class Taker(Protocol):
    """What takes ranges: a poller's lane."""

    @property
    def ranges(self) -> AbstractSet[int]:
        """The ranges that it has, or is about to have, or has not yet let go of."""
        ...

    @property
    def preloaded(self) -> AbstractSet[int]:
        """The ranges that it has read ahead, or is about to."""
        ...

    async def preload(self, range_id: int) -> bool:
        """Reads ahead what another lane still owns. True: taking it will be quick. Bounded in time."""
        ...

    def discard(self, range_id: int) -> None:
        """What was read ahead is not needed."""
        ...

    async def take(self, range_id: int) -> None:
        """Becomes the owner of the range. Raises LeaseHeld, Unavailable, OwnershipLost."""
        ...

    async def give_up(self, range_id: int) -> None:
        """Hands the range over cleanly. Raises Unavailable, OwnershipLost."""
        ...

    def forgo(self, range_id: int) -> None:
        """A range whose taking is under way is not wanted any more: `take` ends once it can, without it."""
        ...

    def want(self, range_id: int) -> None:
        """Takes `forgo` back."""
        ...


class RangeFollower:
    """Follows the plan for one lane. Moves run at the same time, one for each range.

    `calls`: how the owner of a range is told that this lane is ready to take it; without, all moves are cold.
    """

    def __init__(
        self, membership: Membership, lane: int, taker: Taker, clock: Clock, calls: ReadyCalls | None = None
    ) -> None:
        self._membership = membership
        self._lane = lane
        self._taker = taker
        self._clock = clock
        self._moves: dict[int, asyncio.Task[None]] = {}
        self._not_before: dict[int, float] = {}
        self._held: set[int] = set()
        self._patience = Patience(clock)
        self._announcer = Announcer(calls, lane) if calls is not None else None
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Returns when the session is lost. Moves that are under way are cancelled then, or when it is cancelled."""
        watching = asyncio.get_running_loop().create_task(self._watch())
        try:
            while not self._membership.session_lost():
                self._wake.clear()
                self._follow()
                await first_of(self._wake, self._clock, LOOK_S)
        finally:
            left = [watching, *self._moves.values()]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            if self._announcer is not None:
                await self._announcer.close()

    def ready(self, range_ids: Sequence[int], lane: int) -> None:
        """That lane has read these ranges ahead and would take them now."""
        self._patience.told(range_ids, lane)
        self._wake.set()

    def _follow(self) -> None:
        """Starts every move that the plan asks for and that is not held back by an earlier failure."""
        assignment, own, now = self._membership.plan().assignment, self._taker.ranges, self._clock.monotonic()
        given = {r for r, lane in assignment.items() if lane == self._lane}
        elsewhere = {r: assignment[r] for r in sorted(own) if r in assignment and r not in given}
        for range_id in self._moves:
            self._taker.want(range_id) if range_id in given else self._taker.forgo(range_id)
        wishes = [
            *((r, False) for r in self._to_give(elsewhere)),
            *((r, True) for r in sorted(given) if r not in own),
        ]
        if self._announcer is not None:
            for range_id in self._taker.preloaded - given:
                self._taker.discard(range_id)
        for range_id, own_it in wishes:
            if len(self._moves) >= MOVES_IN_FLIGHT_MAX:
                break
            if range_id not in self._moves and self._not_before.get(range_id, now) <= now:
                self._moves[range_id] = asyncio.get_running_loop().create_task(self._move(range_id, own_it))

    def _to_give(self, elsewhere: dict[int, int]) -> list[int]:
        if self._announcer is None:
            return list(elsewhere)
        self._patience.keep(self._taker.ranges)
        return self._patience.over(elsewhere, self._membership.members())

    def _other_owner(self, range_id: int) -> Member | None:
        """Another member that holds the range, as far as is known."""
        owner = self._membership.owner_of(range_id)
        return owner if owner is not None and owner.lane != self._lane else None

    async def _take(self, range_id: int) -> None:
        """Reads ahead while the owner still dispatches; then takes, or asks for it if that is not possible yet."""
        owner = self._other_owner(range_id)
        if owner is not None and self._announcer is not None and owner.internal_address:
            if await self._taker.preload(range_id):
                self._announcer.say(owner, range_id)
            if range_id not in self._held and self._other_owner(range_id) is not None:
                raise LeaseHeld(f"range {range_id} is asked for")
        await self._taker.take(range_id)

    async def _move(self, range_id: int, own_it: bool) -> None:
        try:
            await (self._take(range_id) if own_it else self._taker.give_up(range_id))
            self._held.discard(range_id)
            if (range_id in self._taker.ranges) is not own_it:
                self._hold_back(range_id, HELD_RETRY_S)
        except LeaseHeld:
            self._held.add(range_id)
            self._hold_back(range_id, HELD_RETRY_S)
        except (Unavailable, OwnershipLost) as error:
            why = str(error)
            log.info("a range did not move", range=range_id, lane=self._lane, error=why, recurring=str(range_id))
            self._hold_back(range_id, HELD_RETRY_S)
        except Exception:
            log.exception("a range did not move", range=range_id, lane=self._lane)
            self._hold_back(range_id, FAILED_RETRY_S)
        finally:
            del self._moves[range_id]
            self._wake.set()

    def _hold_back(self, range_id: int, seconds: float) -> None:
        self._not_before[range_id] = self._clock.monotonic() + seconds

    async def _watch(self) -> None:
        """A change may have freed the leases that were held."""
        seen = 0
        while True:
            seen = await self._membership.changed(seen)
            for range_id in [r for r in self._held if self._other_owner(r) is None]:
                self._not_before.pop(range_id, None)
                self._held.discard(range_id)
            self._wake.set()
