"""One open load from its first create to the last arrival, in either mode."""

from __future__ import annotations

from dataclasses import dataclass

from bucketsched import Client

from .lateness import Arrival, Verdict, judge
from .load import Creation, create_ahead, due_times, now_ms
from .progress import say, saying
from .recording import Recording

LEAD_MS = 3_000
"""How long before its due time a task is created."""
ARRIVAL_S_MAX = 20.0
"""How long after the last due time a task may come before it counts as lost."""
SETTLE_S = 1.5
"""How long duplicates are waited for after everything has come."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What was asked for, what came, and what that means."""

    creation: Creation
    arrivals: list[Arrival]
    verdict: Verdict

    @property
    def passed(self) -> bool:
        """Everything was acknowledged, and nothing was lost, doubled or early."""
        return self.verdict.clean and not self.creation.errors


@dataclass(frozen=True, slots=True)
class Plan:
    """`tasks` due at random milliseconds of `seconds`, which begin at `start_ms`."""

    tasks: int
    seconds: float
    start_ms: int

    @classmethod
    def soon(cls, tasks: int, seconds: float) -> Plan:
        """Begins as soon as a task can be created LEAD_MS before it is due."""
        return cls(tasks, seconds, now_ms() + LEAD_MS + 100)


async def attempt(client: Client, queue: str, recording: Recording, plan: Plan) -> Trial:
    """Runs the load. Raises ChildFailed if the recorder ends."""
    due = due_times(plan.start_ms, plan.seconds, plan.tasks, seed=plan.tasks)
    recording.forget()
    say(f"scheduling {plan.tasks:,} tasks, due over {plan.seconds:.0f} s, each {LEAD_MS / 1000:.0f} s ahead")
    async with saying(lambda: f"{recording.count:,} of {plan.tasks:,} have come"):
        creation = await create_ahead(client, queue, due, LEAD_MS)
        await recording.all_of(creation.due_ms, LEAD_MS / 1000 + ARRIVAL_S_MAX)
        await recording.settle(SETTLE_S)
    arrivals = list(recording.arrivals)
    say(f"{len(creation.due_ms):,} were acknowledged, {len(arrivals):,} have come")
    return Trial(creation, arrivals, judge(creation.due_ms, arrivals))
