"""What must be true of attempts in every mode: the same checks are made of an embedded server and of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any
from uuid import uuid4

from tests.nodes import now_ms, until, until_state

from bucketsched import (
    AttemptOutcome,
    CancelOutcome,
    Client,
    CreatedTask,
    NoRetry,
    RetryPolicy,
    Task,
    TaskState,
    UpdateOutcome,
    Worker,
)

QUICK = RetryPolicy(max_attempts=3, initial_delay=0.3, max_delay=1, non_retryable_errors=["ZeroDivisionError"])
FOLLOWED_S_MAX = 15.0
"""Owners follow a changed policy within 3 s and what a read takes; a machine may be slow."""


@asynccontextmanager
async def working(client: Client, queue: str, handler: Callable[[Task], Any]) -> AsyncIterator[list[Task]]:
    """A worker; what it was given."""
    given: list[Task] = []
    worker = Worker(client, queue, worker_id="the worker")

    @worker.default
    async def handle(task: Task) -> object:
        given.append(task)
        result = handler(task)
        return await result if asyncio.iscoroutine(result) else result

    running = asyncio.create_task(worker.run(handle_signals=False))
    try:
        yield given
    finally:
        worker.stop()
        await running


async def retries_and_results(client: Client) -> None:
    """The first attempts fail, the last one does not; each is on record."""
    queue = (await client.create_queue(f"o-{uuid4().hex[:8]}", retry=QUICK)).name

    def handler(task: Task) -> object:
        if task.attempt < 3:
            raise OSError(f"no {task.attempt}")
        return {"done": task.attempt}

    async with working(client, queue, handler) as given:
        task = await client.create("t", queue=queue, delay=0.5)
        found = await until_state(client, task, TaskState.SUCCEEDED)
    assert [each.attempt for each in given] == [1, 2, 3]
    log = await client.attempts(task.id)
    assert list(found.last_attempts) == log
    assert [(each.attempt, each.outcome, each.worker) for each in log] == [
        (1, AttemptOutcome.FAILED, "the worker"),
        (2, AttemptOutcome.FAILED, "the worker"),
        (3, AttemptOutcome.SUCCEEDED, "the worker"),
    ]
    assert [(each.error_type, each.error_message) for each in log] == [
        ("OSError", "no 1"),
        ("OSError", "no 2"),
        ("", ""),
    ]
    assert "raise OSError" in log[0].error_trace
    assert log[2].json() == {"done": 3}
    for before, after in pairwise(log):
        assert before.ended is not None
        assert before.retry_due is not None
        assert after.started is not None
        assert before.ended <= before.retry_due <= after.started
    assert found.last_error == "OSError: no 2"
    assert await client.cancel(task.id) is CancelOutcome.ALREADY_SUCCEEDED
    assert (await client.redrive(task.id)).outcome is UpdateOutcome.ALREADY_SUCCEEDED


async def dead_letters(client: Client) -> None:
    """Failed for good by the error's type, by the handler's word, by number; all of them done all over later."""
    queue = (await client.create_queue(f"o-{uuid4().hex[:8]}")).name
    repaired = False

    def handler(task: Task) -> object:
        if repaired:
            return None
        if task.type == "type":
            return 1 / 0
        raise NoRetry("never") if task.type == "word" else ValueError("no")

    async with working(client, queue, handler) as given:
        tasks = {type: await client.create(type, queue=queue, retry=QUICK) for type in ("type", "word", "number")}
        for type, task in tasks.items():
            found = await until_state(client, task, TaskState.FAILED)
            assert found.attempt == (3 if type == "number" else 1)
            assert found.fail_reason == found.last_error
        assert (await client.count_tasks(queue=queue, state=TaskState.FAILED)).count == 3
        repaired = True
        async for dead in client.list_tasks(queue=queue, state=TaskState.FAILED):
            assert (await client.redrive(dead.id)).outcome is UpdateOutcome.UPDATED
        for task in tasks.values():
            found = await until_state(client, task, TaskState.SUCCEEDED)
            assert (found.generation, found.attempt) == (1, 1)
    assert len(given) == 8
    assert (await client.count_tasks(queue=queue, state=TaskState.FAILED)).count == 0


async def running_and_expiry(client: Client) -> None:
    """A task at work is seen at work; what nobody starts in time is dropped, and is done once it is asked for again."""
    queue = (await client.create_queue(f"o-{uuid4().hex[:8]}")).name
    late = await client.create("late", queue=queue, expire_after=0.3)
    await until_state(client, late, TaskState.DISPATCHED)
    await asyncio.sleep(max(0.0, late.due_ms + 400 - now_ms()) / 1000)
    going_on = asyncio.Event()
    async with working(client, queue, lambda task: going_on.wait()) as given:
        assert (await until_state(client, late, TaskState.EXPIRED)).expired is not None
        task = await client.create("at work", queue=queue)
        found = await until_state(client, task, TaskState.RUNNING)
        assert [(each.outcome, each.worker) for each in found.last_attempts] == [(None, "the worker")]
        assert [each.id async for each in client.list_tasks(queue=queue, state=TaskState.RUNNING)] == [task.id]
        going_on.set()
        await until_state(client, task, TaskState.SUCCEEDED)
        assert [each.id for each in given] == [task.id]
        assert (await client.redrive(late.id)).outcome is UpdateOutcome.UPDATED
        await until_state(client, late, TaskState.SUCCEEDED)


async def waiting_retries(client: Client) -> None:
    """A retry that waits can be run now, or cancelled; and is not hastened by a redrive."""
    queue = (await client.create_queue(f"o-{uuid4().hex[:8]}")).name
    hour = RetryPolicy(max_attempts=2, initial_delay=10**6, max_delay=10**6)

    def handler(task: Task) -> None:
        if task.attempt == 1:
            raise OSError("no")

    async with working(client, queue, handler) as given:
        hastened, cancelled = [await client.create("t", queue=queue, retry=hour) for _ in range(2)]
        for task in (hastened, cancelled):
            await until_state(client, task, TaskState.RETRYING)
        assert (await client.redrive(hastened.id)).outcome is UpdateOutcome.UPDATED
        assert (await client.get(hastened.id)).state is TaskState.RETRYING
        assert await client.cancel(cancelled.id) is CancelOutcome.CANCELLED
        assert (await client.run_now(hastened.id)).updated
        await until_state(client, hastened, TaskState.SUCCEEDED)
    assert sorted(each.id for each in given) == sorted([hastened.id, hastened.id, cancelled.id])


async def changed_policies(client: Client) -> None:
    """A queue's new policy holds within seconds, wherever its tasks' owners are."""
    queue = (await client.create_queue(f"o-{uuid4().hex[:8]}", retry=RetryPolicy(max_attempts=1))).name

    def handler(task: Task) -> None:
        raise OSError("no")

    async with working(client, queue, handler):
        tasks = [await client.create("t", queue=queue) for _ in range(20)]
        for task in tasks:
            await until_state(client, task, TaskState.FAILED)
        await client.update_queue(queue, retry=RetryPolicy(max_attempts=2, initial_delay=0))
        changed_ms = now_ms()
        while not all(await asyncio.gather(*(_tried_twice(client, queue) for _ in range(20)))):
            assert now_ms() - changed_ms < FOLLOWED_S_MAX * 1000, "owners did not follow"


async def _tried_twice(client: Client, queue: str) -> bool:
    return (await until_state(client, await client.create("t", queue=queue), TaskState.FAILED)).attempt == 2


async def retries_through_a_kill(client: Client, kill_and_restart: Callable[[], Any]) -> list[CreatedTask]:
    """The process dies while tasks wait for their retries: these come, and the log has every attempt."""
    queue = (await client.create_queue(f"o-{uuid4().hex[:8]}")).name
    policy = RetryPolicy(max_attempts=5, initial_delay=4, max_delay=4)

    def handler(task: Task) -> None:
        if task.attempt < 3:
            raise OSError("no")

    async with working(client, queue, handler) as given:
        tasks = [await client.create("t", queue=queue, retry=policy) for _ in range(30)]
        await until(lambda: {task.id for task in tasks} <= {each.id for each in given}, "every task was tried")
        await kill_and_restart()
        for task in tasks:
            found = await until_state(client, task, TaskState.SUCCEEDED)
            log = [(each.attempt, each.outcome) for each in await client.attempts(task.id)]
            assert found.attempt == 3
            assert [attempt for attempt, _ in log] == [1, 2, 3]
            assert log[-1] == (3, AttemptOutcome.SUCCEEDED)
            assert {outcome for _, outcome in log[:-1]} <= {AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT}
    return tasks
