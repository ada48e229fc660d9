"""The main job on real servers: a task goes in by gRPC, waits in its bucket, and comes out on time."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable

import grpc
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.nodes import Cluster, Process, now_ms, until_state
from tests.recorder import Recorder
from tests.workload import Workload, workload

from bucketsched import CancelOutcome, CreatedTask, NewTask, Priority, QueueKind, TaskState
from bucketsched.client.model import to_datetime
from bucketsched.stubs.v1 import task_pb2, task_pb2_grpc

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Every role in a process of its own, and two pollers."""
    cluster = make_cluster(shards=16, ranges=8, horizon_ms=60_000, grace_ms=2_000)
    for name, roles in (("coordinator", "coordinator"), ("poller", "poller"), ("poller", "poller")):
        cluster.start(name, roles)
    cluster.start("api", "api")
    return cluster


def pollers(cluster: Cluster) -> list[Process]:
    return [process for process in cluster.processes if process.name.endswith("poller")]


@pytest.fixture
async def work(cluster: Cluster) -> AsyncIterator[Workload]:
    """By the process that is nothing but an api, while both pollers own ranges."""
    for process in cluster.processes:
        await process.ready()
    await cluster.settled(*pollers(cluster))
    async with workload(cluster, cluster.processes[3].address) as work:
        yield work


async def test_a_task_comes_out_on_time_as_it_went_in(work: Workload) -> None:
    payload, metadata = bytes(range(256)), {"trace": "00-ab", "name": "ü €"}
    task = await work.client.create(
        "mail.send",
        payload,
        queue=work.queue,
        delay=1.5,
        priority=Priority.HIGH,
        metadata=metadata,
        content_type="text/x",
    )
    assert (await work.client.get(task.id)).state is TaskState.PENDING
    await work.recorder.exactly([task])
    seen = work.recorder.of(task)
    assert (seen.event.payload, seen.event.metadata, seen.event.type) == (payload, metadata, "mail.send")
    assert seen.headers["ce_id"] == f"{task.id}/0/1".encode()
    assert seen.headers["ce_specversion"] == b"1.0"
    assert seen.headers["ce_source"] == f"/bucketsched/default/{work.queue}".encode()
    assert seen.headers["content-type"] == b"text/x"
    assert (seen.event.generation, seen.event.attempt, seen.event.due_ms) == (0, 1, task.due_ms)
    assert seen.event.epoch >= 1
    assert task.due_ms <= seen.event.dispatched_ms <= seen.at_ms


async def test_get_shows_what_became_of_it(work: Workload) -> None:
    [task] = await work.create([0.3])
    await work.recorder.until_all([task])
    found = await until_state(work.client, task, TaskState.DISPATCHED)
    assert found.dispatched is not None
    assert found.dispatched >= found.due
    assert await work.client.cancel(task.id) is CancelOutcome.ALREADY_DISPATCHED


