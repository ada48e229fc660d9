"""How two living lanes agree on when a range moves: the taker reads ahead, says so, and the owner lets go.

Only the plan and the lease decide who owns what. The word "ready" just tells the owner when to give up a range that the
plan gives away anyway, and nothing depends on it: an owner gives up at once where nobody will say it, and after
READY_WAIT_S_MAX in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping

import structlog

from ..ports import Clock, Member, ReadyCalls

log = structlog.get_logger(__name__)

READY_WAIT_S_MAX = 2.5
"""How long an owner waits for the taker's word, from when it knows that the range is to move. Longer than a preload."""


class Patience:
    """The owner's side."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[int, tuple[int, float]] = {}
        self._ready: dict[int, int] = {}

    def told(self, range_ids: Iterable[int], lane: int) -> None:
        """This lane is ready to take these ranges. Its plan may be newer than the one that is known here."""
        self._ready.update((range_id, lane) for range_id in range_ids)

    def over(self, elsewhere: Mapping[int, int], members: Collection[Member]) -> list[int]:
        """Those of the own ranges that the plan gives to other lanes (`elsewhere`) that are to be given up now."""
        now = self._clock.monotonic()
        self._since = {
            range_id: self._since[range_id] if self._since.get(range_id, (-1, 0.0))[0] == lane else (lane, now)
            for range_id, lane in elsewhere.items()
        }
        talking = {member.lane for member in members if member.internal_address}
        return [
            range_id
            for range_id, (lane, since) in self._since.items()
            if lane not in talking or self._ready.get(range_id) == lane or now - since >= READY_WAIT_S_MAX
        ]

    def keep(self, own: Collection[int]) -> None:
        """What was said of other ranges is over."""
        self._ready = {range_id: lane for range_id, lane in self._ready.items() if range_id in own}


class Announcer:
    """The taker's side. One call to an owner is in flight, the next says all that gathered meanwhile."""

    def __init__(self, calls: ReadyCalls, lane: int) -> None:
        self._calls, self._lane = calls, lane
        self._unsaid: dict[Member, set[int]] = {}
        self._speaking: dict[Member, asyncio.Task[None]] = {}

    def say(self, owner: Member, range_id: int) -> None:
        """Tells the owner soon; if that fails it is not repeated here."""
        self._unsaid.setdefault(owner, set()).add(range_id)
        if owner not in self._speaking:
            self._speaking[owner] = asyncio.create_task(self._speak(owner))

    async def _speak(self, owner: Member) -> None:
        try:
            while ranges := self._unsaid.pop(owner, None):
                if not await self._calls.ready(owner, sorted(ranges), self._lane):
                    log.info("an owner was not told", owner=owner.member_id, ranges=len(ranges))
        finally:
            del self._speaking[owner]

    async def close(self) -> None:
        """Says nothing more."""
        for task in (speaking := list(self._speaking.values())):
            task.cancel()
        await asyncio.gather(*speaking, return_exceptions=True)
