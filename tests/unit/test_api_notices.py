"""Rules of notices over gRPC: of tasks, and of queues."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.rpc import code_pb2
from service_world import NAMESPACE_ID
from test_api_tasks import Api, refused

from bucketsched.core.catalog import Queue, QueueKind
from bucketsched.core.errors import Unavailable
from bucketsched.core.notice_rule import NoticeEvent, NoticeRule
from bucketsched.stubs.v1 import queue_pb2, task_pb2

LATE = task_pb2.NOTICE_EVENT_LATE
DEAD = task_pb2.NOTICE_EVENT_DEAD_LETTERED
SUCCEEDED = task_pb2.NOTICE_EVENT_SUCCEEDED


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    api = await Api().start()
    await api.catalog.create_queue(Queue(NAMESPACE_ID, "default", "dead", QueueKind.WORKER))
    await api.catalog.create_queue(Queue(NAMESPACE_ID, "default", "topic", QueueKind.KAFKA))
    yield api
    await api.close()


def rule(
    *events: task_pb2.NoticeEvent.ValueType, queue: str = "dead", late_s: int | None = None
) -> task_pb2.NoticeRule:
    late = None if late_s is None else Duration(seconds=late_s)
    return task_pb2.NoticeRule(events=events or [DEAD], queue=queue, late_after=late)


def asking(*rules: task_pb2.NoticeRule, **fields: object) -> task_pb2.CreateTaskRequest:
    return task_pb2.CreateTaskRequest(type="t", notices=rules, **fields)  # type: ignore[arg-type]


def queue(*rules: task_pb2.NoticeRule, name: str = "q", kind: int = queue_pb2.QUEUE_KIND_WORKER) -> queue_pb2.Queue:
    return queue_pb2.Queue(name=name, kind=kind, policy=queue_pb2.QueuePolicy(notices=rules))  # type: ignore[arg-type]


# ---------------------------------------------------------------- tasks


async def test_a_task_keeps_its_rules(api: Api) -> None:
    wanted = [rule(LATE, DEAD, DEAD, late_s=5), rule(SUCCEEDED, queue="topic")]
    created = await api.stub.CreateTask(asking(*wanted))
    task = (await api.stub.GetTask(task_pb2.GetTaskRequest(task_id=created.task_id))).task
    assert list(task.notices) == [rule(DEAD, LATE, late_s=5), rule(SUCCEEDED, queue="topic", late_s=1)]
    (row,) = [row for rows in api.owners.hinted for row in rows]
    assert row.body.notices == (
        NoticeRule((NoticeEvent.DEAD_LETTERED, NoticeEvent.LATE), "dead", 5_000),
        NoticeRule((NoticeEvent.SUCCEEDED,), "topic", 1_000),
    )
    plain = await api.stub.CreateTask(asking())
    assert not (await api.stub.GetTask(task_pb2.GetTaskRequest(task_id=plain.task_id))).task.notices


async def test_wrong_rules_of_a_task_are_named(api: Api) -> None:
    invalid = code_pb2.INVALID_ARGUMENT
    for rules, code, field in (
        ([rule()] * 11, invalid, "notices"),
        ([task_pb2.NoticeRule(queue="dead")], invalid, "notices[0].events"),
        ([rule(), rule(77)], invalid, "notices[1].events"),  # type: ignore[arg-type]
        ([rule(), rule(0)], invalid, "notices[1].events"),  # type: ignore[arg-type]
        ([rule(queue="")], invalid, "notices[0].queue"),
        ([rule(late_s=-1)], invalid, "notices[0].late_after"),
        ([rule(late_s=400 * 86_400 + 1)], invalid, "notices[0].late_after"),
        ([rule(), rule(queue="nowhere")], code_pb2.NOT_FOUND, "notices[1].queue"),
    ):
        await refused(api.stub.CreateTask(asking(*rules)), code, field)
    await refused(api.stub.CreateTask(asking(rule(SUCCEEDED), queue="topic")), invalid, "notices[0].events")
    await refused(api.stub.CreateTask(asking(rule(), queue="nowhere")), code_pb2.NOT_FOUND, "queue")
    assert not api.owners.hinted, "nothing was stored"


async def test_of_a_batch_only_those_are_refused_that_are_wrong(api: Api) -> None:
    requests = [asking(rule()), asking(rule(queue="nowhere")), asking(), asking(rule(), queue="topic")]
    results = (await api.stub.BatchCreateTasks(task_pb2.BatchCreateTasksRequest(requests=requests))).results
    assert [result.WhichOneof("result") for result in results] == ["created", "error", "created", "created"]
    assert (results[1].error.code, results[1].error.field) == (code_pb2.NOT_FOUND, "notices[0].queue")


async def test_a_task_is_not_stored_while_nobody_knows_whether_its_queues_exist(api: Api) -> None:
    await api.stub.CreateTask(asking())
    api.catalog.fail_next("get_queue", Unavailable("no catalog"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await api.stub.CreateTask(asking(rule()))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert len(api.owners.hinted) == 1


async def test_a_key_stands_for_the_rules_too(api: Api) -> None:
    first = await api.stub.CreateTask(asking(rule(DEAD, LATE), idempotency_key="k"))
    same = await api.stub.CreateTask(asking(rule(LATE, DEAD), idempotency_key="k"))
    assert same.task_id == first.task_id
    await refused(api.stub.CreateTask(asking(idempotency_key="k")), code_pb2.ALREADY_EXISTS, "idempotency_key")


# ---------------------------------------------------------------- queues


async def test_the_rules_of_a_queue_are_created_shown_and_changed(api: Api) -> None:
    created = (await api.queue_stub.CreateQueue(queue_pb2.CreateQueueRequest(queue=queue(rule(LATE, DEAD))))).queue
    assert list(created.policy.notices) == [rule(DEAD, LATE, late_s=1)]
    again = queue_pb2.CreateQueueRequest(queue=queue(rule(DEAD, LATE, late_s=1)))
    assert (await api.queue_stub.CreateQueue(again)).queue == created
    other = queue_pb2.CreateQueueRequest(queue=queue(rule(DEAD)))
    await refused(api.queue_stub.CreateQueue(other), code_pb2.ALREADY_EXISTS, "policy")

    update = queue_pb2.UpdateQueueRequest(name="q", update_mask=FieldMask(paths=["notices"]))
    update.policy.notices.append(rule(SUCCEEDED, queue="topic"))
    update.policy.retry.max_attempts = 3
    changed = (await api.queue_stub.UpdateQueue(update)).queue
    assert (list(changed.policy.notices), changed.policy.HasField("retry")) == (
        [rule(SUCCEEDED, queue="topic", late_s=1)], False,
    )  # fmt: skip
    update.update_mask.paths[:] = ["retry"]
    update.policy.ClearField("notices")
    changed = (await api.queue_stub.UpdateQueue(update)).queue
    assert (len(changed.policy.notices), changed.policy.retry.max_attempts) == (1, 3)
    stored = await api.catalog.get_queue(NAMESPACE_ID, "q")
    assert stored is not None
    assert stored.policy.notices == (NoticeRule((NoticeEvent.SUCCEEDED,), "topic", 1_000),)
    update.update_mask.paths[:] = ["retry", "notices"]
    update.ClearField("policy")
    assert not (await api.queue_stub.UpdateQueue(update)).queue.HasField("policy")


@pytest.mark.parametrize(
    ("rules", "code", "field"),
    [
        ([rule()] * 11, code_pb2.INVALID_ARGUMENT, "notices"),
        ([rule(77)], code_pb2.INVALID_ARGUMENT, "notices[0].events"),  # type: ignore[arg-type]
        ([rule(), rule(queue="q")], code_pb2.INVALID_ARGUMENT, "notices[1].queue"),
        ([rule(), rule(queue="nowhere")], code_pb2.NOT_FOUND, "notices[1].queue"),
    ],
)
async def test_wrong_rules_of_a_queue_are_named(
    api: Api, rules: list[task_pb2.NoticeRule], code: int, field: str
) -> None:
    create = queue_pb2.CreateQueueRequest(queue=queue(*rules))
    await refused(api.queue_stub.CreateQueue(create), code, field)
    assert await api.catalog.get_queue(NAMESPACE_ID, "q") is None
    await api.queue_stub.CreateQueue(queue_pb2.CreateQueueRequest(queue=queue()))
    mask, policy = FieldMask(paths=["notices"]), queue_pb2.QueuePolicy(notices=rules)
    update = queue_pb2.UpdateQueueRequest(name="q", policy=policy, update_mask=mask)
    await refused(api.queue_stub.UpdateQueue(update), code, field)


async def test_a_queue_of_kafka_tells_what_is_known_of_its_tasks(api: Api) -> None:
    mask, policy = FieldMask(paths=["notices"]), queue_pb2.QueuePolicy(notices=[rule(), rule(SUCCEEDED)])
    update = queue_pb2.UpdateQueueRequest(name="topic", policy=policy, update_mask=mask)
    await refused(api.queue_stub.UpdateQueue(update), code_pb2.INVALID_ARGUMENT, "notices[1].events")
    del update.policy.notices[1]
    changed = (await api.queue_stub.UpdateQueue(update)).queue
    assert list(changed.policy.notices) == [rule(DEAD, late_s=1)]
