"""Asks Kafka and Cassandra again and again whether they can be reached from here: a poller is of no use without them.

ZooKeeper is not among them: a node that can't reach it loses its session, and its ranges with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from ..core.checkpoint import CheckpointCorrupt
from ..core.contact import Contact, ContactLimits
from ..core.errors import Unavailable
from ..poller.lane import Lane
from ..ports import CheckpointStore, Clock, Journal

log = structlog.get_logger(__name__)
ASK_S = 0.5
"""Between an answer and the next question."""
ANSWER_S_MAX = 2.0
"""A question is given up after this, and asked again."""
OTHERS_MAX = 3
"""How many other places are asked where the first one does not answer: one that is lost is no server that is away."""
DOUBT_PART = 3
"""In this part of the time after which it leaves, a node says that it is in doubt: the others are to know by then."""

Question = Callable[[int], Awaitable[object]]
"""Asks a server about its nth place, whichever that is. Raises Unavailable."""


class Reach:
    """Of one poller. `questions`: by the servers' names."""

    def __init__(self, questions: Mapping[str, Question], clock: Clock, limits: ContactLimits) -> None:
        self._questions, self._clock = questions, clock
        self._contacts = {server: Contact(limits) for server in questions}
        self._errors: dict[str, str] = {}
        self._places = dict.fromkeys(questions, 0)

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.gather(*(self._ask_on(server) for server in self._questions))

    def ailing(self) -> str:
        """The servers that there is doubt about, "" where there is none."""
        now = self._clock.monotonic()
        return ", ".join(server for server, contact in self._contacts.items() if contact.doubtful(now))

    def out_of_reach(self) -> bool:
        """Whether some server does not answer at present."""
        now = self._clock.monotonic()
        return not all(contact.reached(now) for contact in self._contacts.values())

    def cut_off(self) -> str:
        """Why others should do this poller's work, if they have no doubts; "": it can do it."""
        now = self._clock.monotonic()
        return "; ".join(
            f"no answer from {server} for {contact.silent_s(now):.1f} s: {self._errors.get(server, 'silence')}"
            for server, contact in self._contacts.items()
            if contact.cut_off(now)
        )

    async def _ask_on(self, server: str) -> None:
        while True:
            await self.ask(server)
            await self._clock.sleep(ASK_S)

    async def ask(self, server: str) -> bool:
        """One round of questions to a server; whether it has answered."""
        self._contacts[server].ask(self._clock.monotonic())
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                await self._answer(server)
        except (Unavailable, TimeoutError) as error:
            self._places[server] += 1
            self._errors[server] = str(error) or "silence"
            log.warning("a server can't be reached", server=server, error=self._errors[server], recurring=server)
            return False
        self._contacts[server].answer(self._clock.monotonic())
        return True

    async def _answer(self, server: str) -> None:
        """One place after the other until one is answered for; it is where the next round begins."""
        for _ in range(OTHERS_MAX):
            try:
                await self._questions[server](self._places[server])
                return
            except Unavailable:
                self._places[server] += 1
        await self._questions[server](self._places[server])


def contact_limits(cut_off_s: float) -> ContactLimits:
    """Those of a poller that leaves its ranges to others after so many seconds."""
    return ContactLimits(cut_off_s / DOUBT_PART, cut_off_s)


def ask_journal(journal: Journal, lanes: int, lane: Callable[[], Lane | None], stuck_s: float) -> Question:
    """By where a lane's records end. Where the process has a lane that no transaction of gets through for `stuck_s`,
    that is no contact, whatever is answered."""

    async def ask(place: int) -> None:
        await journal.end(place % lanes)
        if (own := lane()) is not None and own.stuck_s() >= stuck_s:
            raise Unavailable(f"it answers, but no transaction has got through for {own.stuck_s():.1f} s")

    return ask


def ask_checkpoints(checkpoints: CheckpointStore, ranges: int) -> Question:
    """By a range's checkpoint."""

    async def ask(place: int) -> None:
        try:
            await checkpoints.load(place % ranges)
        except CheckpointCorrupt:
            pass  # it has answered

    return ask
