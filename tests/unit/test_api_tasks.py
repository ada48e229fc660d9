"""The public gRPC services, asked over a real connection: conversions, statuses, and what can't be decoded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status
from service_world import CLUSTER, NOW_MS, ServiceWorld, until
from tools.stack.ports import free_port

from bucketsched.api.info import InfoServicer
from bucketsched.api.queues import NamespaceServicer, QueueServicer
from bucketsched.api.server import GrpcServer
from bucketsched.api.tasks import TaskServicer
from bucketsched.core import task_id as ids
from bucketsched.core.durations import DAY_MS
from bucketsched.core.errors import ConfigError
from bucketsched.core.task import FactKind, Mark, bucket_of
from bucketsched.ports import CancelResult
from bucketsched.service.namespaces import NamespaceService
from bucketsched.service.queues import QueueService
from bucketsched.stubs.v1 import (
    info_pb2,
    info_pb2_grpc,
    queue_pb2,
    queue_pb2_grpc,
    task_pb2,
    task_pb2_grpc,
)

FAR = Timestamp(seconds=NOW_MS // 1000 + 3600, nanos=5_000_001)
FAR_MS = (NOW_MS // 1000 + 3600) * 1000 + 6


class Api(ServiceWorld):
    """The services behind a real server, and a client."""

    async def start(self) -> Api:
        await self.prepare()
        queues = QueueService(self.catalog, self.directory, None, self.clock)
        namespaces = NamespaceService(self.catalog, self.clock)
        services = [
            TaskServicer(self.tasks, self.queries).service(),
            QueueServicer(queues).service(),
            NamespaceServicer(namespaces).service(),
            InfoServicer("1.2.3", "embedded", CLUSTER.shards, self.limits, self.clock).service(),
        ]
        self.server = GrpcServer("127.0.0.1:0", services, with_reflection=True)
        self.address = await self.server.start()
        self.channel = grpc.aio.insecure_channel(self.address, options=[("grpc.max_send_message_length", -1)])
        self.stub = task_pb2_grpc.TaskServiceStub(self.channel)
        self.queue_stub = queue_pb2_grpc.QueueServiceStub(self.channel)
        self.namespace_stub = queue_pb2_grpc.NamespaceServiceStub(self.channel)
        return self

    async def close(self) -> None:
        await self.channel.close()
        await self.server.stop(0)
        await self.tasks.close()

    async def create(self, **fields: Any) -> task_pb2.CreateTaskResponse:
        return await self.stub.CreateTask(task_pb2.CreateTaskRequest(**{"type": "mail", **fields}))


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    api = await Api().start()
    yield api
    await api.close()


async def status_of(call: Any) -> status_pb2.Status:
    """The rich status with which a call fails."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    status = rpc_status.from_call(caught.value)
    assert status is not None, caught.value
    return status


def detail(status: status_pb2.Status, kind: Any) -> Any:
    for packed in status.details:
        message = kind()
        if packed.Unpack(message):
            return message
    raise AssertionError(f"no {kind.__name__} in {status}")


async def refused(call: Any, code: int, field: str) -> str:
    """Checks code and field of a refusal; the message."""
    status = await status_of(call)
    assert status.code == code, status
    assert detail(status, error_details_pb2.ErrorInfo).metadata["field"] == field
    if code == code_pb2.INVALID_ARGUMENT:
        assert [v.field for v in detail(status, error_details_pb2.BadRequest).field_violations] == [field]
    return status.message


# ---------------------------------------------------------------- create and get


async def test_a_task_comes_back_as_it_was_sent(api: Api) -> None:
    payload, metadata = bytes(range(256)), {"tenant": "größe 📦"}
    response = await api.create(
        payload=payload,
        metadata=metadata,
        due_time=FAR,
        priority=task_pb2.PRIORITY_HIGH,
        content_type="application/json",
    )
    assert response.state == task_pb2.TASK_STATE_PENDING
    assert response.due_time.ToMilliseconds() == FAR_MS, "rounded up"
    task = (await api.stub.GetTask(task_pb2.GetTaskRequest(task_id=response.task_id))).task
    assert (task.namespace, task.queue, task.type) == ("default", "default", "mail")
    assert (task.payload, dict(task.metadata), task.content_type) == (payload, metadata, "application/json")
    assert (task.due_time.ToMilliseconds(), task.create_time.ToMilliseconds()) == (FAR_MS, NOW_MS)
    assert (task.priority, task.state, task.attempt) == (task_pb2.PRIORITY_HIGH, task_pb2.TASK_STATE_PENDING, 1)
    for name in ("dispatch_time", "cancel_time", "fail_time"):
        assert not task.HasField(name)


