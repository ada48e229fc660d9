"""What is told of attempts over gRPC: states, the execution log, retry policies, expiry, redrives, counts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import code_pb2
from service_world import NAMESPACE_ID, NOW_MS
from test_api_tasks import FAR_MS, Api, refused

from bucketsched.api.tasks import new_task
from bucketsched.core import task_id as ids
from bucketsched.core.catalog import Queue, QueueKind
from bucketsched.core.execution import Attempt, AttemptEnd
from bucketsched.core.idempotency import Claim, digest
from bucketsched.core.retry import RetryPolicy
from bucketsched.core.task import FactKind, Mark, TaskBody, TaskRow
from bucketsched.core.task_change import ChangeResult, TaskChange
from bucketsched.ports import CancelResult, Changed
from bucketsched.service import executions, queries
from bucketsched.stubs.v1 import queue_pb2, task_pb2, task_pb2_grpc

SECOND = Duration(seconds=1)


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    api = await Api().start()
    yield api
    await api.close()


async def row_of(api: Api, *kinds: FactKind, attempt: int = 1, generation: int = 0, queue: str = "default") -> TaskRow:
    """A row in the store with these facts."""
    raw = ids.mint(NOW_MS, 1, 77)
    body = TaskBody("default", queue, "t", nominal_due_ms=NOW_MS)
    row = TaskRow(NOW_MS, NAMESPACE_ID, raw, body, generation, attempt)
    await api.store.insert([row])
    await api.store.mark([Mark(row.ref, kind, NOW_MS + 1_000 * number, "why") for number, kind in enumerate(kinds)])
    return row


def entry(row: TaskRow, attempt: int = 1, generation: int = 0, **fields: object) -> Attempt:
    return Attempt(NAMESPACE_ID, row.task_id, generation, attempt, **fields)  # type: ignore[arg-type]


async def get(api: Api, row: TaskRow) -> task_pb2.Task:
    return (await api.stub.GetTask(task_pb2.GetTaskRequest(task_id=ids.text(row.task_id)))).task


DISPATCHED = FactKind.DISPATCHED


@pytest.mark.parametrize(
    ("kinds", "attempt", "state", "fields"),
    [
        ((), 1, task_pb2.TASK_STATE_PENDING, set()),
        ((), 2, task_pb2.TASK_STATE_RETRYING, set()),
        ((DISPATCHED,), 2, task_pb2.TASK_STATE_DISPATCHED, {"dispatch_time"}),
        ((DISPATCHED, FactKind.SUCCEEDED), 1, task_pb2.TASK_STATE_SUCCEEDED, {"dispatch_time", "success_time"}),
        ((DISPATCHED, FactKind.FAILED), 1, task_pb2.TASK_STATE_FAILED, {"dispatch_time", "fail_time"}),
        ((FactKind.EXPIRED,), 1, task_pb2.TASK_STATE_EXPIRED, {"expire_time"}),
    ],
)
async def test_every_outcome_has_a_state(
    api: Api, kinds: tuple[FactKind, ...], attempt: int, state: int, fields: set[str]
) -> None:
    row = await row_of(api, *kinds, attempt=attempt)
    task = await get(api, row)
    times = ("dispatch_time", "cancel_time", "fail_time", "success_time", "expire_time")
    assert (task.state, {name for name in times if task.HasField(name)}) == (state, fields)
    listed = await api.stub.ListTasks(task_pb2.ListTasksRequest(state=state))  # type: ignore[arg-type]
    assert [(each.task_id, each.state) for each in listed.tasks] == [(task.task_id, state)]


async def test_a_task_is_running_while_its_newest_attempt_has_begun_and_not_ended(api: Api) -> None:
    row = await row_of(api, DISPATCHED, attempt=2)
    ended = entry(row, 1, started_ms=5, ended_ms=6, end=AttemptEnd.FAILED, error_type="E", error_message="no")
    await api.store.record_attempts([ended])
    assert (await get(api, row)).state == task_pb2.TASK_STATE_DISPATCHED, "another attempt had begun"
    await api.store.record_attempts([entry(row, 2, started_ms=7, worker="w")])
    task = await get(api, row)
    assert task.state == task_pb2.TASK_STATE_RUNNING
    assert [(each.attempt, each.outcome) for each in task.last_attempts] == [
        (1, task_pb2.ATTEMPT_OUTCOME_FAILED), (2, task_pb2.ATTEMPT_OUTCOME_UNSPECIFIED),
    ]  # fmt: skip
    assert (task.last_attempts[1].worker, task.last_error) == ("w", "E: no")
    for state, found in ((task_pb2.TASK_STATE_RUNNING, [task.task_id]), (task_pb2.TASK_STATE_DISPATCHED, [])):
        listed = await api.stub.ListTasks(task_pb2.ListTasksRequest(state=state))
        assert [each.task_id for each in listed.tasks] == found
        counted = await api.stub.CountTasks(task_pb2.CountTasksRequest(state=state))
        assert (counted.count, counted.exact) == (len(found), True)
    (listed_task,) = (await api.stub.ListTasks(task_pb2.ListTasksRequest())).tasks
    assert (listed_task.state, len(listed_task.last_attempts)) == (task_pb2.TASK_STATE_RUNNING, 0)
    await api.store.record_attempts([entry(row, 2, ended_ms=9, end=AttemptEnd.SUCCEEDED)])
    assert (await get(api, row)).state == task_pb2.TASK_STATE_DISPATCHED, "its row is about to say how it ended"


async def test_an_earlier_attempt_whose_end_nobody_told_is_not_the_one_at_work(api: Api) -> None:
    row = await row_of(api, DISPATCHED, attempt=2)
    await api.store.record_attempts([entry(row, 1, started_ms=5)])
    assert (await get(api, row)).state == task_pb2.TASK_STATE_DISPATCHED


async def test_the_log_is_read_only_where_there_may_be_one(api: Api) -> None:
    await api.catalog.create_queue(Queue(NAMESPACE_ID, "default", "topic", QueueKind.KAFKA))
    row = await row_of(api, DISPATCHED, queue="topic")
    await api.store.record_attempts([entry(row, started_ms=5)])
    task = await get(api, row)
    assert (task.state, len(task.last_attempts)) == (task_pb2.TASK_STATE_DISPATCHED, 0)
    (listed,) = (await api.stub.ListTasks(task_pb2.ListTasksRequest())).tasks
    assert listed.state == task_pb2.TASK_STATE_DISPATCHED


async def test_the_log_tells_everything_of_each_attempt_by_pages(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    row = await row_of(api, DISPATCHED, attempt=3)
    first = entry(
        row, 1, started_ms=1_001, ended_ms=2_002, end=AttemptEnd.TIMED_OUT, worker="w", error_type="T",
        error_message="m", error_trace="t", result=b"\0r", retry_ms=3_003,
    )  # fmt: skip
    rest = [entry(row, 2), entry(row, 3, end=AttemptEnd.EXPIRED), entry(row, 1, 1, end=AttemptEnd.SUCCEEDED)]
    await api.store.record_attempts([*rest, first])
    request = task_pb2.ListAttemptsRequest(task_id=ids.text(row.task_id))
    response = await api.stub.ListAttempts(request)
    assert response.next_page_token == ""
    assert [(each.generation, each.attempt) for each in response.attempts] == [(0, 1), (0, 2), (0, 3), (1, 1)]
    told = response.attempts[0]
    assert [told.start_time.ToMilliseconds(), told.end_time.ToMilliseconds(), told.retry_time.ToMilliseconds()] == [
        1_001, 2_002, 3_003,
    ]  # fmt: skip
    assert (told.worker, told.error_type, told.error_message, told.error_trace) == ("w", "T", "m", "t")
    assert (told.result, told.outcome) == (b"\0r", task_pb2.ATTEMPT_OUTCOME_TIMED_OUT)
    assert not any(response.attempts[1].HasField(name) for name in ("start_time", "end_time", "retry_time"))
    request.page_size = 3
    page = await api.stub.ListAttempts(request)
    assert len(page.attempts) == 3
    request.page_token = page.next_page_token
    last = await api.stub.ListAttempts(request)
    assert ([each.generation for each in last.attempts], last.next_page_token) == ([1], "")
    monkeypatch.setattr(executions, "PAGE_BYTES_MAX", 2)
    bounded = await api.stub.ListAttempts(task_pb2.ListAttemptsRequest(task_id=ids.text(row.task_id)))
    assert (len(bounded.attempts), bounded.next_page_token) == (1, "0.1")


async def test_the_largest_attempts_come_in_messages_that_clients_take(api: Api) -> None:
    """4 MiB, as gRPC has it by default."""
    row = await row_of(api, DISPATCHED, attempt=300)
    large = entry(
        row, end=AttemptEnd.FAILED, worker="😀" * 300, error_type="😀" * 300, error_message="😀" * 2_000,
        error_trace="😀" * 9_000, result=bytes(16 * 1024),
    ).clipped()  # fmt: skip
    await api.store.record_attempts([replace(large, attempt=number) for number in range(1, 300)])
    request = task_pb2.ListAttemptsRequest(task_id=ids.text(row.task_id), page_size=1_000)
    found: list[int] = []
    async with grpc.aio.insecure_channel(api.address) as channel:
        stub = task_pb2_grpc.TaskServiceStub(channel)
        while True:
            response = await stub.ListAttempts(request)
            found += [each.attempt for each in response.attempts]
            if not response.next_page_token:
                break
            request.page_token = response.next_page_token
        await stub.GetTask(task_pb2.GetTaskRequest(task_id=ids.text(row.task_id)))
    assert found == list(range(1, 300))


async def test_with_a_task_come_the_last_attempts_only(api: Api) -> None:
    row = await row_of(api, attempt=31)
    await api.store.record_attempts([entry(row, number, end=AttemptEnd.FAILED) for number in range(1, 31)])
    task = await get(api, row)
    assert [each.attempt for each in task.last_attempts] == list(range(11, 31))
    assert (task.state, task.last_error) == (task_pb2.TASK_STATE_RETRYING, "failed")


@pytest.mark.parametrize(
    ("field", "value"),
    [("page_size", -1), ("page_size", 1_001), ("page_token", "7"), ("page_token", "a.b"), ("page_token", "1." * 9)],
)
async def test_pages_of_attempts_that_there_are_none_of(api: Api, field: str, value: object) -> None:
    row = await row_of(api)
    request = task_pb2.ListAttemptsRequest(task_id=ids.text(row.task_id), **{field: value})  # type: ignore[arg-type]
    await refused(api.stub.ListAttempts(request), code_pb2.INVALID_ARGUMENT, field)


async def test_attempts_of_no_task(api: Api) -> None:
    request = task_pb2.ListAttemptsRequest(task_id=ids.text(ids.mint(FAR_MS, 1, 1)))
    await refused(api.stub.ListAttempts(request), code_pb2.NOT_FOUND, "task_id")


# ---------------------------------------------------------------- create


async def test_policy_and_expiry_come_back_as_they_were_asked_for(api: Api) -> None:
    policy = task_pb2.RetryPolicy(
        max_attempts=7, initial_delay=SECOND, multiplier=1.5, max_delay=Duration(seconds=9),
        max_elapsed=Duration(seconds=60), non_retryable_errors=["ValueError"],
    )  # fmt: skip
    created = await api.create(retry=policy, delay=SECOND, expire_after=Duration(nanos=1))
    task = (await api.stub.GetTask(task_pb2.GetTaskRequest(task_id=created.task_id))).task
    assert task.retry == policy
    assert task.start_by.ToMilliseconds() == NOW_MS + 1_001, "rounded up"
    created = await api.create(retry=task_pb2.RetryPolicy(), start_by=Timestamp(seconds=NOW_MS // 1000 + 60))
    task = (await api.stub.GetTask(task_pb2.GetTaskRequest(task_id=created.task_id))).task
    assert (task.retry.max_attempts, task.retry.multiplier, task.retry.max_delay.seconds) == (10, 2.0, 300)
    assert task.start_by.seconds == NOW_MS // 1000 + 60
    plain = (await api.stub.GetTask(task_pb2.GetTaskRequest(task_id=(await api.create()).task_id))).task
    assert not plain.HasField("retry")
    assert not plain.HasField("start_by")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"retry": task_pb2.RetryPolicy(max_attempts=0)}, "retry.max_attempts"),
        ({"retry": task_pb2.RetryPolicy(multiplier=0)}, "retry.multiplier"),
        ({"retry": task_pb2.RetryPolicy(initial_delay=Duration(seconds=-1))}, "retry.initial_delay"),
        ({"retry": task_pb2.RetryPolicy(max_delay=Duration(nanos=2_000_000_000))}, "retry.max_delay"),
        ({"start_by": Timestamp(seconds=5)}, "start_by"),
        ({"expire_after": Duration()}, "expire_after"),
    ],
)
async def test_a_wrong_policy_or_expiry_is_named(api: Api, fields: dict[str, object], field: str) -> None:
    await refused(api.create(**fields), code_pb2.INVALID_ARGUMENT, field)


async def test_where_nobody_says_how_attempts_end_there_is_no_policy(api: Api) -> None:
    """It would be of no effect, and nobody be told."""
    await api.catalog.create_queue(Queue(NAMESPACE_ID, "default", "topic", QueueKind.KAFKA))
    await refused(api.create(queue="topic", retry=task_pb2.RetryPolicy()), code_pb2.INVALID_ARGUMENT, "retry")
    await api.create(queue="topic", expire_after=SECOND)


async def test_of_one_key_the_expiry_counts_from_the_due_time_of_the_first_create(api: Api) -> None:
    """Also where its row was never written: then the claim alone tells it."""
    request = task_pb2.CreateTaskRequest(type="t", idempotency_key="k", delay=SECOND, expire_after=SECOND)
    claim = Claim(ids.mint(NOW_MS + 1_000, 1, 77), NOW_MS + 1_000, NOW_MS + 1_000, NOW_MS, digest(new_task(request)))
    await api.keys.claim(NAMESPACE_ID, "k", claim, NOW_MS + 10**9)
    api.clock.advance_ms(700)
    created = await api.stub.CreateTask(request)
    assert created.due_time.ToMilliseconds() == NOW_MS + 1_000
    task = (await api.stub.GetTask(task_pb2.GetTaskRequest(task_id=created.task_id))).task
    assert task.start_by.ToMilliseconds() == NOW_MS + 2_000


async def test_an_update_may_change_until_when_a_task_is_of_use(api: Api) -> None:
    asked: list[TaskChange] = []
    row = await row_of(api)
    api.owners.on_change = lambda task_id, change: asked.append(change) or Changed(ChangeResult.CHANGED, row)
    request = task_pb2.UpdateTaskRequest(task_id=ids.text(row.task_id), start_by=Timestamp(seconds=NOW_MS // 1000 + 60))
    await refused(api.stub.UpdateTask(request), code_pb2.INVALID_ARGUMENT, "update_mask")
    request.update_mask.paths.append("start_by")
    await api.stub.UpdateTask(request)
    assert asked == [TaskChange(expires_ms=(NOW_MS // 1000 + 60) * 1000)]
    request.ClearField("start_by")
    await refused(api.stub.UpdateTask(request), code_pb2.INVALID_ARGUMENT, "update_mask")


# ---------------------------------------------------------------- redrive, cancel


async def test_a_redrive_is_from_now_on_and_shows_what_it_became(api: Api) -> None:
    asked: list[TaskChange] = []
    row = await row_of(api, generation=1)
    api.owners.on_change = lambda task_id, change: asked.append(change) or Changed(ChangeResult.CHANGED, row)
    request = task_pb2.RedriveTaskRequest(task_id=ids.text(row.task_id))
    response = await api.stub.RedriveTask(request)
    assert asked == [TaskChange(due_ms=NOW_MS, again=True)]
    assert (response.outcome, response.task.generation) == (task_pb2.UPDATE_OUTCOME_UPDATED, 1)
    for result, outcome in (
        (ChangeResult.ALREADY_SUCCEEDED, task_pb2.UPDATE_OUTCOME_ALREADY_SUCCEEDED),
        (ChangeResult.ALREADY_EXPIRED, task_pb2.UPDATE_OUTCOME_ALREADY_EXPIRED),
        (ChangeResult.ALREADY_DISPATCHED, task_pb2.UPDATE_OUTCOME_ALREADY_DISPATCHED),
    ):
        api.owners.on_change = lambda task_id, change, result=result: Changed(result, row)  # type: ignore[misc]
        late = await api.stub.RedriveTask(request)
        assert (late.outcome, late.HasField("task")) == (outcome, False)
    api.owners.on_change = lambda task_id, change: Changed(ChangeResult.NOT_FOUND)
    await refused(api.stub.RedriveTask(request), code_pb2.NOT_FOUND, "task_id")


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (CancelResult.ALREADY_SUCCEEDED, task_pb2.CANCEL_OUTCOME_ALREADY_SUCCEEDED),
        (CancelResult.ALREADY_EXPIRED, task_pb2.CANCEL_OUTCOME_ALREADY_EXPIRED),
    ],
)
async def test_a_cancel_of_what_is_over_says_so(api: Api, result: CancelResult, outcome: int) -> None:
    api.owners.on_cancel = lambda task_id: result
    response = await api.stub.CancelTask(task_pb2.CancelTaskRequest(task_id=ids.text(ids.mint(FAR_MS, 1, 1))))
    assert response.outcome == outcome


# ---------------------------------------------------------------- counts


async def test_counts_are_of_what_a_listing_would_find(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(7):
        await api.create(metadata={"odd": str(number % 2)}, delay=Duration(seconds=3_600 * number))

    async def counted(**fields: object) -> tuple[int, bool]:
        response = await api.stub.CountTasks(task_pb2.CountTasksRequest(**fields))  # type: ignore[arg-type]
        return response.count, response.exact

    assert await counted() == (7, True)
    assert await counted(metadata={"odd": "1"}) == (3, True)
    assert await counted(due_until=Timestamp(seconds=NOW_MS // 1000 + 3_610)) == (2, True)
    assert await counted(state=task_pb2.TASK_STATE_FAILED) == (0, True)
    monkeypatch.setattr(queries, "PAGE_MAX", 2)
    assert await counted() == (7, True), "page after page"
    monkeypatch.setattr(queries, "COUNTED_MAX", 3)
    assert await counted() == (4, False)
    await refused(counted(state=77), code_pb2.INVALID_ARGUMENT, "state")
    await refused(counted(queue="none"), code_pb2.NOT_FOUND, "queue")


async def test_a_count_ends_in_time(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        await api.create(delay=Duration(seconds=3_600 * number))
    monkeypatch.setattr(queries, "PAGE_MAX", 1)
    monkeypatch.setattr(queries, "COUNT_S_MAX", 0.0)
    response = await api.stub.CountTasks(task_pb2.CountTasksRequest())
    assert (response.count, response.exact) == (1, False)


# ---------------------------------------------------------------- queues


async def test_the_policy_of_a_queue_is_created_shown_and_changed(api: Api) -> None:
    policy = queue_pb2.QueuePolicy(retry=task_pb2.RetryPolicy(max_attempts=3, initial_delay=SECOND))
    queue = queue_pb2.Queue(name="q", kind=queue_pb2.QUEUE_KIND_WORKER, policy=policy)
    created = (await api.queue_stub.CreateQueue(queue_pb2.CreateQueueRequest(queue=queue))).queue
    assert (created.policy.retry.max_attempts, created.policy.retry.multiplier) == (3, 2.0)
    queue.policy.retry.max_attempts = 4
    other = queue_pb2.CreateQueueRequest(queue=queue)
    await refused(api.queue_stub.CreateQueue(other), code_pb2.ALREADY_EXISTS, "policy")
    plain = queue_pb2.Queue(name="q", kind=queue_pb2.QUEUE_KIND_WORKER)
    same = (await api.queue_stub.CreateQueue(queue_pb2.CreateQueueRequest(queue=plain))).queue
    assert same.policy == created.policy, "what was not asked for may be as it is"

    update = queue_pb2.UpdateQueueRequest(name="q", policy=queue.policy, update_mask=FieldMask(paths=["retry"]))
    changed = (await api.queue_stub.UpdateQueue(update)).queue
    assert changed.policy.retry.max_attempts == 4
    shown = await api.queue_stub.GetQueue(queue_pb2.GetQueueRequest(name="q"))
    assert shown.queue == changed, "at once, where it was changed"
    stored = await api.catalog.get_queue(NAMESPACE_ID, "q")
    assert stored is not None
    assert stored.retry_policy == RetryPolicy(4, 1_000, 300_000, 400 * 86_400_000)
    update.ClearField("policy")
    reset = (await api.queue_stub.UpdateQueue(update)).queue
    assert not reset.HasField("policy")


async def test_a_wrong_change_of_a_queue_is_named(api: Api) -> None:
    await api.catalog.create_queue(Queue(NAMESPACE_ID, "default", "topic", QueueKind.KAFKA))
    mask, retry = FieldMask(paths=["retry"]), task_pb2.RetryPolicy(max_attempts=2)
    good = queue_pb2.QueuePolicy(retry=retry)
    bad = queue_pb2.QueuePolicy(retry=task_pb2.RetryPolicy(max_attempts=0))
    for request, code, field in (
        (queue_pb2.UpdateQueueRequest(name="default", policy=good), code_pb2.INVALID_ARGUMENT, "update_mask"),
        (
            queue_pb2.UpdateQueueRequest(name="default", policy=good, update_mask=FieldMask(paths=["retry", "x"])),
            code_pb2.INVALID_ARGUMENT, "update_mask",
        ),
        (
            queue_pb2.UpdateQueueRequest(name="default", policy=bad, update_mask=mask),
            code_pb2.INVALID_ARGUMENT, "retry.max_attempts",
        ),
        (queue_pb2.UpdateQueueRequest(name="none", policy=good, update_mask=mask), code_pb2.NOT_FOUND, "name"),
        (
            queue_pb2.UpdateQueueRequest(name="topic", policy=good, update_mask=mask),
            code_pb2.FAILED_PRECONDITION, "kind",
        ),
    ):  # fmt: skip
        await refused(api.queue_stub.UpdateQueue(request), code, field)
    queue = queue_pb2.Queue(name="q", kind=queue_pb2.QUEUE_KIND_WORKER, policy=bad)
    create = queue_pb2.CreateQueueRequest(queue=queue)
    await refused(api.queue_stub.CreateQueue(create), code_pb2.INVALID_ARGUMENT, "retry.max_attempts")
    queue.MergeFrom(queue_pb2.Queue(kind=queue_pb2.QUEUE_KIND_KAFKA))
    queue.policy.CopyFrom(good)
    create = queue_pb2.CreateQueueRequest(queue=queue)
    await refused(api.queue_stub.CreateQueue(create), code_pb2.INVALID_ARGUMENT, "retry")
