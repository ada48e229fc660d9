"""What must be true of notices in every mode: the same checks are made of an embedded server and of a cluster."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from tests.acceptance.outcomes import FOLLOWED_S_MAX, working
from tests.nodes import now_ms, until, until_state

from bucketsched import Client, CreatedTask, NoRetry, NoticeEvent, NoticeRule, RetryPolicy, Task, TaskState

FAILURES = 50
TOLD_MS_MAX = 10_000
"""From a failure to the receipt of its notice, on a machine that does much else; see docs/notifications.md."""
SAME = ("task_id", "namespace", "queue", "type", "metadata")


@dataclass
class Told:
    """Notices that somebody got, and when."""

    got: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    def take(self, payload: bytes) -> None:
        self.got.append((now_ms(), json.loads(payload)))

    def counts(self) -> Counter[tuple[str, str]]:
        """By task and event."""
        return Counter((notice["task_id"], notice["event"]) for _, notice in self.got)


def fails(task: Task) -> None:
    """A handler."""
    raise NoRetry("no such customer")


async def queue_of(client: Client, **settings: Any) -> str:
    return (await client.create_queue(f"n-{uuid4().hex[:8]}", **settings)).name


async def each_event_is_told_to_workers(client: Client) -> None:
    """What fails for good is told with its error, what fails at first too, what succeeds and what expires as well."""
    target = await queue_of(client)
    queue = await queue_of(client, notices=[NoticeRule([NoticeEvent.DEAD_LETTERED, NoticeEvent.SUCCEEDED], target)])
    rule = NoticeRule([NoticeEvent.ATTEMPT_FAILED, NoticeEvent.DEAD_LETTERED, NoticeEvent.EXPIRED], target)
    told, types = Told(), set[str]()

    def handler(task: Task) -> None:
        if task.type == "broken":
            raise ValueError(f"no {task.attempt}")

    def receive(notice: Task) -> None:
        types.add(notice.type)
        assert (notice.content_type, notice.metadata["queue"]) == ("application/json", queue)
        told.take(notice.payload)

    late = await client.create("late", queue=queue, expire_after=0.2, notices=[rule])
    await until_state(client, late, TaskState.DISPATCHED)
    await until(lambda: now_ms() > late.due_ms + 400, "the task is of no use any more")
    async with working(client, queue, handler), working(client, target, receive):
        twice = RetryPolicy(max_attempts=2, initial_delay=0)
        broken = await client.create("broken", queue=queue, metadata={"k": "v"}, retry=twice, notices=[rule])
        fine = await client.create("fine", queue=queue)
        wanted = {
            (broken.id, "ATTEMPT_FAILED"): 1,
            (broken.id, "DEAD_LETTERED"): 1,
            (fine.id, "SUCCEEDED"): 1,
            (late.id, "EXPIRED"): 1,
        }
        await until(lambda: told.counts() == wanted, f"the four notices; there are {told.counts()}")
    assert types == {f"bucketsched.{name}" for name in ("attempt-failed", "dead-lettered", "succeeded", "expired")}
    (dead,) = [notice for _, notice in told.got if notice["event"] == "DEAD_LETTERED"]
    assert {name: dead[name] for name in SAME} == {
        "task_id": broken.id, "namespace": client.namespace, "queue": queue, "type": "broken", "metadata": {"k": "v"},
    }  # fmt: skip
    assert (dead["attempt"], dead["error"]["type"], dead["error"]["message"]) == (2, "ValueError", "no 2")
    assert 'raise ValueError(f"no {task.attempt}")' in dead["error"]["trace"]


async def failures_are_told_soon(client: Client) -> None:
    """Within a bound that only something that is stuck goes beyond."""
    target = await queue_of(client)
    queue = await queue_of(client, notices=[NoticeRule([NoticeEvent.DEAD_LETTERED], target)])
    failed: dict[str, int] = {}
    told = Told()

    def handler(task: Task) -> None:
        failed[task.id] = now_ms()
        fails(task)

    async with working(client, target, lambda notice: told.take(notice.payload)), working(client, queue, handler):
        for _ in range(FAILURES):
            await client.create("t", queue=queue)
        await until(lambda: len(told.got) >= FAILURES, "every failure is told")
    assert told.counts() == {(task_id, "DEAD_LETTERED"): 1 for task_id in failed}
    assert max(at_ms - failed[notice["task_id"]] for at_ms, notice in told.got) < TOLD_MS_MAX


async def changed_rules_are_followed(client: Client) -> None:
    """A queue's new rules hold within seconds."""
    first, second = await queue_of(client), await queue_of(client)
    queue = await queue_of(client, notices=[NoticeRule([NoticeEvent.SUCCEEDED], first)])
    told = {first: Told(), second: Told()}

    async with (
        working(client, queue, lambda task: None),
        working(client, first, lambda notice: told[first].take(notice.payload)),
        working(client, second, lambda notice: told[second].take(notice.payload)),
    ):
        await client.create("t", queue=queue)
        await until(lambda: told[first].got, "the first queue is told")
        await client.update_queue(queue, notices=[NoticeRule([NoticeEvent.SUCCEEDED], second)])
        changed_ms = now_ms()
        while not told[second].got:
            assert now_ms() - changed_ms < FOLLOWED_S_MAX * 1000, "owners did not follow"
            await until_state(client, await client.create("t", queue=queue), TaskState.SUCCEEDED)


async def dead_letters(client: Client, queue: str, rule: NoticeRule, count: int) -> dict[str, CreatedTask]:
    """Tasks that have failed for good."""
    async with working(client, queue, fails):
        tasks = [await client.create("t", queue=queue, notices=[rule]) for _ in range(count)]
        for task in tasks:
            await until_state(client, task, TaskState.FAILED)
    return {task.id: task for task in tasks}
