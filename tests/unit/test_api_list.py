"""ListTasks over a real connection, through the SDK and the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import code_pb2
from service_world import NOW_MS
from test_api_tasks import Api, refused

from bucketsched import Client, SyncClient, TaskOrder, TaskState
from bucketsched.cli import main
from bucketsched.core.catalog import Queue, QueueKind
from bucketsched.core.task import FactKind, Mark
from bucketsched.errors import InvalidArgument, NotFound
from bucketsched.stubs.v1 import task_pb2 as pb

NOW = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=NOW_MS)


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    api = await Api().start()
    yield api
    await api.close()


def at(seconds: int) -> Timestamp:
    return Timestamp(seconds=NOW_MS // 1000 + seconds)


async def filled(api: Api) -> list[str]:
    """Five tasks, an hour apart: their ids."""
    namespace = await api.directory.namespace("default")
    await api.catalog.create_queue(Queue(namespace.namespace_id, "default", "mail", QueueKind.WORKER))
    created = [
        await api.create(
            type="even" if number % 2 == 0 else "odd",
            queue="mail" if number == 4 else "default",
            metadata={"number": str(number), "all": "yes"},
            due_time=at(3600 * number + 10),
            payload=bytes([number]),
        )
        for number in range(5)
    ]
    ids = [each.task_id for each in created]
    rows = await api.rows((NOW_MS + 10_000) // 60_000)
    await api.store.mark([Mark(rows[0].ref, FactKind.DISPATCHED, NOW_MS)])
    return ids


async def listed(api: Api, **fields: object) -> list[str]:
    response = await api.stub.ListTasks(pb.ListTasksRequest(**fields))  # type: ignore[arg-type]
    return [task.task_id for task in response.tasks]


async def test_each_field_of_a_request_is_heard(api: Api) -> None:
    ids = await filled(api)
    assert await listed(api) == ids
    assert await listed(api, order=pb.TASK_ORDER_NEWEST) == ids[::-1]
    assert await listed(api, queue="mail") == ids[4:]
    assert await listed(api, type="odd") == [ids[1], ids[3]]
    assert await listed(api, state=pb.TASK_STATE_DISPATCHED) == ids[:1]
    assert await listed(api, state=pb.TASK_STATE_PENDING, due_until=at(7300)) == ids[1:3]
    assert await listed(api, due_from=at(3610), due_until=at(7210)) == ids[1:2]
    assert await listed(api, metadata={"number": "2", "all": "yes"}) == ids[2:3]
    assert await listed(api, metadata={"number": "2", "all": "no"}) == []


async def test_pages_follow_each_other(api: Api) -> None:
    ids = await filled(api)
    first = await api.stub.ListTasks(pb.ListTasksRequest(page_size=3))
    second = await api.stub.ListTasks(pb.ListTasksRequest(page_size=3, page_token=first.next_page_token))
    assert [task.task_id for task in [*first.tasks, *second.tasks]] == ids
    assert len(first.tasks) == 3
    assert [bytes(task.payload) for task in second.tasks] == [b"\x03", b"\x04"]


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"page_size": -1}, code_pb2.INVALID_ARGUMENT, "page_size"),
        ({"page_size": 1_001}, code_pb2.INVALID_ARGUMENT, "page_size"),
        ({"page_token": "nonsense"}, code_pb2.INVALID_ARGUMENT, "page_token"),
        ({"state": 77}, code_pb2.INVALID_ARGUMENT, "state"),
        ({"order": 77}, code_pb2.INVALID_ARGUMENT, "order"),
        ({"due_from": Timestamp(nanos=-1)}, code_pb2.INVALID_ARGUMENT, "due_from"),
        ({"due_until": Timestamp(nanos=-1)}, code_pb2.INVALID_ARGUMENT, "due_until"),
        ({"due_from": at(5), "due_until": at(5)}, code_pb2.INVALID_ARGUMENT, "due_until"),
        ({"namespace": "a b"}, code_pb2.INVALID_ARGUMENT, "namespace"),
        ({"queue": "a b"}, code_pb2.INVALID_ARGUMENT, "queue"),
        ({"namespace": "nobody"}, code_pb2.NOT_FOUND, "namespace"),
        ({"queue": "nothing"}, code_pb2.NOT_FOUND, "queue"),
    ],
)
async def test_bad_input_is_named(api: Api, fields: dict[str, object], code: int, field: str) -> None:
    await refused(api.stub.ListTasks(pb.ListTasksRequest(**fields)), code, field)  # type: ignore[arg-type]


# ---------------------------------------------------------------- the SDK


async def test_the_client_brings_all_pages(api: Api) -> None:
    ids = await filled(api)
    async with Client(api.address) as client:
        assert [task.id async for task in client.list_tasks(page_size=2)] == ids
        newest = client.list_tasks(
            state=TaskState.PENDING,
            due_from=NOW + timedelta(hours=1),
            due_until=NOW + timedelta(hours=4),
            metadata={"all": "yes"},
            order=TaskOrder.NEWEST,
        )
        assert [task.id async for task in newest] == ids[3:0:-1]
        (mail,) = [task async for task in client.list_tasks(queue="mail", type="even", state="PENDING")]
        assert (mail.queue, mail.type, mail.payload, mail.metadata["number"]) == ("mail", "even", b"\x04", "4")


async def test_the_client_of_threads_brings_them_too(api: Api) -> None:
    ids = await filled(api)

    def found() -> list[str]:
        with SyncClient(api.address) as client:
            return [task.id for task in client.list_tasks(page_size=2)]

    assert await asyncio.to_thread(found) == ids


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("queue", "\ud800"),
        ("type", 7),
        ("state", "WAITING"),
        ("due_from", NOW.replace(tzinfo=None)),
        ("due_until", 5),
        ("metadata", {"k": 1}),
        ("order", "oldest"),
        ("page_size", -1),
        ("page_size", "many"),
    ],
)
async def test_the_client_names_bad_input(api: Api, field: str, value: object) -> None:
    async with Client(api.address) as client:
        with pytest.raises(InvalidArgument) as caught:
            await anext(client.list_tasks(**{field: value}))  # type: ignore[arg-type]
        assert caught.value.field == field


async def test_the_client_says_what_does_not_exist(api: Api) -> None:
    async with Client(api.address) as client:
        with pytest.raises(NotFound):
            await anext(client.list_tasks(queue="nothing"))


# ---------------------------------------------------------------- the command line


async def command(api: Api, capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = await asyncio.to_thread(main, ["--address", api.address, *arguments])
    return code, capfd.readouterr().out


async def test_the_command_shows_what_matches(api: Api, capfd: pytest.CaptureFixture[str]) -> None:
    ids = await filled(api)

    async def shown(*options: str) -> list[str]:
        code, out = await command(api, capfd, "--output", "json", "task", "list", *options)
        assert code == 0
        return [task["task_id"] for task in json.loads(out)["tasks"]]

    until = (NOW + timedelta(hours=2)).isoformat(timespec="seconds")
    assert await shown() == ids
    assert await shown("--newest", "--limit", "2") == ids[:2:-1]
    assert await shown("--queue", "mail", "--type", "even") == ids[4:]
    assert await shown("--state", "pending", "--due-until", until) == ids[1:2]
    assert await shown("--due-from", until, "--metadata", "all=yes", "--metadata", "number=3") == [ids[3]]
    code, out = await command(api, capfd, "task", "list", "--limit", "1")
    assert (code, ids[0] in out, ids[1] in out, "DISPATCHED" in out) == (0, True, False, True)
