"""A candidate's watch over the other processes: what a dead one holds is removed at once, not at its session's end.

Every process that may coordinate, and every one with a lane, is watched by all candidates. The elected coordinator
evicts whoever is dead; of a dead coordinator that is done by the candidate next behind it, which is thereby elected.
An eviction is safe at any moment, as a takeover is: a living process that was evicted finds its slot gone, is fenced by
whoever takes its ranges, and joins anew.
"""

from __future__ import annotations

import asyncio

import structlog

from ..core.errors import OwnershipLost, Unavailable
from ..ports import Clock, Member, Membership, Peers, PlanStore

log = structlog.get_logger(__name__)

EVICT_RETRY_S_MIN, EVICT_RETRY_S_MAX = 0.02, 0.5
"""Until the dead member is gone: another may have to become the coordinator first."""

WATCH_RETRY_S = 5.0
"""Until a process is watched again that could not be."""

Key = tuple[str, int]
"""A member and its incarnation."""


class DeathWatch:
    """Of one process, whose own member is `member_id`. `store` is its candidacy."""

    def __init__(self, membership: Membership, store: PlanStore, peers: Peers, clock: Clock, member_id: str) -> None:
        self._membership = membership
        self._store = store
        self._peers = peers
        self._clock = clock
        self._member_id = member_id
        self._watched: dict[Key, asyncio.Task[None]] = {}
        self._burials: dict[Key, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until cancelled."""
        seen = 0
        try:
            while True:
                self._attend()
                seen = await self._membership.changed(seen)
        finally:
            tasks = [*self._watched.values(), *self._burials.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _attend(self) -> None:
        """Watches who is a member now, each joining for itself, and nobody else."""
        members = self._others()
        for key in self._watched.keys() - members.keys():
            self._watched.pop(key).cancel()
        for key in members.keys() - self._watched.keys() - self._burials.keys():
            self._watched[key] = asyncio.get_running_loop().create_task(self._watch(key, members[key]))

    def _others(self) -> dict[Key, Member]:
        members = [m for m in self._membership.members() if m.internal_address and m.member_id != self._member_id]
        return {(m.member_id, m.incarnation): m for m in members}

    async def _watch(self, key: Key, member: Member) -> None:
        await self._died(member)
        self._burials[key] = self._watched.pop(key)
        try:
            await self._bury(key, member)
        finally:
            del self._burials[key]

    async def _died(self, member: Member) -> None:
        """Returns once it is dead. What can't be watched, such as an address that is none, is left to its session."""
        while True:
            try:
                await self._peers.died(member.internal_address)
                return
            except Exception as error:
                address = member.internal_address
                log.warning(
                    "a process can't be watched",
                    member=member.member_id,
                    address=address,
                    error=repr(error),
                    recurring=address,
                )
            await self._clock.sleep(WATCH_RETRY_S)

    async def _bury(self, key: Key, member: Member) -> None:
        """Until it is no member any more, whoever evicted it."""
        log.warning("a process is dead", member=member.member_id, lane=member.lane, address=member.internal_address)
        pause = EVICT_RETRY_S_MIN
        while key in self._others():
            try:
                if await self._store.evict(member):
                    log.info("a dead process was evicted", member=member.member_id, lane=member.lane)
            except (Unavailable, OwnershipLost) as error:
                log.info("a dead process is not evicted", member=member.member_id, error=str(error))
            except Exception:  # whatever it is, the others are to be watched on, and this one is dead
                log.exception("a dead process could not be evicted", member=member.member_id, recurring=True)
            await self._clock.sleep(pause)
            pause = min(2 * pause, EVICT_RETRY_S_MAX)
