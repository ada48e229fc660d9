"""How attempts end: told to the owners of their ranges, until they have an answer."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..core import task_id as ids
from ..core.errors import Unavailable
from ..core.execution import Attempt, AttemptEnd, AttemptReport, EndResult
from ..ports import Clock

log = logging.getLogger(__name__)
Done = Callable[[EndResult], None]


class Outcomes(Protocol):
    """Keeps what becomes of attempts. Nothing here blocks or raises."""

    def began(self, attempt: Attempt) -> None:
        """An attempt is at work now. Noted if it goes on for a while; may get lost."""
        ...

    def ended(self, report: AttemptReport, done: Done) -> None:
        """How an attempt has ended. `done` is called once it is known what became of that, however long it takes."""
        ...


class Finisher(Protocol):
    """The part of ports.Owners that is needed here."""

    async def finish(self, reports: Sequence[AttemptReport]) -> list[EndResult | None]:
        """See ports.Owners."""
        ...


class ExecutionLog(Protocol):
    """The part of ports.TaskStore that is needed here."""

    async def record_attempts(self, attempts: Sequence[Attempt]) -> None:
        """See ports.TaskStore."""
        ...


@dataclass(frozen=True, slots=True)
class OutcomesLimits:
    """Bounds of what is told to owners."""

    reports_per_call_max: int = 200
    calls_in_flight_max: int = 8
    pause_s_min: float = 0.05
    pause_s_max: float = 2.0
    begun_after_s: float = 0.5
    """An attempt that ends sooner is never noted as at work."""
    begun_max: int = 50_000
    """Attempts whose beginning is to be noted; of more, it is not."""


class OwnerOutcomes:
    """See Outcomes. `counts`: attempts by how they ended, those that were told in vain not among them."""

    def __init__(
        self, owners: Finisher, executions: ExecutionLog, clock: Clock, limits: OutcomesLimits | None = None
    ) -> None:
        self._owners, self._executions, self._clock = owners, executions, clock
        self._limits = limits or OutcomesLimits()
        self._waiting: deque[tuple[AttemptReport, Done]] = deque()
        self._begun: dict[tuple[bytes, int, int], tuple[float, Attempt]] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._failures = 0
        self.counts: Counter[AttemptEnd] = Counter()

    @property
    def waiting(self) -> int:
        """Ends that no owner has answered yet."""
        return len(self._waiting) + len(self._calls)

    def began(self, attempt: Attempt) -> None:
        """See Outcomes."""
        if len(self._begun) < self._limits.begun_max:
            key = (attempt.task_id, attempt.generation, attempt.attempt)
            self._begun[key] = (self._clock.monotonic(), attempt)

    def ended(self, report: AttemptReport, done: Done) -> None:
        """See Outcomes."""
        attempt = report.attempt
        self._begun.pop((attempt.task_id, attempt.generation, attempt.attempt), None)
        self._waiting.append((report, done))
        self._wake.set()

    async def run(self) -> None:
        """Tells and notes until it is cancelled."""
        noting = asyncio.create_task(self._note_begun())
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                self._call()
        finally:
            tasks = [noting, *self._calls]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _call(self) -> None:
        while self._waiting and len(self._calls) < self._limits.calls_in_flight_max:
            count = min(len(self._waiting), self._limits.reports_per_call_max)
            call = asyncio.create_task(self._tell([self._waiting.popleft() for _ in range(count)]))
            self._calls.add(call)
            call.add_done_callback(self._told)

    def _told(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._wake.set()

    async def _tell(self, batch: list[tuple[AttemptReport, Done]]) -> None:
        """One call; what is not answered waits again, for a while."""
        try:
            answers = await self._owners.finish([report for report, _ in batch])
        except Exception:
            log.exception("telling owners how attempts ended failed")
            answers = [None] * len(batch)
        again = []
        for (report, done), answer in zip(batch, answers, strict=True):
            if answer is None:
                again.append((report, done))
            else:
                self._count(report, answer)
                done(answer)
        if not again:
            self._failures = 0
            return
        self._failures += 1
        log.warning("%d outcomes can't be stored yet", len(again), extra={"recurring": "outcomes"})
        longest = min(self._limits.pause_s_max, self._limits.pause_s_min * 2 ** min(self._failures, 10))
        await self._clock.sleep(random.uniform(longest / 2, longest))
        self._waiting.extend(again)

    def _count(self, report: AttemptReport, answer: EndResult) -> None:
        attempt = report.attempt
        assert attempt.end is not None
        if answer is not EndResult.TAKEN:
            said = "%s: what was said of attempt %d came too late or of nothing: %s"
            log.warning(said, ids.text(attempt.task_id), attempt.attempt, answer.value, extra={"recurring": "late"})
            return
        self.counts[attempt.end] += 1
        if attempt.end is not AttemptEnd.SUCCEEDED:
            log.error(
                "task %s: attempt %d: %s",
                ids.text(attempt.task_id),
                attempt.attempt,
                attempt.reason,
                extra={
                    "task": ids.text(attempt.task_id),
                    "generation": attempt.generation,
                    "attempt": attempt.attempt,
                    "end": attempt.end.value,
                    "worker": attempt.worker,
                    "error_type": attempt.error_type,
                },
            )

    async def _note_begun(self) -> None:
        """Of attempts that go on for a while the beginning is noted, so that they are seen to be at work."""
        while True:
            await self._clock.sleep(self._limits.begun_after_s)
            before = self._clock.monotonic() - self._limits.begun_after_s
            due = [key for key, (since, _) in self._begun.items() if since <= before]
            noted = [self._begun.pop(key)[1].clipped() for key in due]
            if noted:
                try:
                    await self._executions.record_attempts(noted)
                except Unavailable as error:
                    log.warning("attempts at work are not noted: %s", error, extra={"recurring": "begun"})
