"""An open load: due times that are drawn beforehand, and tasks that are created well ahead of them at their pace."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from bucketsched import Client, CreatedTask, NewTask
from bucketsched.client.model import to_datetime

TICK_S = 0.05
PAYLOAD = bytes(range(256))
TYPE = "bench"


@dataclass(slots=True)
class Creation:
    """What became of the creates: due times (ms) of the acknowledged tasks by id, and the errors of the others."""

    due_ms: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    acknowledged_late: int = 0
    """Those whose acknowledgement came only after they were due."""


def now_ms() -> int:
    """The time as the kernel has it."""
    return time.time_ns() // 1_000_000


def due_times(start_ms: int, seconds: float, count: int, seed: int) -> list[int]:
    """Random milliseconds of the time from `start_ms` on, in order; the same for the same seed."""
    draw = random.Random(seed)
    return sorted(start_ms + int(draw.random() * seconds * 1000) for _ in range(count))


async def create(client: Client, queue: str, due: Sequence[int], creation: Creation) -> None:
    """Creates a task for each due time, all at once."""
    tasks = [NewTask(TYPE, PAYLOAD, queue=queue, due=to_datetime(due_ms)) for due_ms in due]
    for answer in await client.create_many(tasks):
        if isinstance(answer, CreatedTask):
            creation.due_ms[answer.id] = answer.due_ms
            creation.acknowledged_late += answer.due_ms < now_ms()
        else:
            creation.errors.append(str(answer))


async def create_ahead(client: Client, queue: str, due: Sequence[int], lead_ms: int) -> Creation:
    """Begins to create each task `lead_ms` before it is due, without waiting for those before it."""
    creation = Creation()
    at = 0
    async with asyncio.TaskGroup() as running:
        while at < len(due):
            until = at
            while until < len(due) and due[until] - lead_ms <= now_ms():
                until += 1
            if until > at:
                running.create_task(create(client, queue, due[at:until], creation))
                at = until
            await asyncio.sleep(TICK_S)
    return creation
