"""What must be true of changed tasks in every mode: the same checks are made of an embedded server and of a cluster."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from tests.nodes import until

from bucketsched import CancelOutcome, Client, CreatedTask, NewTask, Priority, TaskState, UpdateOutcome

Seen = dict[str, list[tuple[bytes, int]]]
"""By task id: the payloads that came, and when."""

TOO_LATE = (UpdateOutcome.ALREADY_DISPATCHED, UpdateOutcome.ALREADY_SUCCEEDED)
"""What is asked for when a worker has the task, or is done with it."""
RACES = 300
RACE_S = 3.0
QUIET_S = 2.0
"""What comes twice would come within this."""


async def moves_and_changes(client: Client, queue: str, seen: Callable[[], Seen]) -> None:
    """Forward, back, other contents, at once."""
    later, sooner, changed, now = [
        await client.create("t", b"old", queue=queue, delay=delay) for delay in (5, 3_600, 5, 86_400 * 30)
    ]
    result = await client.update(later.id, delay=7.0, expected_generation=0)
    assert result.outcome is UpdateOutcome.UPDATED
    assert result.task is not None
    assert (result.task.generation, result.task.state) == (1, TaskState.PENDING)
    moved = await client.update(sooner.id, delay=1.5, payload=b"new")
    assert moved.task is not None
    assert (
        await client.update(changed.id, payload=b"new", priority=Priority.HIGH, metadata={"k": "v"})
    ).outcome.updated
    assert (await client.run_now(now.id)).updated
    shown = await client.get(changed.id)
    assert (shown.id, shown.payload, shown.metadata, shown.generation) == (changed.id, b"new", {"k": "v"}, 1)
    assert shown.due == changed.due
    tasks = (later, sooner, changed, now)
    at_once = (await client.get(now.id)).due
    await until(lambda: all(task.id in seen() for task in tasks), "all four tasks")
    for task, payload, due in (
        (later, b"old", result.task.due),
        (sooner, b"new", moved.task.due),
        (changed, b"new", changed.due),
        (now, b"old", at_once),
    ):
        ((got, at_ms),) = seen()[task.id]
        assert got == payload
        assert at_ms >= due.timestamp() * 1000
    late = await client.update(now.id, payload=b"late")
    assert late.outcome in TOO_LATE
    assert late.task is None
    gone = await client.create("t", b"old", queue=queue, delay=3_600)
    assert (await client.update(gone.id, delay=7_200)).outcome.updated
    assert await client.cancel(gone.id) is CancelOutcome.CANCELLED
    assert (await client.update(gone.id, delay=1)).outcome is UpdateOutcome.ALREADY_CANCELLED


async def races(client: Client, queue: str, seen: Callable[[], Seen]) -> None:
    """Updates at about the due time: a confirmed one is what came, once; "too late" means that the old version came."""
    wanted = [NewTask("t", b"old", queue, delay=1 + random.random() * RACE_S) for _ in range(RACES)]
    tasks = [task for task in await client.create_many(wanted) if isinstance(task, CreatedTask)]
    assert len(tasks) == RACES

    async def race(task: CreatedTask, after_s: float) -> UpdateOutcome:
        await asyncio.sleep(after_s)
        return (await client.update(task.id, payload=b"new", delay=random.random())).outcome

    outcomes = await asyncio.gather(*(race(task, 1 + random.random() * RACE_S) for task in tasks))
    assert set(outcomes) <= {UpdateOutcome.UPDATED, *TOO_LATE}
    await until(lambda: all(task.id in seen() for task in tasks), "every task")
    await asyncio.sleep(QUIET_S)
    for task, outcome in zip(tasks, outcomes, strict=True):
        payloads = [payload for payload, _ in seen()[task.id]]
        assert payloads == [b"new" if outcome.updated else b"old"], (task.id, outcome)