@pytest.mark.parametrize(
    ("kind", "state", "field"),
    [
        (FactKind.DISPATCHED, task_pb2.TASK_STATE_DISPATCHED, "dispatch_time"),
        (FactKind.CANCELLED, task_pb2.TASK_STATE_CANCELLED, "cancel_time"),
        (FactKind.FAILED, task_pb2.TASK_STATE_FAILED, "fail_time"),
    ],
)
async def test_the_state_of_a_task_is_shown(api: Api, kind: FactKind, state: int, field: str) -> None:
    response = await api.create(due_time=FAR)
    (row,) = await api.rows(bucket_of(FAR_MS))
    await api.store.mark([Mark(row.ref, kind, FAR_MS + 5, "why" if kind is FactKind.FAILED else "")])
    task = (await api.stub.GetTask(task_pb2.GetTaskRequest(task_id=response.task_id))).task
    assert task.state == state
    assert getattr(task, field).ToMilliseconds() == FAR_MS + 5
    assert task.fail_reason == ("why" if kind is FactKind.FAILED else "")


@pytest.mark.parametrize("when", [{}, {"delay": Duration()}, {"due_time": Timestamp(seconds=-62_135_596_800)}])
async def test_nothing_no_delay_or_the_past_is_now(api: Api, when: dict[str, Any]) -> None:
    response = await api.create(**when)
    assert ids.home_of(UUID(response.task_id).bytes).due_ms == NOW_MS


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"type": ""}, "type"),
        ({"type": "a\0"}, "type"),
        ({"queue": "a/b"}, "queue"),
        ({"namespace": "a b"}, "namespace"),
        ({"payload": b"x" * 65_537}, "payload"),
        ({"metadata": {"a:b": "c"}}, "metadata"),
        ({"metadata": {"a": "\0"}}, "metadata"),
        ({"metadata": {str(n): "" for n in range(33)}}, "metadata"),
        ({"priority": 4}, "priority"),
        ({"priority": -1}, "priority"),
        ({"content_type": "json"}, "content_type"),
        ({"task_id": "1"}, "task_id"),
        ({"delay": Duration(seconds=-1)}, "delay"),
        ({"delay": Duration(nanos=-1)}, "delay"),
        ({"delay": Duration(seconds=1, nanos=-1)}, "delay"),
        ({"delay": Duration(seconds=2**63 - 1)}, "delay"),
        ({"delay": Duration(seconds=315_576_000_000)}, "delay"),
        ({"due_time": Timestamp(seconds=253_402_300_800)}, "due_time"),
        ({"due_time": Timestamp(seconds=253_402_300_799, nanos=999_999_999)}, "due_time"),
        ({"due_time": Timestamp(seconds=0, nanos=1_000_000_000)}, "due_time"),
        ({"due_time": Timestamp(seconds=0, nanos=-1)}, "due_time"),
        ({"due_time": Timestamp(seconds=2**63 - 1)}, "due_time"),
    ],
)
async def test_bad_input_is_invalid_argument_with_the_field(api: Api, fields: dict[str, Any], field: str) -> None:
    await refused(api.create(**fields), code_pb2.INVALID_ARGUMENT, field)
    batch = task_pb2.BatchCreateTasksRequest(requests=[task_pb2.CreateTaskRequest(**{"type": "mail", **fields})])
    (result,) = (await api.stub.BatchCreateTasks(batch)).results
    assert (result.error.code, result.error.field) == (code_pb2.INVALID_ARGUMENT, field)
    assert api.store.calls["insert"] == 0


