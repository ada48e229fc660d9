"""UpdateTask and RunTaskNow over a real connection: conversions and statuses."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.rpc import code_pb2
from service_world import NAMESPACE_ID
from test_api_tasks import FAR, FAR_MS, Api, refused, status_of

from bucketsched.core import task_id as ids
from bucketsched.core.task import Priority, TaskBody, TaskRow
from bucketsched.core.task_change import ChangeResult, TaskChange
from bucketsched.ports import Changed
from bucketsched.stubs.v1 import task_pb2

TASK_ID = ids.mint(FAR_MS, 1, 1)
BODY = TaskBody("default", "default", "t", b"new", {"k": "v"}, Priority.HIGH, FAR_MS, 5, "text/plain")
ROW = TaskRow(FAR_MS + 1, NAMESPACE_ID, TASK_ID, BODY, 3)


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    api = await Api().start()
    yield api
    await api.close()


def update(*paths: str, **fields: object) -> task_pb2.UpdateTaskRequest:
    return task_pb2.UpdateTaskRequest(task_id=ids.text(TASK_ID), update_mask=FieldMask(paths=paths), **fields)  # type: ignore[arg-type]


async def test_an_update_says_what_is_to_change_and_shows_what_it_became(api: Api) -> None:
    asked: list[tuple[bytes, TaskChange]] = []

    def change(task_id: bytes, change: TaskChange) -> Changed:
        asked.append((task_id, change))
        return Changed(ChangeResult.CHANGED, ROW)

    api.owners.on_change = change
    request = update(
        "payload", "content_type", "metadata", "priority", "due_time",
        payload=b"new", content_type="text/plain", metadata={"k": "v"}, priority=task_pb2.PRIORITY_HIGH, due_time=FAR,
        expected_generation=2,
    )  # fmt: skip
    response = await api.stub.UpdateTask(request)
    assert asked == [(TASK_ID, TaskChange(b"new", "text/plain", {"k": "v"}, Priority.HIGH, FAR_MS, 2))]
    assert response.outcome == task_pb2.UPDATE_OUTCOME_UPDATED
    task = response.task
    assert (task.payload, task.generation, task.state) == (b"new", 3, task_pb2.TASK_STATE_PENDING)
    assert task.due_time.ToMilliseconds() == FAR_MS


async def test_what_is_named_and_not_set_becomes_empty(api: Api) -> None:
    asked: list[TaskChange] = []
    api.owners.on_change = lambda task_id, change: asked.append(change) or Changed(ChangeResult.CHANGED, ROW)
    await api.stub.UpdateTask(update("payload", "metadata", "priority"))
    await api.stub.UpdateTask(update("content_type", payload=b"not named"))
    assert asked == [
        TaskChange(payload=b"", metadata={}, priority=Priority.NORMAL),
        TaskChange(content_type=""),
    ]


async def test_run_now_makes_it_due_now(api: Api) -> None:
    asked: list[TaskChange] = []
    api.owners.on_change = lambda task_id, change: asked.append(change) or Changed(ChangeResult.CHANGED, ROW)
    response = await api.stub.RunTaskNow(task_pb2.RunTaskNowRequest(task_id=ids.text(TASK_ID)))
    assert response.outcome == task_pb2.UPDATE_OUTCOME_UPDATED
    assert asked == [TaskChange(due_ms=api.clock.now_ms())]


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (ChangeResult.ALREADY_DISPATCHED, task_pb2.UPDATE_OUTCOME_ALREADY_DISPATCHED),
        (ChangeResult.ALREADY_CANCELLED, task_pb2.UPDATE_OUTCOME_ALREADY_CANCELLED),
        (ChangeResult.ALREADY_FAILED, task_pb2.UPDATE_OUTCOME_ALREADY_FAILED),
    ],
)
async def test_too_late_says_so(api: Api, result: ChangeResult, outcome: int) -> None:
    api.owners.on_change = lambda task_id, change: Changed(result, ROW)
    response = await api.stub.UpdateTask(update("payload"))
    assert response.outcome == outcome
    assert not response.HasField("task"), "it would look as if it were still so"
    run = await api.stub.RunTaskNow(task_pb2.RunTaskNowRequest(task_id=ids.text(TASK_ID)))
    assert run.outcome == outcome


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (update(), "update_mask"),
        (update("queue"), "update_mask"),
        (update("due_time"), "update_mask"),
        (update("delay", due_time=FAR), "update_mask"),
        (update("payload", due_time=FAR), "update_mask"),
        (update("delay", delay=Duration(seconds=-1)), "delay"),
        (update("priority", priority=77), "priority"),
        (update("payload", payload=b"x" * 70_000), "payload"),
        (update("payload", expected_generation=-1), "expected_generation"),
        (task_pb2.UpdateTaskRequest(task_id="?", update_mask=FieldMask(paths=["payload"])), "task_id"),
    ],
)
async def test_bad_input_is_named(api: Api, request_: task_pb2.UpdateTaskRequest, field: str) -> None:
    await refused(api.stub.UpdateTask(request_), code_pb2.INVALID_ARGUMENT, field)


async def test_an_update_can_fail(api: Api) -> None:
    await refused(api.stub.UpdateTask(update("payload")), code_pb2.NOT_FOUND, "task_id")
    run = task_pb2.RunTaskNowRequest(task_id=ids.text(TASK_ID))
    await refused(api.stub.RunTaskNow(run), code_pb2.NOT_FOUND, "task_id")
    api.owners.on_change = lambda task_id, change: Changed(ChangeResult.OTHER_GENERATION, ROW)
    await refused(
        api.stub.UpdateTask(update("payload", expected_generation=1)),
        code_pb2.FAILED_PRECONDITION,
        "expected_generation",
    )
    api.owners.on_change = lambda task_id, change: None
    assert (await status_of(api.stub.UpdateTask(update("payload")))).code == code_pb2.UNAVAILABLE
