"""The owners of all ranges where they are all in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ..core.errors import Unavailable
from ..core.execution import AttemptReport, EndResult
from ..core.task import TaskRow
from ..core.task_change import TaskChange
from ..ports import CancelResult, Changed, Clock, HintAnswer, RangeOwner

Result = TypeVar("Result")
WAIT_S_MAX = 5.0
PAUSE_S = 0.05


class LocalOwners:
    """Implements `ports.Owners` over one RangeOwner, and waits a while for ranges that it is still recovering."""

    def __init__(self, range_owner: RangeOwner, clock: Clock) -> None:
        self._owner = range_owner
        self._clock = clock

    async def hint(self, rows: Sequence[TaskRow]) -> list[HintAnswer | None]:
        """One answer a row. Never raises for a range that is not ready."""
        return list(await self._owner.hint(rows))

    async def admit(self, row: TaskRow) -> HintAnswer:
        """TAKEN or NO_ROW. Raises Unavailable where the range does not become ready."""
        deadline = self._clock.monotonic() + WAIT_S_MAX
        while True:
            answer = await self._owner.admit(row)
            if answer in (HintAnswer.TAKEN, HintAnswer.NO_ROW):
                return answer
            await self._wait(deadline)

    async def cancel(self, namespace_id: bytes, task_id: bytes) -> CancelResult:
        """Raises Unavailable where the range is not ready, or its journal takes nothing."""
        return await self._until_answered(lambda: self._owner.cancel(namespace_id, task_id))

    async def change(self, namespace_id: bytes, task_id: bytes, change: TaskChange) -> Changed:
        """Raises Unavailable where the range is not ready, or its journal takes nothing."""
        return await self._until_answered(lambda: self._owner.change(namespace_id, task_id, change))

    async def finish(self, reports: Sequence[AttemptReport]) -> list[EndResult | None]:
        """See ports.Owners."""
        return await finish_here(self._owner, reports, WAIT_S_MAX)

    async def _until_answered(self, ask: Callable[[], Awaitable[Result | HintAnswer]]) -> Result:
        deadline = self._clock.monotonic() + WAIT_S_MAX
        while True:
            try:
                async with asyncio.timeout(max(0.0, deadline - self._clock.monotonic())):
                    answer = await ask()
            except TimeoutError as error:
                raise Unavailable("the journal takes no changes now; send the same again") from error
            if not isinstance(answer, HintAnswer):
                return answer
            await self._wait(deadline)

    async def _wait(self, deadline: float) -> None:
        if self._clock.monotonic() >= deadline:
            raise Unavailable("the task's range is still being recovered; try again")
        await self._clock.sleep(PAUSE_S)


async def finish_here(owner: RangeOwner, reports: Sequence[AttemptReport], timeout_s: float) -> list[EndResult | None]:
    """What this process's owner says of reports, where it says so in time."""
    try:
        async with asyncio.timeout(timeout_s):
            answers = await owner.finish(reports)
    except (TimeoutError, Unavailable):
        return [None] * len(reports)
    return [answer if isinstance(answer, EndResult) else None for answer in answers]
