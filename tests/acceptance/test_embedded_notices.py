"""Notices of `bucketsched dev`: to workers and to a webhook, also where the process dies before they leave."""

from __future__ import annotations

from collections import Counter
from signal import SIGKILL

import pytest
from tests.acceptance import notices
from tests.acceptance.notices import Told, fails, queue_of
from tests.acceptance.outcomes import working
from tests.acceptance.test_embedded import Server
from tests.nodes import now_ms, until, until_ms, until_state
from tests.webhook_receiver import receiving

from bucketsched import Client, NoticeEvent, NoticeRule, QueueKind, TaskState, Webhook
from bucketsched.core.task import FactKind

pytestmark = pytest.mark.integration

DEAD = [NoticeEvent.DEAD_LETTERED]


def kinds(server: Server) -> Counter[FactKind]:
    """What the journal says of all tasks."""
    return Counter(kind for _, kind in server.journaled().elements())


async def test_each_event_is_told_to_workers(client: Client) -> None:
    await notices.each_event_is_told_to_workers(client)


async def test_failures_are_told_soon(client: Client) -> None:
    await notices.failures_are_told_soon(client)


async def test_changed_rules_are_followed(client: Client) -> None:
    await notices.changed_rules_are_followed(client)


async def test_a_dead_letter_is_posted_to_a_webhook(client: Client) -> None:
    told = Told()
    async with receiving() as receiver:
        hook = Webhook(receiver.url, networks=["127.0.0.0/8"])
        target = await queue_of(client, kind=QueueKind.WEBHOOK, webhook=hook)
        tasks = await notices.dead_letters(client, await queue_of(client), NoticeRule(DEAD, target), 5)
        await until(lambda: len(receiver.got) >= len(tasks), "every dead letter was posted")
    for got in receiver.got:
        assert (got.headers["ce-type"], got.headers["Content-Type"]) == (
            "bucketsched.dead-lettered",
            "application/json",
        )
        told.take(got.body)
    assert told.counts() == {(task_id, "DEAD_LETTERED"): 1 for task_id in tasks}


async def test_what_is_late_as_the_process_was_down_is_told(server: Server) -> None:
    """By each rule that calls it late."""
    told = Told()
    first = await server.start()
    async with Client(server.address) as client:
        queue, target = await queue_of(client), await queue_of(client)
        late = [NoticeEvent.LATE]
        rules = [NoticeRule(late, target, 0.5), NoticeRule(late, await queue_of(client), 3_600)]
        task = await client.create("t", queue=queue, delay=5, notices=rules)
        await first.kill()
        assert now_ms() < task.due_ms
        await until_ms(task.due_ms + 1_000)
        await server.start()
        async with working(client, target, lambda notice: told.take(notice.payload)):
            await until(lambda: told.got, "it is told that it is late")
    ((_, notice),) = told.got
    assert (notice["task_id"], notice["event"], notice["late_ms"] > 500) == (task.id, "LATE", True)
    assert kinds(server)[FactKind.SPAWNED] == 1


async def test_a_notice_arrives_once_where_the_process_dies_before_it_leaves(server: Server) -> None:
    """The record of the failure is on disk, nothing else."""
    told, posted = Told(), Told()
    victim = server.spawn("dispatch.committed:2")  # after the record of the dispatch
    await victim.ready()
    async with Client(server.address) as client, receiving() as receiver:
        queue, workers = await queue_of(client), await queue_of(client)
        hook = Webhook(receiver.url, networks=["127.0.0.0/8"])
        hooks = await queue_of(client, kind=QueueKind.WEBHOOK, webhook=hook)
        async with working(client, queue, fails):
            rules = [NoticeRule(DEAD, workers), NoticeRule(DEAD, hooks)]
            task = await client.create("t", queue=queue, notices=rules)
            assert await victim.ended() == -SIGKILL
            assert kinds(server) == {FactKind.DISPATCHED: 1, FactKind.FAILED: 1, FactKind.SPAWNED: 2}
            assert not receiver.got
            last = await server.start()
            async with working(client, workers, lambda notice: told.take(notice.payload)) as given:
                await until(lambda: told.got and receiver.got, "both were told")
                await until_state(client, task, TaskState.FAILED)
                for notice in given:
                    await until_state(client, notice, TaskState.SUCCEEDED)  # type: ignore[arg-type]
        posted.take(receiver.got[0].body)
    assert await last.terminate() == 0
    assert told.counts() == posted.counts() == {(task.id, "DEAD_LETTERED"): 1}
    assert len(receiver.got) == 1
    assert kinds(server) == {FactKind.DISPATCHED: 3, FactKind.FAILED: 1, FactKind.SPAWNED: 2, FactKind.SUCCEEDED: 2}
    assert set(server.journaled().values()) == {1}
