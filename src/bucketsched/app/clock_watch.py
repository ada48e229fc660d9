"""Asks the witnesses of the time again and again, at once after a step of the kernel's clock, and tells the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from ..adapters.system_clock import SystemClock
from ..core.clock_discipline import Testimony
from ..core.errors import Unavailable
from ..ports import TimeWitness

log = structlog.get_logger(__name__)
CHECK_S = 5.0
DOUBT_S = 0.2
"""Between two looks at whether the kernel's clock was stepped, and two checks while no witness has been heard."""
ANSWER_S_MAX = 3.0
"""A witness that takes longer says nothing of use."""


class ClockWatch:
    """One per process of a cluster."""

    def __init__(self, clock: SystemClock, witnesses: Sequence[TimeWitness]) -> None:
        self._clock, self._witnesses = clock, witnesses

    async def run(self) -> None:
        """Until cancelled."""
        checked_at = float("-inf")
        while True:
            self._clock.now_ms()
            found = self._clock.discipline
            urgent = found.doubtful or not found.confirmed
            if urgent or self._clock.monotonic() - checked_at >= CHECK_S:
                checked_at = self._clock.monotonic()
                await self.check()
            await self._clock.sleep(DOUBT_S)

    async def check(self) -> bool:
        """Asks all witnesses once; False: none answered."""
        answers = await asyncio.gather(*(self._ask(witness) for witness in self._witnesses))
        heard = [said for answer in answers for said in answer]
        self._clock.hear(heard)
        return bool(heard)

    async def close(self) -> None:
        """Lets go of the witnesses."""
        await asyncio.gather(*(witness.close() for witness in self._witnesses))

    async def _ask(self, witness: TimeWitness) -> list[Testimony]:
        try:
            return await asyncio.wait_for(witness.testify(self._clock.boot_ns), ANSWER_S_MAX)
        except (TimeoutError, Unavailable) as error:
            log.warning("a witness of the time can't be heard", error=repr(error), recurring=True)
            return []
