"""E-mail queues of `bucketsched dev`: a real process mails by a real server, also notices of what has failed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from tests.mail_receiver import MailReceiver, receiving_mail
from tests.nodes import until, until_state

from bucketsched import Client, CreatedTask, Email, NewTask, NoticeEvent, NoticeRule, QueueKind, RetryPolicy, TaskState

pytestmark = pytest.mark.integration


@pytest.fixture
async def receiver() -> AsyncIterator[MailReceiver]:
    async with receiving_mail() as receiver:
        yield receiver


def email(receiver: MailReceiver, **settings: object) -> Email:
    to = ["ada@example.org", "bob@example.org"]
    values = {"port": receiver.port, "tls": "none"} | settings
    return Email("127.0.0.1", "scheduler@example.org", to, **values)  # type: ignore[arg-type]


async def create(client: Client, tasks: list[NewTask]) -> list[CreatedTask]:
    return [task for task in await client.create_many(tasks) if isinstance(task, CreatedTask)]


async def test_each_task_is_one_mail_and_has_succeeded(client: Client, receiver: MailReceiver) -> None:
    await client.create_queue("mails", QueueKind.EMAIL, email=email(receiver, to_key="mail", subject="{type}!"))
    tasks = await create(
        client,
        [NewTask("greet", f"hello {i}".encode(), "mails", metadata={"mail": f"n{i}@x.org"}) for i in range(20)],
    )
    for task in tasks:
        await until_state(client, task, TaskState.SUCCEEDED)
    assert sorted(got.recipients for got in receiver.got) == sorted([f"n{i}@x.org"] for i in range(20))
    assert {got.message["Message-ID"] for got in receiver.got} == {f"<{task.id}.0@example.org>" for task in tasks}
    assert {got.message["Subject"] for got in receiver.got} == {"greet!"}
    assert sorted(got.message.get_content().strip() for got in receiver.got) == sorted(f"hello {i}" for i in range(20))


async def test_what_may_pass_is_tried_again_and_what_is_final_is_not(client: Client, receiver: MailReceiver) -> None:
    retry = RetryPolicy(initial_delay=0.1, max_delay=0.3)
    await client.create_queue("mails", QueueKind.EMAIL, email=email(receiver), retry=retry)
    receiver.answers = ["451 later"]
    [task] = await create(client, [NewTask("greet", b"hello", "mails")])
    await until_state(client, task, TaskState.SUCCEEDED)
    assert [attempt.error_type for attempt in await client.attempts(task.id)] == ["Email.451", ""]
    assert len({got.message["Message-ID"] for got in receiver.got}) == 1
    receiver.answers = ["554 no"]
    [task] = await create(client, [NewTask("greet", b"hello", "mails")])
    await until_state(client, task, TaskState.FAILED)
    assert [attempt.error_type for attempt in await client.attempts(task.id)] == ["Email.554"]


async def test_what_has_failed_for_good_is_told_by_mail(client: Client, receiver: MailReceiver) -> None:
    await client.create_queue("alerts", QueueKind.EMAIL, email=email(receiver))
    rules = [NoticeRule([NoticeEvent.DEAD_LETTERED], "alerts")]
    mails = email(receiver, to_key="mail")
    await client.create_queue("mails", QueueKind.EMAIL, email=mails, notices=rules)
    [task] = await create(client, [NewTask("greet", b"hello", "mails", metadata={"mail": "nobody"})])
    await until_state(client, task, TaskState.FAILED)
    await until(lambda: receiver.got, "the notice was mailed")
    [got] = receiver.got
    assert got.recipients == ["ada@example.org", "bob@example.org"]
    assert got.message["Subject"] == f"DEAD_LETTERED greet {task.id}"
    told = json.loads(got.message.get_content())
    assert (told["task_id"], told["error"]["type"]) == (task.id, "Email.NoRecipient")