async def test_the_longest_delay_is_named(api: Api) -> None:
    too_long = Duration(seconds=400 * DAY_MS // 1000, nanos=1)
    message = await refused(api.create(delay=too_long), code_pb2.INVALID_ARGUMENT, "delay")
    assert message == "delay: must be at most 400 days"


@pytest.mark.parametrize("field", ["queue", "namespace"])
async def test_unknown_names_are_not_found(api: Api, field: str) -> None:
    await refused(api.create(**{field: "nowhere"}), code_pb2.NOT_FOUND, field)


async def test_without_confirmation_the_status_is_unavailable_with_what_to_retry_with(api: Api) -> None:
    api.store.down = True
    status = await status_of(api.create(due_time=FAR))
    assert status.code == code_pb2.UNAVAILABLE
    assert detail(status, error_details_pb2.RetryInfo).retry_delay.ToMilliseconds() == 1_000
    task_id = detail(status, error_details_pb2.ErrorInfo).metadata["task_id"]
    api.store.down = False
    assert (await api.create(due_time=FAR, task_id=task_id)).task_id == task_id


async def test_the_answer_comes_before_the_clients_deadline(api: Api) -> None:
    api.store.hold("insert")
    api.clock.monotonic = time.monotonic  # type: ignore[method-assign]
    started = time.monotonic()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await api.stub.CreateTask(task_pb2.CreateTaskRequest(type="mail"), timeout=0.5)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert time.monotonic() - started < 0.5


async def test_what_goes_wrong_inside_is_not_shown(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    def bug(*args: Any) -> None:
        raise RuntimeError("secret password")

    api.store.get = bug  # type: ignore[assignment, method-assign]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await api.stub.GetTask(task_pb2.GetTaskRequest(task_id=ids.text(ids.mint(FAR_MS, 1, 1))))
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in str(caught.value)
    incident = caught.value.details().split()[-1]
    assert incident in caplog.text
    assert "secret password" in caplog.text


# ---------------------------------------------------------------- batches


async def test_a_batch_has_one_result_an_item(api: Api) -> None:
    request = task_pb2.BatchCreateTasksRequest()
    for n in range(5):
        request.requests.add(type="mail" if n != 2 else "", due_time=FAR, payload=b"%d" % n)
    request.requests.add(type="mail", queue="nowhere")
    results = (await api.stub.BatchCreateTasks(request)).results
    assert [result.WhichOneof("result") for result in results] == ["created"] * 2 + ["error"] + ["created"] * 2 + [
        "error"
    ]
    assert (results[5].error.code, results[5].error.field) == (code_pb2.NOT_FOUND, "queue")
    stored = {row.task_id: row.body.payload for row in await api.rows(bucket_of(FAR_MS))}
    assert [stored[UUID(results[n].created.task_id).bytes] for n in (0, 1, 3, 4)] == [b"0", b"1", b"3", b"4"]


async def test_items_that_could_not_be_confirmed_are_unavailable_one_by_one(api: Api) -> None:
    api.store.down = True
    request = task_pb2.BatchCreateTasksRequest()
    request.requests.add(type="mail", due_time=FAR)
    request.requests.add(type="")
    results = (await api.stub.BatchCreateTasks(request)).results
    assert [result.error.code for result in results] == [code_pb2.UNAVAILABLE, code_pb2.INVALID_ARGUMENT]


async def test_a_batch_of_more_than_a_thousand_is_refused(api: Api) -> None:
    request = task_pb2.BatchCreateTasksRequest(requests=[task_pb2.CreateTaskRequest(type="mail")] * 1_001)
    message = await refused(api.stub.BatchCreateTasks(request), code_pb2.INVALID_ARGUMENT, "requests")
    assert message == "requests: must be at most 1000, are 1001"
    assert not (await api.stub.BatchCreateTasks(task_pb2.BatchCreateTasksRequest())).results


async def test_a_thousand_of_the_largest_payloads_fit_into_a_batch(api: Api) -> None:
    request = task_pb2.BatchCreateTasksRequest()
    for _ in range(1_000):
        request.requests.add(type="mail", due_time=FAR, payload=b"x" * 65_536)
    results = (await api.stub.BatchCreateTasks(request, timeout=60)).results
    assert sum(result.HasField("created") for result in results) == 1_000


async def test_a_message_beyond_that_is_refused_by_its_size(api: Api) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="larger than max") as caught:
        await api.create(payload=b"x" * (73 * 1024 * 1024))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


# ---------------------------------------------------------------- what can't be decoded


async def raw(api: Api, method: str, message: bytes) -> bytes:
    call = api.channel.unary_unary(f"/bucketsched.v1.{method}")
    return await call(message)


BAD = b"\xff\xfe"


def field(number: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


@pytest.mark.parametrize(
    ("method", "message", "where"),
    [
        ("TaskService/CreateTask", field(1, BAD), "namespace"),
        ("TaskService/CreateTask", field(3, b"mail") + field(2, BAD), "queue"),
        ("TaskService/CreateTask", field(3, b"\xed\xa0\x80"), "type"),
        ("TaskService/CreateTask", field(4, BAD) + field(9, BAD), "task_id"),
        ("TaskService/CreateTask", field(5, field(1, BAD) + field(2, b"v")), "metadata"),
        ("TaskService/CreateTask", field(5, field(1, b"k") + field(2, BAD)), "metadata"),
        ("TaskService/BatchCreateTasks", field(1, field(3, b"ok")) + field(1, field(3, BAD)), "requests[1].type"),
        ("TaskService/GetTask", field(2, BAD), "task_id"),
        ("TaskService/CancelTask", field(1, BAD), "namespace"),
        ("QueueService/CreateQueue", field(1, field(2, BAD)), "queue.name"),
        ("NamespaceService/CreateNamespace", field(1, BAD), "name"),
    ],
)
async def test_invalid_utf8_is_invalid_argument_with_the_field(
    api: Api, method: str, message: bytes, where: str
) -> None:
    told = await refused(raw(api, method, message), code_pb2.INVALID_ARGUMENT, where)
    assert told == f"{where}: must be valid UTF-8"


@pytest.mark.parametrize("message", [b"\xff\xff\xff", b"\x0a\x05a", b"\x0a", b"\x07", b"\x32\x02\xff\xff"])
async def test_what_is_no_message_at_all_is_invalid_argument(api: Api, message: bytes) -> None:
    told = await refused(raw(api, "TaskService/CreateTask", message), code_pb2.INVALID_ARGUMENT, "")
    assert told == "the request is not a valid bucketsched.v1.CreateTaskRequest message"


# ---------------------------------------------------------------- cancel


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (CancelResult.CANCELLED, task_pb2.CANCEL_OUTCOME_CANCELLED),
        (CancelResult.ALREADY_DISPATCHED, task_pb2.CANCEL_OUTCOME_ALREADY_DISPATCHED),
        (CancelResult.ALREADY_CANCELLED, task_pb2.CANCEL_OUTCOME_ALREADY_CANCELLED),
        (CancelResult.ALREADY_FAILED, task_pb2.CANCEL_OUTCOME_ALREADY_FAILED),
    ],
)
async def test_a_cancel_says_what_became_of_it(api: Api, result: CancelResult, outcome: int) -> None:
    api.owners.on_cancel = lambda task_id: result
    request = task_pb2.CancelTaskRequest(task_id=ids.text(ids.mint(FAR_MS, 1, 1)))
    assert (await api.stub.CancelTask(request)).outcome == outcome


