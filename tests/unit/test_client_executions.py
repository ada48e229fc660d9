"""Attempts, retry policies, expiry, redrives and counts through the SDK and the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from service_world import NAMESPACE_ID, NOW_MS
from test_api_executions import entry, row_of
from test_api_tasks import Api

from bucketsched import AttemptOutcome, Client, NewTask, RetryPolicy, SyncClient, TaskCount, TaskState, UpdateOutcome
from bucketsched.cli import main
from bucketsched.client.request import build
from bucketsched.core import task_id as ids
from bucketsched.core.catalog import Queue, QueueKind
from bucketsched.core.execution import AttemptEnd
from bucketsched.core.task import FactKind
from bucketsched.core.task_change import ChangeResult, TaskChange
from bucketsched.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from bucketsched.ports import CancelResult, Changed

NOW = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=NOW_MS)
POLICY = RetryPolicy(7, 1.5, 3.0, timedelta(seconds=9), 60, ["ValueError"])
SHOWN = RetryPolicy(7, 1.5, 3.0, 9.0, 60.0, ("ValueError",))


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    api = await Api().start()
    yield api
    await api.close()


@pytest.fixture
async def client(api: Api) -> AsyncIterator[Client]:
    async with Client(api.address, timeout=5) as client:
        yield client


Cli = Callable[..., Any]


@pytest.fixture
def cli(api: Api, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command: exit code, stdout, stderr."""

    async def run(*arguments: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(main, [*arguments, "--address", api.address])
        return code, *capfd.readouterr()

    return run


# ---------------------------------------------------------------- create


async def test_policy_and_expiry_come_back_as_they_were_given(client: Client) -> None:
    created = await client.create("t", delay=60, retry=POLICY, expire_after=timedelta(microseconds=1_001))
    found = await client.get(created.id)
    assert (found.retry, found.start_by) == (SHOWN, found.due + timedelta(milliseconds=2))
    until = NOW + timedelta(hours=1)
    (created_many,) = await client.create_many([NewTask("t", retry=RetryPolicy(), start_by=until)])
    assert not isinstance(created_many, Exception)
    found = await client.get(created_many.id)
    assert found.start_by == until
    assert found.retry == RetryPolicy(10, 1.0, 2.0, 300.0, 400 * 86_400.0)
    found = await client.get((await client.create("t")).id)
    assert (found.retry, found.start_by, found.succeeded, found.expired) == (None, None, None, None)


async def test_under_a_key_the_expiry_counts_from_when_the_delay_ends(client: Client) -> None:
    created = await client.create("t", delay=60, expire_after=5, idempotency_key="k")
    assert (await client.get(created.id)).start_by == created.due + timedelta(seconds=5)
    with pytest.raises(AlreadyExists):
        await client.create("t", delay=60, expire_after=6, idempotency_key="k")
    with pytest.raises(AlreadyExists):
        await client.create("t", delay=60, expire_after=5, retry=POLICY, idempotency_key="k")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"retry": {"max_attempts": 5}}, "retry"),
        ({"retry": RetryPolicy(max_attempts=5.0)}, "retry.max_attempts"),  # type: ignore[arg-type]
        ({"retry": RetryPolicy(max_attempts=2**40)}, "retry.max_attempts"),
        ({"retry": RetryPolicy(max_attempts=0)}, "retry.max_attempts"),
        ({"retry": RetryPolicy(multiplier="2")}, "retry.multiplier"),  # type: ignore[arg-type]
        ({"retry": RetryPolicy(multiplier=float("nan"))}, "retry.multiplier"),
        ({"retry": RetryPolicy(initial_delay=float("inf"))}, "retry.initial_delay"),
        ({"retry": RetryPolicy(initial_delay=-1.5)}, "retry.initial_delay"),
        ({"retry": RetryPolicy(max_delay="5s")}, "retry.max_delay"),  # type: ignore[arg-type]
        ({"retry": RetryPolicy(max_elapsed=timedelta(days=401))}, "retry.max_elapsed"),
        ({"retry": RetryPolicy(non_retryable_errors="ValueError")}, "retry.non_retryable_errors"),
        ({"retry": RetryPolicy(non_retryable_errors=["\ud800"])}, "retry.non_retryable_errors"),
        ({"start_by": datetime(2026, 1, 1)}, "start_by"),  # noqa: DTZ001 - that is the point
        ({"start_by": NOW - timedelta(hours=1)}, "start_by"),
        ({"expire_after": -1}, "expire_after"),
        ({"expire_after": "5s"}, "expire_after"),
        ({"expire_after": 5, "start_by": NOW}, "expire_after"),
    ],
)
async def test_a_wrong_policy_or_expiry_is_named(client: Client, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await client.create("t", **fields)
    assert caught.value.field == field
    (refused,) = await client.create_many([NewTask("t", **fields)])
    assert isinstance(refused, InvalidArgument)
    assert refused.field == field


async def test_a_batch_counts_the_bytes_of_policies(client: Client) -> None:
    server = await client.info()
    task = NewTask("t", retry=RetryPolicy(non_retryable_errors=["é" * 200] * 20))
    built = build(task, "default", "default", NOW_MS * 1_000_000, server)
    assert built.size >= built.message.ByteSize() > 8_000


# ---------------------------------------------------------------- attempts, states


async def worked(api: Api) -> str:
    """A task that has succeeded at its second attempt: its id."""
    row = await row_of(api, FactKind.DISPATCHED, FactKind.SUCCEEDED, attempt=2)
    failed = entry(
        row, 1, started_ms=1_000, ended_ms=2_000, end=AttemptEnd.FAILED, worker="w", error_type="ValueError",
        error_message="no", error_trace="line 1\nline 2", retry_ms=3_000,
    )  # fmt: skip
    ended = entry(row, 2, started_ms=3_001, ended_ms=3_002, end=AttemptEnd.SUCCEEDED, result=b'{"sum": 3}')
    await api.store.record_attempts([failed, ended])
    return ids.text(row.task_id)


async def test_a_task_and_its_attempts(api: Api, client: Client) -> None:
    task_id = await worked(api)
    found = await client.get(task_id)
    assert (found.state, found.last_error) == (TaskState.SUCCEEDED, "ValueError: no")
    assert found.succeeded == NOW + timedelta(seconds=1)
    first, second = found.last_attempts
    assert [first.outcome, second.outcome] == [AttemptOutcome.FAILED, AttemptOutcome.SUCCEEDED]
    assert (first.generation, first.attempt, first.worker) == (0, 1, "w")
    assert (first.error_type, first.error_message, first.error_trace) == ("ValueError", "no", "line 1\nline 2")
    assert first.started is not None
    assert first.retry_due == first.started + timedelta(seconds=2)
    assert (second.json(), second.retry_due) == ({"sum": 3}, None)
    assert await client.attempts(task_id) == [first, second]
    assert [each.last_attempts async for each in client.list_tasks(state="SUCCEEDED")] == [()]

    def blocking() -> object:
        with SyncClient(api.address) as blocking_client:
            return blocking_client.attempts(task_id), blocking_client.count_tasks(state=TaskState.SUCCEEDED)

    assert await asyncio.to_thread(blocking) == ([first, second], TaskCount(1, True))
    with pytest.raises(NotFound):
        await client.attempts(ids.text(ids.mint(NOW_MS, 1, 1)))


async def test_a_long_log_comes_by_pages(api: Api, client: Client) -> None:
    row = await row_of(api, FactKind.DISPATCHED, attempt=151)
    await api.store.record_attempts([entry(row, number, end=AttemptEnd.TIMED_OUT) for number in range(1, 151)])
    found = await client.attempts(ids.text(row.task_id))
    assert [each.attempt for each in found] == list(range(1, 151))


async def test_counts(api: Api, client: Client) -> None:
    for number in range(3):
        await client.create("t", delay=60, metadata={"number": str(number)})
    assert await client.count_tasks() == TaskCount(3, True)
    assert await client.count_tasks(metadata={"number": "1"}, type="t", due_from=NOW) == TaskCount(1, True)
    with pytest.raises(InvalidArgument, match="state"):
        await client.count_tasks(state="odd")


async def test_redrives_and_cancels_say_what_became_of_them(api: Api, client: Client) -> None:
    row = await row_of(api)
    task_id = ids.text(row.task_id)
    api.owners.on_change = lambda task_id, change: Changed(ChangeResult.CHANGED, row)
    redriven = await client.redrive(task_id)
    assert redriven.outcome is UpdateOutcome.UPDATED
    assert redriven.task is not None
    assert redriven.task.id == task_id
    for result in (ChangeResult.ALREADY_SUCCEEDED, ChangeResult.ALREADY_EXPIRED):
        api.owners.on_change = lambda task_id, change, result=result: Changed(result, row)  # type: ignore[misc]
        late = await client.redrive(task_id)
        assert (late.outcome.name, late.outcome.updated, late.task) == (result.name, False, None)
    for end in (CancelResult.ALREADY_SUCCEEDED, CancelResult.ALREADY_EXPIRED):
        api.owners.on_cancel = lambda task_id, end=end: end  # type: ignore[misc]
        cancelled = await client.cancel(task_id)
        assert (cancelled.name, cancelled.cancelled) == (end.name, False)


async def test_an_update_may_change_until_when_a_task_is_of_use(api: Api, client: Client, cli: Cli) -> None:
    asked: list[TaskChange] = []
    row = await row_of(api)
    task_id = ids.text(row.task_id)
    api.owners.on_change = lambda task_id, change: asked.append(change) or Changed(ChangeResult.CHANGED, row)
    assert (await client.update(task_id, start_by=NOW + timedelta(hours=1))).outcome.updated
    code, _, _ = await cli("task", "update", task_id, "--start-by", (NOW + timedelta(hours=1)).isoformat())
    assert code == 0
    assert asked == [TaskChange(expires_ms=NOW_MS + 3_600_000)] * 2
    with pytest.raises(InvalidArgument, match="start_by"):
        await client.update(task_id, start_by=datetime(2026, 1, 1))  # noqa: DTZ001 - that is the point


# ---------------------------------------------------------------- queues


async def test_the_policy_of_a_queue(api: Api, client: Client) -> None:
    created = await client.create_queue("q", retry=POLICY)
    assert created.retry == SHOWN
    changed = await client.update_queue("q", retry=RetryPolicy(max_attempts=2))
    assert changed.retry is not None
    assert (changed.retry.max_attempts, await client.get_queue("q")) == (2, changed)
    assert (await client.update_queue("q", retry=None)).retry is None
    with pytest.raises(NotFound):
        await client.update_queue("none", retry=None)
    with pytest.raises(InvalidArgument, match="max_attempts"):
        await client.update_queue("q", retry=RetryPolicy(max_attempts=0))
    await api.catalog.create_queue(Queue(NAMESPACE_ID, "default", "topic", QueueKind.KAFKA))
    with pytest.raises(FailedPrecondition):
        await client.update_queue("topic", retry=POLICY)


# ---------------------------------------------------------------- command line


async def test_the_command_line_shows_attempts(api: Api, cli: Cli) -> None:
    task_id = await worked(api)
    code, out, _ = await cli("task", "attempts", task_id, "--output", "json")
    first, second = json.loads(out)["attempts"]
    assert (code, first["outcome"], first["error_trace"], second["result"]) == (
        0, "FAILED", "line 1\nline 2", '{"sum": 3}',
    )  # fmt: skip
    code, out, _ = await cli("task", "attempts", task_id)
    assert code == 0
    assert "ValueError: no" in out
    assert '{"sum": 3}' in out
    code, out, _ = await cli("task", "get", task_id, "--output", "json")
    shown = json.loads(out)
    assert (shown["state"], shown["last_error"], shown["last_attempts"]) == (
        "SUCCEEDED", "ValueError: no", [first, second],
    )  # fmt: skip
    code, out, _ = await cli("task", "get", task_id)
    assert "0/1 FAILED, 0/2 SUCCEEDED" in out
    code, _, err = await cli("task", "attempts", ids.text(ids.mint(NOW_MS, 1, 1)))
    assert (code, "does not exist" in err) == (3, True)


async def test_the_command_line_creates_with_a_policy_and_an_expiry(cli: Cli, client: Client) -> None:
    code, out, _ = await cli(
        "task", "create", "--type", "t", "--delay", "1m", "--expire-after", "2m", "--max-attempts", "7",
        "--initial-delay", "1500ms", "--multiplier", "3", "--max-delay", "9s", "--max-elapsed", "1m",
        "--non-retryable-error", "ValueError", "--output", "json",
    )  # fmt: skip
    assert code == 0
    task_id = json.loads(out)["task_id"]
    found = await client.get(task_id)
    assert (found.retry, found.start_by) == (SHOWN, found.due + timedelta(minutes=2))
    _, out, _ = await cli("task", "get", task_id, "--output", "json")
    assert json.loads(out)["retry"]["initial_delay"] == 1.5
    code, out, _ = await cli("task", "create", "--type", "t", "--start-by", "2199-01-01T00:00:00Z")
    assert code == 2
    code, _, err = await cli("task", "create", "--type", "t", "--start-by", "2199-01-01T00:00:00Z",
                             "--expire-after", "1s")  # fmt: skip
    assert (code, "together" in err) == (2, True)


async def test_the_command_line_counts_and_does_all_over(api: Api, cli: Cli) -> None:
    row = await row_of(api, FactKind.FAILED)
    task_id = ids.text(row.task_id)
    code, out, _ = await cli("task", "count", "--state", "failed", "--output", "json")
    assert (code, json.loads(out)) == (0, {"count": 1, "exact": True})
    code, out, _ = await cli("task", "list", "--state", "failed", "--output", "json")
    assert [task["task_id"] for task in json.loads(out)["tasks"]] == [task_id]
    api.owners.on_change = lambda task_id, change: Changed(ChangeResult.CHANGED, row)
    code, out, _ = await cli("task", "redrive", task_id, "--output", "json")
    assert (code, json.loads(out)["outcome"]) == (0, "UPDATED")
    api.owners.on_change = lambda task_id, change: Changed(ChangeResult.ALREADY_SUCCEEDED, row)
    code, out, _ = await cli("task", "redrive", task_id, "--output", "json")
    assert (code, json.loads(out)["outcome"]) == (4, "ALREADY_SUCCEEDED")


async def test_the_command_line_changes_the_policy_of_a_queue(cli: Cli) -> None:
    code, out, _ = await cli("queue", "create", "q", "--max-attempts", "3", "--output", "json")
    assert (code, json.loads(out)["retry"]["max_attempts"]) == (0, 3)
    code, out, _ = await cli("queue", "update", "q", "--max-delay", "1h", "--output", "json")
    assert (code, json.loads(out)["retry"]["max_attempts"], json.loads(out)["retry"]["max_delay"]) == (0, 10, 3_600.0)
    code, out, _ = await cli("queue", "update", "q", "--default-retry", "--output", "json")
    assert (code, json.loads(out)["retry"]) == (0, None)
    for wrong in ((), ("--default-retry", "--max-attempts", "3")):
        code, _, err = await cli("queue", "update", "q", *wrong)
        assert (code, "--default-retry" in err) == (2, True)
