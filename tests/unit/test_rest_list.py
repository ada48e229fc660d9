"""GET /tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import urlencode

import pytest
from rest_world import RestWorld, refused


@pytest.fixture
async def rest() -> AsyncIterator[RestWorld]:
    world = await RestWorld().start()
    yield world
    await world.close()


async def filled(rest: RestWorld) -> list[str]:
    """Four tasks, an hour apart."""
    for number in range(4):
        await rest.create(
            type="even" if number % 2 == 0 else "odd",
            delay=f"{number}h",
            payload={"number": number},
            metadata={"number": str(number), "a.b": "x"},
        )
    answer = await rest.client.get("/tasks")
    assert answer.status_code == 200, answer.text
    ids = [task["task_id"] for task in answer.json()["tasks"]]
    assert len(ids) == 4
    return ids


async def listed(rest: RestWorld, **query: str) -> list[str]:
    answer = await rest.client.get(f"/tasks?{urlencode({name.replace('__', '.'): v for name, v in query.items()})}")
    assert answer.status_code == 200, answer.text
    return [task["task_id"] for task in answer.json()["tasks"]]


async def test_each_query_parameter_is_heard(rest: RestWorld) -> None:
    ids = await filled(rest)
    second, third = [(await rest.task(task_id))["run_at"] for task_id in ids[1:3]]
    assert await listed(rest, order="newest") == ids[::-1]
    assert await listed(rest, order="next", queue="default", namespace="default") == ids
    assert await listed(rest, type="odd") == [ids[1], ids[3]]
    assert await listed(rest, status="PENDING") == ids
    assert await listed(rest, status="FAILED") == []
    assert await listed(rest, **{"from": second, "until": third}) == [ids[1]]
    assert await listed(rest, metadata__number="2") == [ids[2]]
    assert await listed(rest, **{"metadata.number": "2", "metadata.a.b": "x"}) == [ids[2]]
    assert await listed(rest, **{"metadata.number": "2", "metadata.a.b": "y"}) == []


async def test_a_task_is_shown_as_it_is_alone(rest: RestWorld) -> None:
    ids = await filled(rest)
    (task,) = (await rest.client.get("/tasks?page_size=1")).json()["tasks"]
    alone = await rest.task(ids[0])
    assert (alone.pop("last_attempts"), alone) == ([], task)
    assert task["payload"] == {"number": 0}


async def test_pages_follow_each_other(rest: RestWorld) -> None:
    ids = await filled(rest)
    first = (await rest.client.get("/tasks?page_size=3")).json()
    assert [task["task_id"] for task in first["tasks"]] == ids[:3]
    assert await listed(rest, page_size="3", page_token=first["next_page_token"]) == ids[3:]
    answer = await rest.client.get(f"/tasks?order=newest&page_token={first['next_page_token']}")
    refused(answer, 400, "INVALID_ARGUMENT", "page_token")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("page_size=-1", "page_size"),
        ("page_size=1001", "page_size"),
        ("page_size=many", "page_size"),
        ("page_token=x", "page_token"),
        ("status=WAITING", "status"),
        ("order=oldest", "order"),
        ("from=yesterday", "from"),
        ("until=2026-01-01", "until"),
        ("from=2026-01-01T00:00:00Z&until=2026-01-01T00:00:00Z", "until"),
        ("queue=a%20b", "queue"),
        ("namespace=", "namespace"),
        ("metadata=x", "metadata"),
        ("metadata.=x", "metadata."),
        ("metadata.k=x&metadata.k=y", "metadata.k"),
        ("due_from=2026-01-01T00:00:00Z", "due_from"),
    ],
)
async def test_bad_input_is_named(rest: RestWorld, query: str, field: str) -> None:
    refused(await rest.client.get(f"/tasks?{query}"), 400, "INVALID_ARGUMENT", field)


async def test_a_window_that_is_none_is_told_in_the_words_of_the_query(rest: RestWorld) -> None:
    answer = await rest.client.get("/tasks?from=2026-01-01T00:00:00Z&until=2025-01-01T00:00:00Z")
    assert refused(answer, 400, "INVALID_ARGUMENT") == "until: must be later than from"


async def test_a_queue_that_is_not_there_is_not_found(rest: RestWorld) -> None:
    refused(await rest.client.get("/tasks?queue=nothing"), 404, "NOT_FOUND", "queue")


async def test_the_document_tells_of_metadata(rest: RestWorld) -> None:
    document = (await rest.client.get("/openapi.json")).json()
    names = [parameter["name"] for parameter in document["paths"]["/tasks"]["get"]["parameters"]]
    assert "metadata.{key}" in names
    assert {"from", "until", "status", "order"} <= set(names)
