"""/queues."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from rest_world import RestWorld, refused

from bucketsched.core.errors import Unavailable


@pytest.fixture
async def rest() -> AsyncIterator[RestWorld]:
    world = await RestWorld().start()
    yield world
    await world.close()


async def test_a_queue_is_made_once(rest: RestWorld) -> None:
    answer = await rest.post("/queues", {"name": "emails"})
    assert answer.status_code == 201
    assert answer.headers["location"] == "/queues/emails?namespace=default"
    queue = answer.json()
    assert (queue["name"], queue["kind"], queue["namespace"]) == ("emails", "WORKER", "default")
    assert (await rest.post("/queues", {"name": "emails", "kind": "WORKER"})).json() == queue
    assert (await rest.client.get(answer.headers["location"])).json() == queue
    other = await rest.post("/queues", {"name": "emails", "priority_topics": True})
    refused(other, 409, "ALREADY_EXISTS", "priority_topics")
    assert (await rest.create(queue="emails"))["status"] == "PENDING"


async def test_queues_are_listed_by_pages(rest: RestWorld) -> None:
    for name in ("b", "a", "c"):
        await rest.post("/queues", {"name": name})
    first = (await rest.client.get("/queues?page_size=2")).json()
    assert [queue["name"] for queue in first["queues"]] == ["a", "b"]
    rest_of_it = (await rest.client.get("/queues", params={"page_token": first["next_page_token"]})).json()
    assert [queue["name"] for queue in rest_of_it["queues"]] == ["c", "default"]
    assert rest_of_it["next_page_token"] == ""


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": 5}, "name"),
        ({"name": "q", "kind": "SQS"}, "kind"),
        ({"name": "q", "kind": "KAFKA"}, "kind"),
        ({"name": "q", "partitions": 1}, "partitions"),
        ({"name": "q", "partitions": 1.5}, "partitions"),
        ({"name": "q", "partitions": True}, "partitions"),
        ({"name": "q", "partitions": 10**400}, "partitions"),
        ({"name": "q", "replication": -1}, "replication"),
        ({"name": "q", "topic": "t"}, "topic"),
        ({"name": "q", "priority_topics": 1}, "priority_topics"),
        ({"name": "q", "colour": 1}, "colour"),
    ],
)
async def test_wrong_fields_are_named(rest: RestWorld, body: dict[str, Any], field: str) -> None:
    refused(await rest.post("/queues", body), 400, "INVALID_ARGUMENT", field)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("page_size=-1", "page_size"),
        ("page_size=1001", "page_size"),
        ("page_size=x", "page_size"),
        ("page_size=" + "9" * 5_000, "page_size"),
        ("page_token=%00", "page_token"),
        ("namespace=a%2Fb", "namespace"),
        ("limit=5", "limit"),
    ],
)
async def test_wrong_queries_are_named(rest: RestWorld, query: str, field: str) -> None:
    refused(await rest.client.get(f"/queues?{query}"), 400, "INVALID_ARGUMENT", field)


async def test_what_is_not_there(rest: RestWorld) -> None:
    refused(await rest.client.get("/queues/no"), 404, "NOT_FOUND", "queue")
    refused(await rest.client.get("/queues?namespace=no"), 404, "NOT_FOUND", "namespace")
    refused(await rest.post("/queues", {"name": "q", "namespace": "no"}), 404, "NOT_FOUND", "namespace")


async def test_without_the_catalog(rest: RestWorld) -> None:
    rest.catalog.fail_next("list_queues", Unavailable("no catalog"))
    answer = await rest.client.get("/queues")
    refused(answer, 503, "UNAVAILABLE")
    assert answer.headers["retry-after"] == "1"
