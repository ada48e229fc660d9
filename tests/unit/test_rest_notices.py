"""Rules of notices over REST: of tasks, and of queues."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from rest_world import JSON, RestWorld, refused
from service_world import NAMESPACE_ID

from bucketsched.core.catalog import Queue, QueueKind

DEAD = {"events": ["DEAD_LETTERED"], "queue": "dead"}
LATE = {"events": ["LATE", "EXPIRED", "LATE"], "queue": "topic", "late_after": "5s"}
SHOWN = [
    {"events": ["DEAD_LETTERED"], "queue": "dead", "late_after": 1.0},
    {"events": ["EXPIRED", "LATE"], "queue": "topic", "late_after": 5.0},
]


@pytest.fixture
async def rest() -> AsyncIterator[RestWorld]:
    world = await RestWorld().start()
    await world.catalog.create_queue(Queue(NAMESPACE_ID, "default", "dead", QueueKind.WORKER))
    await world.catalog.create_queue(Queue(NAMESPACE_ID, "default", "topic", QueueKind.KAFKA))
    yield world
    await world.close()


async def test_a_task_is_created_with_rules_and_shows_them(rest: RestWorld) -> None:
    created = await rest.create(notices=[DEAD, LATE], delay=60)
    assert (await rest.task(created["task_id"]))["notices"] == SHOWN
    (listed,) = (await rest.client.get("/tasks")).json()["tasks"]
    assert listed["notices"] == SHOWN
    for plain in ({}, {"notices": None}, {"notices": []}):
        created = await rest.create(**plain)
        assert (await rest.task(created["task_id"]))["notices"] == []
    answer = await rest.post("/tasks:batch", {"tasks": [{"type": "t", "notices": [DEAD | {"queue": "no"}]}]})
    assert answer.json()["results"][0]["error"]["details"] == [{"field": "notices[0].queue"}]


WRONG = [
    ({"notices": DEAD}, 400, "notices"),
    ({"notices": [DEAD, 5]}, 400, "notices[1]"),
    ({"notices": [DEAD] * 11}, 400, "notices"),
    ({"notices": [DEAD, {"queue": "dead"}]}, 400, "notices[1].events"),
    ({"notices": [DEAD | {"events": []}]}, 400, "notices[0].events"),
    ({"notices": [DEAD | {"events": ["NEVER"]}]}, 400, "notices[0].events"),
    ({"notices": [DEAD | {"events": "LATE"}]}, 400, "notices[0].events"),
    ({"notices": [DEAD | {"queue": ""}]}, 400, "notices[0].queue"),
    ({"notices": [DEAD | {"queue": None}]}, 400, "notices[0].queue"),
    ({"notices": [DEAD | {"late_after": -1}]}, 400, "notices[0].late_after"),
    ({"notices": [DEAD | {"late_after": "500d"}]}, 400, "notices[0].late_after"),
    ({"notices": [DEAD | {"nonsense": 1}]}, 400, "notices[0].nonsense"),
    ({"notices": [DEAD, DEAD | {"queue": "nowhere"}]}, 404, "notices[1].queue"),
]


@pytest.mark.parametrize(("body", "status", "field"), WRONG)
async def test_wrong_rules_are_named(rest: RestWorld, body: dict[str, Any], status: int, field: str) -> None:
    name = "NOT_FOUND" if status == 404 else "INVALID_ARGUMENT"
    refused(await rest.post("/tasks", {"type": "t", **body}), status, name, field)
    refused(await rest.post("/queues", {"name": "q", **body}), status, name, field)
    refused(await rest.client.patch("/queues/default", json=body), status, name, field)


async def test_the_rules_of_a_queue_are_created_shown_and_changed(rest: RestWorld) -> None:
    created = await rest.post("/queues", {"name": "q", "notices": [DEAD, LATE], "retry": {"max_attempts": 3}})
    assert (created.status_code, created.json()["notices"]) == (201, SHOWN)
    refused(await rest.post("/queues", {"name": "q", "notices": [DEAD]}), 409, "ALREADY_EXISTS", "policy")
    changed = await rest.client.patch("/queues/q", json={"notices": [LATE]})
    assert (changed.json()["notices"], changed.json()["retry"]["max_attempts"]) == (SHOWN[1:], 3)
    assert (await rest.client.get("/queues/q")).json() == changed.json()
    changed = await rest.client.patch("/queues/q", json={"retry": None})
    assert (changed.json()["notices"], changed.json()["retry"]) == (SHOWN[1:], None)
    changed = await rest.client.patch("/queues/q", json={"notices": None})
    assert changed.json()["notices"] == []
    itself = await rest.client.patch("/queues/dead", json={"notices": [DEAD]})
    refused(itself, 400, "INVALID_ARGUMENT", "notices[0].queue")
    succeeded = {"notices": [DEAD | {"events": ["SUCCEEDED"]}]}
    refused(await rest.client.patch("/queues/topic", json=succeeded), 400, "INVALID_ARGUMENT", "notices[0].events")
    wrong = {"type": "t", "queue": "topic", **succeeded}
    refused(await rest.post("/tasks", wrong), 400, "INVALID_ARGUMENT", "notices[0].events")


async def test_the_most_rules_fit_into_a_body(rest: RestWorld) -> None:
    """With the largest of everything else, however its characters are written."""
    name = "q" * 100
    await rest.catalog.create_queue(Queue(NAMESPACE_ID, "default", name, QueueKind.WORKER))
    escaped = "\\u0071" * 100
    events = ",".join(
        '"' + "".join(f"\\u{ord(each):04x}" for each in event) + '"'
        for event in ("SUCCEEDED", "ATTEMPT_FAILED", "DEAD_LETTERED", "EXPIRED", "LATE")
    )
    rules = ",".join([f'{{"events":[{events}],"queue":"{escaped}","late_after":"100d"}}'] * 10)
    errors = ",".join(['"' + "\\u00e9" * 200 + '"'] * 20)
    policy = f'"notices":[{rules}],"retry":{{"non_retryable_errors":[{errors}]}}'
    payload = base64.b64encode(bytes(rest.limits.payload_bytes_max)).decode()
    value = "\\u00e9" * 127
    metadata = ",".join([f'"{key:x}":"{value}"' for key in range(32)])
    answer = await rest.post(
        "/tasks", f'{{"type":"t","payload_base64":"{payload}","metadata":{{{metadata}}},{policy}}}'.encode()
    )
    assert answer.status_code == 201, answer.text
    answer = await rest.client.patch("/queues/default", content=f"{{{policy}}}".encode(), headers=JSON)
    assert answer.status_code == 200, answer.text