async def test_a_cancel_can_fail(api: Api) -> None:
    request = task_pb2.CancelTaskRequest(task_id=ids.text(ids.mint(FAR_MS, 1, 1)))
    api.owners.on_cancel = lambda task_id: CancelResult.NOT_FOUND
    await refused(api.stub.CancelTask(request), code_pb2.NOT_FOUND, "task_id")
    api.owners.on_cancel = lambda task_id: None
    assert (await status_of(api.stub.CancelTask(request))).code == code_pb2.UNAVAILABLE
    bad = task_pb2.CancelTaskRequest(task_id="a/b" * 100_000)
    await refused(api.stub.CancelTask(bad), code_pb2.INVALID_ARGUMENT, "task_id")


# ---------------------------------------------------------------- queues, namespaces, info


async def test_queues_are_made_shown_and_listed(api: Api) -> None:
    wanted = queue_pb2.Queue(name="jobs", kind=queue_pb2.QUEUE_KIND_WORKER)
    made = (await api.queue_stub.CreateQueue(queue_pb2.CreateQueueRequest(queue=wanted))).queue
    assert (made.namespace, made.name, made.kind) == ("default", "jobs", queue_pb2.QUEUE_KIND_WORKER)
    assert made.create_time.ToMilliseconds() == api.clock.now_ms()
    assert (await api.queue_stub.GetQueue(queue_pb2.GetQueueRequest(name="jobs"))).queue == made
    first = await api.queue_stub.ListQueues(queue_pb2.ListQueuesRequest(page_size=1))
    second = await api.queue_stub.ListQueues(queue_pb2.ListQueuesRequest(page_size=1, page_token=first.next_page_token))
    assert [queue.name for page in (first, second) for queue in page.queues] == ["default", "jobs"]
    assert (await api.create(queue="jobs")).task_id


