"""Rules of notices through the SDK and the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from service_world import NAMESPACE_ID, NOW_MS
from test_api_tasks import Api
from test_client_executions import Cli, cli  # noqa: F401 - a fixture

from bucketsched import Client, NewTask, NoticeEvent, NoticeRule, RetryPolicy, ServerInfo, SyncClient
from bucketsched.client.request import build
from bucketsched.core.catalog import Queue, QueueKind
from bucketsched.errors import InvalidArgument, NotFound

DEAD = NoticeRule([NoticeEvent.DEAD_LETTERED], "dead")
LATE = NoticeRule({NoticeEvent.LATE, NoticeEvent.EXPIRED}, "topic", timedelta(seconds=5))
SHOWN = (
    NoticeRule((NoticeEvent.DEAD_LETTERED,), "dead", 1.0),
    NoticeRule((NoticeEvent.EXPIRED, NoticeEvent.LATE), "topic", 5.0),
)


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    api = await Api().start()
    await api.catalog.create_queue(Queue(NAMESPACE_ID, "default", "dead", QueueKind.WORKER))
    await api.catalog.create_queue(Queue(NAMESPACE_ID, "default", "topic", QueueKind.KAFKA))
    yield api
    await api.close()


@pytest.fixture
async def client(api: Api) -> AsyncIterator[Client]:
    async with Client(api.address, timeout=5) as client:
        yield client


async def test_a_task_with_rules(client: Client) -> None:
    created = await client.create("t", delay=60, notices=[DEAD, LATE])
    assert (await client.get(created.id)).notices == SHOWN
    (many,) = await client.create_many([NewTask("t", delay=60, notices=(LATE,))])
    assert not isinstance(many, Exception)
    assert (await client.get(many.id)).notices == SHOWN[1:]
    assert (await client.get((await client.create("t", delay=60)).id)).notices == ()


async def test_the_other_client_has_them_too(api: Api) -> None:
    def use() -> tuple[Any, ...]:
        with SyncClient(api.address, timeout=5) as client:
            told = client.get(client.create("t", delay=60, notices=[DEAD, LATE]).id).notices
            queue = client.create_queue("q", notices=[DEAD])
            return told, queue.notices, client.update_queue("q", notices=[LATE]).notices

    assert await asyncio.to_thread(use) == (SHOWN, SHOWN[:1], SHOWN[1:])


@pytest.mark.parametrize(
    ("notices", "field"),
    [
        (DEAD, "notices"),
        ("dead", "notices"),
        ([DEAD, "dead"], "notices[1]"),
        ([NoticeRule("LATE", "dead")], "notices[0].events"),  # type: ignore[arg-type]
        ([NoticeRule(["NEVER"], "dead")], "notices[0].events"),  # type: ignore[list-item]
        ([NoticeRule([5], "dead")], "notices[0].events"),  # type: ignore[list-item]
        ([NoticeRule([], "dead")], "notices[0].events"),
        ([NoticeRule([NoticeEvent.LATE], 5)], "notices[0].queue"),  # type: ignore[arg-type]
        ([NoticeRule([NoticeEvent.LATE], "\ud800")], "notices[0].queue"),
        ([NoticeRule([NoticeEvent.LATE], "dead", "5s")], "notices[0].late_after"),  # type: ignore[arg-type]
        ([NoticeRule([NoticeEvent.LATE], "dead", -1)], "notices[0].late_after"),
        ([DEAD] * 11, "notices"),
    ],
)
async def test_wrong_rules_are_named(client: Client, notices: Any, field: str) -> None:
    for asked in (client.create("t", notices=notices), client.create_queue("q", notices=notices)):
        with pytest.raises(InvalidArgument) as caught:
            await asked
        assert caught.value.field == field


async def test_a_queue_that_is_not_there_is_named(client: Client) -> None:
    nowhere = [DEAD, NoticeRule([NoticeEvent.LATE], "nowhere")]
    for asked in (
        client.create("t", notices=nowhere),
        client.create_queue("q", notices=nowhere),
        client.update_queue("dead", notices=nowhere[1:]),
    ):
        with pytest.raises(NotFound, match=r"notices\[[01]\].queue: 'nowhere' does not exist"):
            await asked


def test_rules_count_for_what_a_batch_holds() -> None:
    server = ServerInfo("1", "embedded", 4, 1_000, 10, 10**9)
    plain, ruled = (
        build(NewTask("t", notices=rules), "n", "q", NOW_MS * 10**6, server) for rules in ((), [DEAD, LATE] * 5)
    )
    assert ruled.size - plain.size >= ruled.message.ByteSize() - plain.message.ByteSize() > 100


async def test_the_rules_of_a_queue(client: Client) -> None:
    created = await client.create_queue("q", notices=[DEAD, LATE], retry=RetryPolicy(max_attempts=3))
    assert created.notices == SHOWN
    changed = await client.update_queue("q", notices=[LATE])
    assert (changed.notices, changed.retry) == (SHOWN[1:], created.retry)
    changed = await client.update_queue("q", retry=None)
    assert (changed.notices, changed.retry) == (SHOWN[1:], None)
    changed = await client.update_queue("q", retry=RetryPolicy(max_attempts=2), notices=())
    assert changed.retry is not None
    assert (changed.notices, changed.retry.max_attempts, await client.get_queue("q")) == ((), 2, changed)
    with pytest.raises(InvalidArgument, match="update_mask"):
        await client.update_queue("q")


# ---------------------------------------------------------------- command line


async def test_the_command_line_creates_a_task_with_rules(cli: Cli, client: Client) -> None:  # noqa: F811
    code, out, _ = await cli(
        "task", "create", "--type", "t", "--delay", "1m", "--notify", "dead-lettered=dead",
        "--notify", "LATE,expired=topic:5s", "--output", "json",
    )  # fmt: skip
    assert code == 0
    task_id = json.loads(out)["task_id"]
    assert (await client.get(task_id)).notices == SHOWN
    _, out, _ = await cli("task", "get", task_id, "--output", "json")
    assert json.loads(out)["notices"] == [
        {"events": ["DEAD_LETTERED"], "queue": "dead", "late_after": 1.0},
        {"events": ["EXPIRED", "LATE"], "queue": "topic", "late_after": 5.0},
    ]


@pytest.mark.parametrize(
    "wrong", ["dead", "late=", "=dead", "never=dead", "late,=dead", "late=dead:soon", "late=dead:"]
)
async def test_the_command_line_says_what_a_rule_is(cli: Cli, wrong: str) -> None:  # noqa: F811
    code, _, err = await cli("task", "create", "--type", "t", "--notify", wrong)
    assert (code, "--notify" in err) == (2, True)


async def test_the_command_line_changes_the_rules_of_a_queue(cli: Cli) -> None:  # noqa: F811
    code, out, _ = await cli(
        "queue", "create", "q", "--notify", "late=dead:250ms", "--max-attempts", "3", "--output", "json"
    )
    assert (code, json.loads(out)["notices"]) == (0, [{"events": ["LATE"], "queue": "dead", "late_after": 0.25}])
    code, out, _ = await cli("queue", "update", "q", "--notify", "succeeded,dead-lettered=dead", "--output", "json")
    changed = json.loads(out)
    assert (code, changed["retry"]["max_attempts"], changed["notices"]) == (
        0, 3, [{"events": ["SUCCEEDED", "DEAD_LETTERED"], "queue": "dead", "late_after": 1.0}],
    )  # fmt: skip
    code, out, _ = await cli("queue", "update", "q", "--no-notices", "--default-retry", "--output", "json")
    assert (code, json.loads(out)["notices"], json.loads(out)["retry"]) == (0, [], None)
    code, _, err = await cli("queue", "update", "q", "--no-notices", "--notify", "late=dead")
    assert (code, "together" in err) == (2, True)
    code, _, err = await cli("queue", "update", "q", "--notify", "late=q")
    assert (code, "notices[0].queue" in err) == (2, True)