@pytest.mark.alone
async def test_many_at_random_instants_are_all_in_time(work: Workload) -> None:
    rng = random.Random(3)
    tasks = await work.create([rng.uniform(0, 4) for _ in range(600)])
    await work.recorder.exactly(tasks)
    late = sorted(seen.late_ms for seen in work.recorder.seen)
    assert late[len(late) // 2] < 500
    assert late[-1] < 5_000


@pytest.mark.alone
async def test_what_is_due_already_runs_now(work: Workload) -> None:
    before_ms = now_ms()
    tasks = await work.create([0.0] * 20)
    await work.recorder.exactly(tasks)
    assert all(before_ms <= seen.event.dispatched_ms for seen in work.recorder.seen)
    assert max(seen.late_ms for seen in work.recorder.seen) < 5_000


async def test_a_cancelled_task_never_comes(work: Workload) -> None:
    near = await work.create([1.5] * 40)
    far = await work.create([86_400.0] * 3)
    cancelled = near[::2] + far
    assert {await work.client.cancel(task.id) for task in cancelled} == {CancelOutcome.CANCELLED}
    assert await work.client.cancel(near[0].id) is CancelOutcome.ALREADY_CANCELLED
    assert {(await work.client.get(task.id)).state for task in cancelled} == {TaskState.CANCELLED}
    await work.recorder.exactly(near[1::2])
    assert {(await work.client.get(task.id)).state for task in cancelled} == {TaskState.CANCELLED}


async def test_a_row_whose_hint_was_lost_is_found(cluster: Cluster, work: Workload) -> None:
    """Stored in a bucket that its owner has read already, as by an api that died before it told."""
    async with cluster.rows() as rows:
        told = await work.create([2.5] * 16)
        untold = await rows.insert([rows.made(now_ms() + 3_000, work.queue, shard=shard) for shard in range(16)])
    await work.recorder.exactly(told + untold)


@pytest.mark.alone
async def test_hundreds_of_lost_hints_are_made_good(cluster: Cluster, work: Workload) -> None:
    async with cluster.rows() as rows:
        dues = [now_ms() + 2_500 + 2 * i for i in range(1_500)]
        untold = await rows.insert([rows.made(due, work.queue) for due in dues])
    told = await work.create([2.5] * 100)
    await work.recorder.exactly(told + untold)
    assert max(seen.late_ms for seen in work.recorder.seen) < 5_000


async def test_what_the_broker_refuses_fails_alone(cluster: Cluster, work: Workload) -> None:
    """One transaction of small messages and one that the topic does not take: nothing of it is half done."""
    tight = f"{cluster.prefix}-tight"
    admin = AIOKafkaAdminClient(bootstrap_servers=cluster.kafka)
    await admin.start()
    await admin.create_topics([NewTopic(tight, 1, 1, topic_configs={"max.message.bytes": "5000"})])
    await admin.close()
    await work.client.create_queue("tight", QueueKind.KAFKA, topic=tight)
    due = to_datetime(now_ms() + 2_000)
    payloads = {("tight", b"s"): 10, ("tight", bytes(20_000)): 2, (work.queue, b"s"): 20}
    wanted = [NewTask("t", p, queue, due=due) for (queue, p), count in payloads.items() for _ in range(count)]
    created = [task for task in await work.client.create_many(wanted) if isinstance(task, CreatedTask)]
    assert len(created) == len(wanted)
    small, large, others = created[:10], created[10:12], created[12:]
    async with Recorder(cluster.kafka, (tight,)) as narrow:
        await work.recorder.exactly(others)
        await narrow.exactly(small)
        for task in large:
            failed = await until_state(work.client, task, TaskState.FAILED)
            assert tight in failed.fail_reason
            assert await work.client.cancel(task.id) is CancelOutcome.ALREADY_FAILED
        await narrow.exactly(small)
    assert {(await work.client.get(task.id)).state for task in small + others} == {TaskState.DISPATCHED}


async def test_a_client_without_the_sdk(cluster: Cluster, work: Workload) -> None:
    """Generated stubs, reflection and health are all that anybody needs."""
    async with grpc.aio.insecure_channel(cluster.processes[3].address) as channel:
        services = await reflected(channel)
        assert {"bucketsched.v1.TaskService", "bucketsched.v1.QueueService", "grpc.health.v1.Health"} <= services
        health = health_pb2_grpc.HealthStub(channel)
        serving = await health.Check(health_pb2.HealthCheckRequest(service="bucketsched.v1.TaskService"))
        assert serving.status == health_pb2.HealthCheckResponse.SERVING
        stub = task_pb2_grpc.TaskServiceStub(channel)
        request = task_pb2.CreateTaskRequest(queue=work.queue, type="t", payload=b"x", delay=Duration(seconds=1))
        task = CreatedTask((await stub.CreateTask(request)).task_id, 0)
        await work.recorder.exactly([task])
        wrong = task_pb2.CreateTaskRequest(queue=work.queue, type="t", delay=Duration(seconds=-1))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.CreateTask(wrong)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "delay" in str(refused.value.details())


async def reflected(channel: grpc.aio.Channel) -> set[str]:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    async for answer in stub.ServerReflectionInfo(requests):
        return {service.name for service in answer.list_services_response.service}
    return set()