async def test_queues_can_be_refused(api: Api) -> None:
    def create(**fields: Any) -> Any:
        return api.queue_stub.CreateQueue(queue_pb2.CreateQueueRequest(queue=queue_pb2.Queue(**fields)))

    worker = queue_pb2.QUEUE_KIND_WORKER
    await refused(create(name="a"), code_pb2.INVALID_ARGUMENT, "kind")
    await refused(create(name="a", kind=9), code_pb2.INVALID_ARGUMENT, "kind")
    await refused(create(name="a", kind=queue_pb2.QUEUE_KIND_KAFKA), code_pb2.INVALID_ARGUMENT, "kind")
    await refused(create(kind=worker), code_pb2.INVALID_ARGUMENT, "name")
    await refused(create(name="a", kind=worker, namespace="nobody"), code_pb2.NOT_FOUND, "namespace")
    await create(name="a", kind=worker)
    await refused(create(name="a", kind=worker, priority_topics=True), code_pb2.ALREADY_EXISTS, "priority_topics")
    await refused(api.queue_stub.GetQueue(queue_pb2.GetQueueRequest(name="b")), code_pb2.NOT_FOUND, "queue")


async def test_namespaces_are_made_and_listed(api: Api) -> None:
    await api.namespace_stub.CreateNamespace(queue_pb2.CreateNamespaceRequest(name="shop"))
    listed = (await api.namespace_stub.ListNamespaces(queue_pb2.ListNamespacesRequest())).namespaces
    assert [namespace.name for namespace in listed] == ["default", "shop"]
    bad = queue_pb2.CreateNamespaceRequest(name="../etc")
    await refused(api.namespace_stub.CreateNamespace(bad), code_pb2.INVALID_ARGUMENT, "name")


async def test_clients_are_told_what_they_need(api: Api) -> None:
    info = await info_pb2_grpc.InfoServiceStub(api.channel).GetServerInfo(info_pb2.GetServerInfoRequest())
    assert (info.version, info.mode, info.shards) == ("1.2.3", "embedded", 256)
    assert (info.payload_bytes_max, info.batch_tasks_max, info.delay_ms_max) == (65_536, 1_000, 400 * DAY_MS)
    assert info.server_time.ToMilliseconds() == NOW_MS


# ---------------------------------------------------------------- the server


async def test_health_is_told_by_service_until_the_server_stops(api: Api) -> None:
    stub = health_pb2_grpc.HealthStub(api.channel)
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    for name in ("", "bucketsched.v1.TaskService", "bucketsched.v1.QueueService", "bucketsched.v1.InfoService"):
        assert (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == serving
    await api.server.set_serving("bucketsched.v1.TaskService", False)
    request = health_pb2.HealthCheckRequest(service="bucketsched.v1.TaskService")
    assert (await stub.Check(request)).status == not_serving
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=""))
    assert (await watch.read()).status == serving
    stopping = asyncio.create_task(api.server.stop(1))
    assert (await asyncio.wait_for(watch.read(), 5)).status == not_serving
    watch.cancel()
    await stopping


async def test_rpcs_under_way_end_before_the_server_does(api: Api) -> None:
    api.store.hold("insert")
    call = asyncio.ensure_future(api.create(due_time=FAR))
    await until(lambda: api.store.calls["insert"] == 1)
    stopping = asyncio.create_task(api.server.stop(10))
    await asyncio.sleep(0.05)
    api.store.let_go("insert")
    assert (await asyncio.wait_for(call, 5)).task_id
    await asyncio.wait_for(stopping, 5)


async def test_reflection_shows_every_service(api: Api) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(api.channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    async for answer in call:
        names = {service.name for service in answer.list_services_response.service}
    assert {"bucketsched.v1.TaskService", "bucketsched.v1.QueueService", "grpc.health.v1.Health"} <= names


async def test_a_taken_port_is_one_line(api: Api) -> None:
    with pytest.raises(ConfigError) as caught:
        await GrpcServer(api.address, []).start()
    assert str(caught.value) == f"can't listen at {api.address}: Address already in use"


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "nowhere.invalid:1", "127.0.0.1:http"])
async def test_an_address_that_is_none_is_one_line(address: str) -> None:
    with pytest.raises(ConfigError, match="can't listen at") as caught:
        await GrpcServer(address, []).start()
    assert "\n" not in str(caught.value)


async def test_a_given_port_is_bound() -> None:
    address = f"127.0.0.1:{free_port()}"
    server = GrpcServer(address, [])
    try:
        assert await server.start() == address
    finally:
        await server.stop(0)
