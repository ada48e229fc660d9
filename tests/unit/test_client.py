"""The SDK's client against a server in this process whose tasks are a dictionary."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from delivery_world import until
from fake_server import SHARDS, FakeServer

from bucketsched import BatchLimits, CancelOutcome, Client, CreatedTask, NewTask, Priority, QueueKind, TaskState
from bucketsched.client import channel
from bucketsched.core import task_id as ids
from bucketsched.core.errors import RequestError
from bucketsched.errors import (
    AlreadyExists,
    BucketschedError,
    CreateUnavailable,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Unavailable,
)
from bucketsched.stubs.v1 import task_pb2

UNAVAILABLE_CODE, INVALID_CODE, INTERNAL_CODE = 14, 3, 13


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    server = FakeServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server: FakeServer) -> AsyncIterator[Client]:
    async with Client(server.address) as client:
        yield client


def now_ms() -> float:
    return time.time() * 1000


# ---------------------------------------------------------------- one task


async def test_a_task_is_created_with_everything(server: FakeServer, client: Client) -> None:
    due = datetime(2026, 12, 24, 18, 0, 0, 123_001, tzinfo=timezone(timedelta(hours=1)))
    created = await client.create(
        "send", b"\x00\xff", queue="mails", due=due, priority=Priority.HIGH, metadata={"k": "ü"}, content_type="a/b"
    )
    (item,) = server.tasks.values()
    assert (item.namespace, item.queue, item.type, item.payload) == ("default", "mails", "send", b"\x00\xff")
    assert (item.priority, dict(item.metadata), item.content_type) == (task_pb2.PRIORITY_HIGH, {"k": "ü"}, "a/b")
    assert created.due == due.replace(microsecond=124_000)  # rounded up
    assert created.id == item.task_id
    assert created.state is TaskState.PENDING
    home = ids.home_of(ids.parse(created.id, SHARDS))
    assert home.due_ms == created.due_ms == item.due_time.ToMilliseconds()


async def test_a_delay_is_counted_from_now_and_rounded_up(server: FakeServer, client: Client) -> None:
    for delay, seconds in ((1.5, 1.5), (timedelta(minutes=2), 120), (0, 0), (None, 0)):
        before = now_ms()
        created = await client.create("t", delay=delay)
        assert before + seconds * 1000 <= created.due_ms <= now_ms() + seconds * 1000 + 1
        assert ids.home_of(ids.parse(created.id, SHARDS)).due_ms == created.due_ms


async def test_a_due_time_in_the_past_gets_an_id_of_now(server: FakeServer, client: Client) -> None:
    before = int(now_ms())
    created = await client.create("t", due=datetime(1969, 7, 20, tzinfo=UTC))
    assert created.due == datetime(1969, 7, 20, tzinfo=UTC)
    assert before <= ids.home_of(ids.parse(created.id, SHARDS)).due_ms <= now_ms()


async def test_ids_spread_over_all_shards_and_differ(server: FakeServer, client: Client) -> None:
    created = await asyncio.gather(*(client.create("t") for _ in range(1_000)))
    raw = [ids.parse(task.id, SHARDS) for task in created]
    assert len(set(raw)) == 1_000
    assert {ids.shard_in(task_id) for task_id in raw} == set(range(SHARDS))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"delay": -0.001}, "delay"),
        ({"delay": math.nan}, "delay"),
        ({"delay": math.inf}, "delay"),
        ({"delay": -math.inf}, "delay"),
        ({"delay": 1e300}, "delay"),
        ({"delay": timedelta(days=401)}, "delay"),
        ({"delay": timedelta(seconds=-1)}, "delay"),
        ({"delay": True}, "delay"),
        ({"delay": "5"}, "delay"),
        ({"delay": 1, "due": datetime(2030, 1, 1, tzinfo=UTC)}, "delay"),
        ({"due": datetime(2030, 1, 1)}, "due"),  # noqa: DTZ001
        ({"due": 1_750_000_000}, "due"),
        ({"due": datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)}, "due"),
        ({"payload": "text"}, "payload"),
        ({"payload": None}, "payload"),
        ({"type": "\ud800"}, "type"),
        ({"type": 5}, "type"),
        ({"queue": "\udfff"}, "queue"),
        ({"metadata": {"k": "\ud800"}}, "metadata"),
        ({"metadata": {"k": 1}}, "metadata"),
        ({"priority": 7}, "priority"),
        ({"task_id": "x"}, "task_id"),
        ({"task_id": "018f3a5b-4e20-7000-8000-000000000000"}, "task_id"),
    ],
)
async def test_bad_input_names_its_parameter(
    server: FakeServer, client: Client, arguments: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await client.create(**({"type": "t"} | arguments))
    assert caught.value.field == field
    assert not server.batches


async def test_what_the_server_refuses_is_named_as_the_caller_named_it(server: FakeServer, client: Client) -> None:
    def refuse(item: task_pb2.CreateTaskRequest) -> task_pb2.ItemError:
        return task_pb2.ItemError(code=INVALID_CODE, message="due_time: too far", field="due_time")

    server.on_item = refuse
    with pytest.raises(InvalidArgument, match=r"^delay: too far$"):
        await client.create("t", delay=1)
    with pytest.raises(InvalidArgument, match=r"^due: too far$"):
        await client.create("t", due=datetime(2027, 1, 1, tzinfo=UTC))
    server.on_item = lambda item: task_pb2.ItemError(code=5, message="queue: 'q' does not exist", field="queue")
    with pytest.raises(NotFound) as caught:
        await client.create("t", queue="q")
    assert (caught.value.field, caught.value.message) == ("queue", "'q' does not exist")


async def test_an_unexpected_error_is_not_repeated(server: FakeServer, client: Client) -> None:
    server.on_item = lambda item: task_pb2.ItemError(code=INTERNAL_CODE, message="boom")
    with pytest.raises(BucketschedError, match="INTERNAL: boom"):
        await client.create("t")
    assert len(server.batches) == 1


async def test_a_minted_id_makes_the_same_task_again(server: FakeServer, client: Client) -> None:
    task_id = await client.mint(delay=3600)
    first = await client.create("t", task_id=task_id)
    again = await client.create("t", task_id=task_id)
    assert first == again
    assert first.id == task_id
    assert len(server.tasks) == 1
    assert abs(first.due_ms - now_ms() - 3_600_000) < 10_000
    with pytest.raises(InvalidArgument) as caught:
        await client.create("t", task_id=task_id, delay=5)
    assert caught.value.field == "delay"


# ---------------------------------------------------------------- batching


async def test_concurrent_creates_go_out_together(server: FakeServer, client: Client) -> None:
    await client.info()
    created = await asyncio.gather(*(client.create("t", b"%d" % n) for n in range(2_500)))
    assert len({task.id for task in created}) == 2_500
    assert sum(len(batch.requests) for batch in server.batches) == 2_500
    assert len(server.batches) <= 4
    assert max(len(batch.requests) for batch in server.batches) <= 1_000
    for task, n in zip(created, range(2_500), strict=True):
        assert server.tasks[task.id].payload == b"%d" % n


async def test_batches_are_bounded_in_bytes(server: FakeServer, client: Client) -> None:
    await asyncio.gather(*(client.create("t", b"x" * 60_000) for _ in range(100)))
    assert max(batch.ByteSize() for batch in server.batches) <= 2 * 1024 * 1024


async def test_batches_in_flight_and_waiting_creates_are_bounded(server: FakeServer) -> None:
    server.gate = asyncio.Event()
    limits = BatchLimits(batch_tasks_max=10, batches_in_flight_max=2, waiting_tasks_max=30)
    async with Client(server.address, batching=limits) as client:
        creates = [asyncio.create_task(client.create("t")) for _ in range(200)]
        await until(lambda: server.in_flight == 2)
        await asyncio.sleep(0.02)
        assert client._batcher is not None
        assert len(client._batcher._waiting) == 30
        server.gate.set()
        await asyncio.gather(*creates)
    assert server.most_in_flight == 2
    assert len(server.tasks) == 200


async def test_a_create_that_is_cancelled_while_it_waits_for_room_gives_way(server: FakeServer) -> None:
    server.gate = asyncio.Event()
    limits = BatchLimits(batch_tasks_max=1, batches_in_flight_max=1, waiting_tasks_max=1)
    async with Client(server.address, batching=limits) as client:
        await client.info()
        creates = [asyncio.create_task(client.create("t")) for _ in range(5)]
        await asyncio.sleep(0.05)
        creates[2].cancel()
        creates[1].cancel()
        server.gate.set()
        results = await asyncio.wait_for(asyncio.gather(*creates, return_exceptions=True), 10)
    assert [isinstance(result, CreatedTask) for result in results] == [True, False, False, True, True]


async def test_waiting_for_room_ends_with_the_timeout(server: FakeServer) -> None:
    server.gate = asyncio.Event()
    limits = BatchLimits(batch_tasks_max=1, batches_in_flight_max=1, waiting_tasks_max=1)
    async with Client(server.address, batching=limits) as client:
        await client.info()
        stuck = [asyncio.create_task(client.create("t")) for _ in range(2)]
        await asyncio.sleep(0.05)
        with pytest.raises(Unavailable, match="too many"):
            await client.create("t", timeout=0.05)
        server.gate.set()
        await asyncio.gather(*stuck)


async def test_create_many_answers_each_in_its_place(server: FakeServer, client: Client) -> None:
    server.on_item = lambda item: (
        task_pb2.ItemError(code=INVALID_CODE, message="type: bad", field="type") if item.type == "bad" else None
    )
    tasks = [NewTask("a"), NewTask("bad"), NewTask("b", delay=-1), NewTask("c", payload=b"x", delay=2)]
    results = await client.create_many(tasks)
    assert [type(result) for result in results] == [CreatedTask, InvalidArgument, InvalidArgument, CreatedTask]
    assert [result.field for result in results if isinstance(result, RequestError)] == ["type", "delay"]
    assert len(server.batches) == 1


async def test_create_many_takes_more_than_may_wait(server: FakeServer) -> None:
    limits = BatchLimits(batch_tasks_max=50, batches_in_flight_max=2, waiting_tasks_max=60)
    async with Client(server.address, batching=limits) as client:
        results = await client.create_many(NewTask("t") for _ in range(1_000))
    assert all(isinstance(result, CreatedTask) for result in results)
    assert len(server.tasks) == 1_000


# ---------------------------------------------------------------- trouble


async def test_what_failed_is_sent_again_with_the_same_ids(server: FakeServer, client: Client) -> None:
    def fail(number: int, request: task_pb2.BatchCreateTasksRequest) -> None:
        if number <= 2:
            raise Unavailable("try again")

    server.on_batch = fail
    created = await asyncio.gather(*(client.create("t", delay=1) for _ in range(10)))
    assert len(server.batches) == 3
    sent = [[item.SerializeToString(deterministic=True) for item in batch.requests] for batch in server.batches]
    assert sent[0] == sent[1] == sent[2]
    assert {task.id for task in created} == set(server.tasks)


async def test_only_the_items_in_doubt_are_sent_again(server: FakeServer, client: Client) -> None:
    failed: set[str] = set()

    def fail_once(item: task_pb2.CreateTaskRequest) -> task_pb2.ItemError | None:
        if item.type == "shaky" and item.task_id not in failed:
            failed.add(item.task_id)
            return task_pb2.ItemError(code=UNAVAILABLE_CODE, message="not confirmed")
        return None

    server.on_item = fail_once
    await client.info()
    await asyncio.gather(*(client.create("shaky" if n % 10 == 0 else "sound") for n in range(100)))
    assert [len(batch.requests) for batch in server.batches] == [100, 10]
    assert {item.task_id for item in server.batches[1].requests} == failed


async def test_a_call_without_an_answer_is_sent_again(server: FakeServer) -> None:
    server.gate = asyncio.Event()
    async with Client(server.address, batching=BatchLimits(try_s_max=0.1)) as client:
        create = asyncio.create_task(client.create("t"))
        await until(lambda: len(server.batches) >= 2)
        server.gate.set()
        created = await create
    assert {item.task_id for batch in server.batches for item in batch.requests} == {created.id}


async def test_in_the_end_it_says_unavailable(server: FakeServer, client: Client) -> None:
    server.on_item = lambda item: task_pb2.ItemError(code=UNAVAILABLE_CODE, message="not confirmed")
    before = time.monotonic()
    with pytest.raises(CreateUnavailable, match="not confirmed") as caught:
        await client.create("t", timeout=0.3)
    assert 0.2 < time.monotonic() - before < 3
    (result,) = await client.create_many([NewTask("t")], timeout=0.1)
    assert isinstance(result, CreateUnavailable)
    server.on_item = None
    for task_id in (caught.value.task_id, result.task_id):
        await client.create("t", task_id=task_id)
    sent = {item.task_id for batch in server.batches for item in batch.requests}
    assert sent == {caught.value.task_id, result.task_id}


async def test_a_batch_that_is_too_large_is_split(server: FakeServer) -> None:
    await server.stop()
    server.message_bytes_max = 200_000
    await server.start()
    async with Client(server.address) as client:
        await asyncio.gather(*(client.create("t", b"x" * 50_000) for _ in range(10)))
        with pytest.raises(InvalidArgument, match="too large") as caught:
            await client.create("t", b"x" * 300_000)
        assert caught.value.field == "payload"
    assert len(server.tasks) == 10


async def test_it_survives_a_restart_of_the_server(server: FakeServer, client: Client) -> None:
    await client.create("t")
    await server.stop()
    create = asyncio.create_task(client.create("t"))
    cancel = asyncio.create_task(client.get("nothing"))
    await asyncio.sleep(0.1)
    await server.start()
    await asyncio.wait_for(create, 20)
    with pytest.raises(NotFound):
        await asyncio.wait_for(cancel, 20)


async def test_without_a_server_it_gives_up_in_time(server: FakeServer) -> None:
    await server.stop()
    async with Client(server.address, timeout=0.3) as client:
        before = time.monotonic()
        for call in (client.create("t"), client.get("x"), client.list_queues()):
            with pytest.raises(Unavailable):
                await call
        assert time.monotonic() - before < 5


async def test_closing_ends_a_create_that_waits_to_know_the_server(server: FakeServer) -> None:
    await server.stop()
    client = Client(server.address)
    create = asyncio.create_task(client.create("t"))
    await asyncio.sleep(0.05)
    await client.close()
    with pytest.raises(Unavailable):
        await create


async def test_a_second_server_takes_over(server: FakeServer) -> None:
    other = FakeServer()
    await other.start()
    async with Client(f"{server.address}, {other.address}") as client:
        for _ in range(4):
            await client.create("t")
        assert server.tasks
        assert other.tasks
        await server.stop()
        for _ in range(4):
            await asyncio.wait_for(client.create("t"), 20)
    await other.stop()
    assert len(server.tasks) + len(other.tasks) == 8


async def test_a_call_that_is_not_a_create_is_repeated_too(server: FakeServer, client: Client) -> None:
    created = await client.create("t")
    failures = [Unavailable("no owner"), Unavailable("no owner")]

    def fail() -> None:
        if failures:
            raise failures.pop()

    server.on_cancel = fail
    assert await client.cancel(created.id) is CancelOutcome.ALREADY_DISPATCHED
    assert not failures


async def test_closing_ends_what_is_under_way(server: FakeServer) -> None:
    server.gate = asyncio.Event()
    client = Client(server.address)
    create = asyncio.create_task(client.create("t"))
    await until(lambda: server.batches)
    read = asyncio.create_task(client.get("t"))
    cancelled = asyncio.create_task(client.get("t"))
    await until(lambda: server.reads == 2)
    cancelled.cancel()
    await client.close()
    for task in (create, read):
        with pytest.raises(Unavailable):
            await task
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    with pytest.raises(Unavailable):
        await client.create("t")
    with pytest.raises(Unavailable):
        await client.get("t")
    server.gate.set()


# ---------------------------------------------------------------- the rest


async def test_get_and_cancel(server: FakeServer, client: Client) -> None:
    created = await client.create("t", b"p", delay=1, metadata={"a": "b"}, priority=Priority.LOW)
    task = await client.get(created.id)
    assert (task.id, task.type, task.payload, task.metadata) == (created.id, "t", b"p", {"a": "b"})
    assert (task.priority, task.state, task.due, task.dispatched) == (
        Priority.LOW,
        TaskState.DISPATCHED,
        created.due,
        created.due,
    )
    assert (task.cancelled, task.failed) == (None, None)
    outcome = await client.cancel(created.id)
    assert outcome is CancelOutcome.ALREADY_DISPATCHED
    assert not outcome.cancelled
    for call in (client.get("missing"), client.cancel("missing")):
        with pytest.raises(NotFound) as caught:
            await call
        assert caught.value.field == "task_id"


async def test_queues(server: FakeServer, client: Client) -> None:
    for name in ("c", "a", "b", "d", "e"):
        queue = await client.create_queue(name, QueueKind.KAFKA, topic=f"t.{name}", partitions=3)
        assert (queue.name, queue.kind, queue.topic, queue.partitions) == (name, QueueKind.KAFKA, f"t.{name}", 3)
    assert [queue.name for queue in await client.list_queues()] == ["a", "b", "c", "d", "e"]
    assert (await client.get_queue("b")).topic == "t.b"
    with pytest.raises(AlreadyExists) as caught:
        await client.create_queue("a", QueueKind.WORKER)
    assert caught.value.field == "name"
    with pytest.raises(NotFound):
        await client.get_queue("z")
    for arguments, field in (({"kind": "FAX"}, "kind"), ({"partitions": 2**40}, "partitions"), ({"topic": 5}, "topic")):
        with pytest.raises(InvalidArgument) as refused:
            await client.create_queue("q", **arguments)  # type: ignore[arg-type]
        assert refused.value.field == field


async def test_a_service_that_is_missing_is_said_to_be(client: Client) -> None:
    with pytest.raises(FailedPrecondition, match="does not serve"):
        await client.list_namespaces()


async def test_the_server_is_asked_once(server: FakeServer, client: Client) -> None:
    info = await client.info()
    assert (info.version, info.mode, info.shards, info.clock_offset_ms) == ("1.2.3", "embedded", SHARDS, 0)
    await server.stop()
    assert await client.info() is info


@pytest.mark.parametrize("skew_ms", [-90_000, 90_000])
async def test_delays_follow_the_servers_clock_where_the_two_differ(
    server: FakeServer, client: Client, skew_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    server.clock.skew_ms = skew_ms
    created = await client.create("t", delay=10)
    assert abs(created.due_ms - now_ms() - skew_ms - 10_000) < 2_000
    assert "differs" in caplog.text


async def test_targets(server: FakeServer) -> None:
    port = server.address.rpartition(":")[2]
    for target in (f"localhost:{port}", f"localhost:{port},127.0.0.1:{port}", f"dns:///localhost:{port}"):
        async with Client(target, timeout=10) as client:
            await client.create("t")
    for target in ("", ",", "a:1,b", "127.0.0.1:1,[::1]:2", "127.0.0.1:0,127.0.0.1:1"):
        with pytest.raises(InvalidArgument) as caught:
            await channel.open_channel(target)
        assert caught.value.field == "target"


def test_the_package_is_light_until_the_sdk_is_used() -> None:
    import subprocess
    import sys

    code = "import sys, bucketsched; print([m for m in ('grpc', 'google.protobuf') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
